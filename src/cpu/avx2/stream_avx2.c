/*
 * stream_avx2.c - few rows against keys where they lie: the inner loops for two to eight rows, 8 lanes wide. One row alone
 * has a way of its own (stream_one_avx2.c).
 */
#include "stream_step_avx2.h"
#include "tables_avx2.h"

INLINE float sum_lanes(__m256 a)
{
    a = _mm256_hadd_ps(a, a);
    a = _mm256_hadd_ps(a, a);
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)));
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Two rows, two keys; s[key][row]. */
INLINE void dot_2x2(const mla_stream_block *b, int32_t r, int64_t n, mla_format format, float *s)
{
    __m256 x00 = _mm256_setzero_ps(), y00 = x00, x01 = x00, y01 = x00, x10 = x00, y10 = x00, x11 = x00, y11 = x00;
    for (int32_t i = 0; i < b->n_k_part; i++) {
        const void *row0 = b->k[i].row[n], *row1 = b->k[i].row[n + 1];
        const float *q0 = b->q + r * b->stride + b->k[i].at, *q1 = q0 + b->stride;
        int64_t c = 0, n_col = b->k[i].n_col;
        __m256 x, y;
#define STEP_2X2                                                           \
    __m256 u0 = _mm256_loadu_ps(q0 + c), w0 = _mm256_loadu_ps(q0 + c + 8); \
    __m256 u1 = _mm256_loadu_ps(q1 + c), w1 = _mm256_loadu_ps(q1 + c + 8); \
    PIN(u0);                                                               \
    PIN(w0);                                                               \
    PIN(u1);                                                               \
    PIN(w1);
#define KEY_2X2(k)                         \
    x0##k = _mm256_fmadd_ps(u0, x, x0##k); \
    y0##k = _mm256_fmadd_ps(w0, y, y0##k); \
    x1##k = _mm256_fmadd_ps(u1, x, x1##k); \
    y1##k = _mm256_fmadd_ps(w1, y, y1##k);
        for (; c + STEP <= n_col; c += STEP) {
            STEP_2X2
            load_step(column(row0, c, format), format, &x, &y);
            KEY_2X2(0)
            load_step(column(row1, c, format), format, &x, &y);
            KEY_2X2(1)
        }
        if (c < n_col) {
            STEP_2X2
            load_tail(row0, c, n_col, format, &x, &y);
            KEY_2X2(0)
            load_tail(row1, c, n_col, format, &x, &y);
            KEY_2X2(1)
        }
#undef STEP_2X2
#undef KEY_2X2
    }
    s[r] = sum_lanes(_mm256_add_ps(x00, y00));
    s[r + 1] = sum_lanes(_mm256_add_ps(x10, y10));
    s[ROWS + r] = sum_lanes(_mm256_add_ps(x01, y01));
    s[ROWS + r + 1] = sum_lanes(_mm256_add_ps(x11, y11));
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* o[row] += p[key] * value[key] over two keys of one row; fetches two rows ahead. */
INLINE void values_1x2(const mla_stream_part *v, int64_t n, float *o, const float *p, mla_format format)
{
    const void *row0 = v->row[n], *row1 = v->row[n + 1];
    const void *ahead0 = v->row[n + MLA_STREAM_AHEAD], *ahead1 = v->row[n + 1 + MLA_STREAM_AHEAD];
    __m256 w0 = _mm256_broadcast_ss(p), w1 = _mm256_broadcast_ss(p + ROWS), x, y;
    int64_t c = 0;
#define STEP_1X2(LOAD0, LOAD1)                                                     \
    {                                                                              \
        __m256 sum_x = _mm256_loadu_ps(o + c), sum_y = _mm256_loadu_ps(o + c + 8); \
        LOAD0;                                                                     \
        sum_x = _mm256_fmadd_ps(w0, x, sum_x);                                     \
        sum_y = _mm256_fmadd_ps(w0, y, sum_y);                                     \
        LOAD1;                                                                     \
        _mm256_storeu_ps(o + c, _mm256_fmadd_ps(w1, x, sum_x));                    \
        _mm256_storeu_ps(o + c + 8, _mm256_fmadd_ps(w1, y, sum_y));                \
    }
#define WHOLE_1X2                                                                                                    \
    STEP_1X2(load_step(column(row0, c, format), format, &x, &y), load_step(column(row1, c, format), format, &x, &y)) \
    c += STEP;
    while (c + 2 * STEP <= v->n_col) {
        fetch(ahead0, c, format);
        fetch(ahead1, c, format);
        WHOLE_1X2
        WHOLE_1X2
    }
    while (c + STEP <= v->n_col) {
        WHOLE_1X2
    }
    if (c < v->n_col) {
        STEP_1X2(load_tail(row0, c, v->n_col, format, &x, &y), load_tail(row1, c, v->n_col, format, &x, &y))
    }
#undef STEP_1X2
#undef WHOLE_1X2
}

/* The same for two rows; the first pair of rows fetches. */
INLINE void values_2x2(const mla_stream_part *v, int64_t n, float *o, int64_t stride, const float *p, bool first,
                       mla_format format)
{
    const void *row0 = v->row[n], *row1 = v->row[n + 1];
    const int64_t ahead = n + (first ? MLA_STREAM_AHEAD : 0);
    const void *ahead0 = v->row[ahead], *ahead1 = v->row[ahead + 1];
    __m256 w00 = _mm256_broadcast_ss(p), w01 = _mm256_broadcast_ss(p + ROWS);
    __m256 w10 = _mm256_broadcast_ss(p + 1), w11 = _mm256_broadcast_ss(p + ROWS + 1), x, y;
    int64_t c = 0;
#define STEP_2X2(LOAD0, LOAD1)                                                                         \
    {                                                                                                  \
        __m256 sum_x0 = _mm256_loadu_ps(o + c), sum_y0 = _mm256_loadu_ps(o + c + 8);                   \
        __m256 sum_x1 = _mm256_loadu_ps(o + stride + c), sum_y1 = _mm256_loadu_ps(o + stride + c + 8); \
        LOAD0;                                                                                         \
        sum_x0 = _mm256_fmadd_ps(w00, x, sum_x0);                                                      \
        sum_y0 = _mm256_fmadd_ps(w00, y, sum_y0);                                                      \
        sum_x1 = _mm256_fmadd_ps(w10, x, sum_x1);                                                      \
        sum_y1 = _mm256_fmadd_ps(w10, y, sum_y1);                                                      \
        LOAD1;                                                                                         \
        _mm256_storeu_ps(o + c, _mm256_fmadd_ps(w01, x, sum_x0));                                      \
        _mm256_storeu_ps(o + c + 8, _mm256_fmadd_ps(w01, y, sum_y0));                                  \
        _mm256_storeu_ps(o + stride + c, _mm256_fmadd_ps(w11, x, sum_x1));                             \
        _mm256_storeu_ps(o + stride + c + 8, _mm256_fmadd_ps(w11, y, sum_y1));                         \
    }
#define WHOLE_2X2                                                                                                    \
    STEP_2X2(load_step(column(row0, c, format), format, &x, &y), load_step(column(row1, c, format), format, &x, &y)) \
    c += STEP;
    while (c + 2 * STEP <= v->n_col) {
        fetch(ahead0, c, format);
        fetch(ahead1, c, format);
        WHOLE_2X2
        WHOLE_2X2
    }
    while (c + STEP <= v->n_col) {
        WHOLE_2X2
    }
    if (c < v->n_col) {
        STEP_2X2(load_tail(row0, c, v->n_col, format, &x, &y), load_tail(row1, c, v->n_col, format, &x, &y))
    }
#undef STEP_2X2
#undef WHOLE_2X2
}

static const stream_loops loops = {NULL, dot_2x2, values_1x1, values_1x2, values_2x2};

void mla_stream_f32_avx2(const mla_stream_block *block)
{
    if (block->n_row == 1) {
        mla_stream_one_f32_avx2(block);
    } else {
        stream_pairs(block, &loops, MLA_FORMAT_F32);
    }
}

void mla_stream_f16_avx2(const mla_stream_block *block)
{
    if (block->n_row == 1) {
        mla_stream_one_f16_avx2(block);
    } else {
        stream_pairs(block, &loops, MLA_FORMAT_F16);
    }
}

void mla_stream_bf16_avx2(const mla_stream_block *block)
{
    if (block->n_row == 1) {
        mla_stream_one_bf16_avx2(block);
    } else {
        stream_pairs(block, &loops, MLA_FORMAT_BF16);
    }
}
