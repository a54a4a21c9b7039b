/*
 * stream_avx512.c - few rows against keys where they lie: the inner loops, 16 lanes wide.
 *
 * A step of 32 columns becomes two vectors of fp32: bf16 by shifting and masking (even and odd columns), f16 by two
 * conversions, f32 as it is. The last step is read under a mask, so nothing past a row is touched.
 */
#include "cpu/avx2/stream_pairs.h"
#include "tables_avx512.h"

enum { STEP = MLA_AVX512_STREAM_STEP };

/* The two vectors of the step at column c; `n` of its columns belong to the row, the others read as 0. */
INLINE void load_step(const void *row, int64_t c, int64_t n, mla_format format, __m512 *x, __m512 *y)
{
    const char *p = column(row, c, format);
    uint32_t lanes = n >= STEP ? 0xffffffffu : (1u << n) - 1;
    if (format == MLA_FORMAT_BF16) {
        __m512i raw = n >= STEP ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(lanes, p);
        PIN(raw);
        *x = _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16));
        *y = _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32((int)0xffff0000u)));
    } else if (format == MLA_FORMAT_F16) {
        *x = _mm512_cvtph_ps(n >= STEP ? _mm256_loadu_si256((const __m256i *)p)
                                       : _mm256_maskz_loadu_epi16((__mmask16)lanes, p));
        *y = _mm512_cvtph_ps(n >= STEP ? _mm256_loadu_si256((const __m256i *)(p + 32))
                                       : _mm256_maskz_loadu_epi16((__mmask16)(lanes >> 16), p + 32));
    } else {
        *x = n >= STEP ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps((__mmask16)lanes, p);
        *y = n >= STEP ? _mm512_loadu_ps(p + 64) : _mm512_maskz_loadu_ps((__mmask16)(lanes >> 16), p + 64);
    }
}

INLINE float sum_lanes(__m512 a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    b = _mm256_hadd_ps(b, b);
    b = _mm256_hadd_ps(b, b);
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1)));
}

/* One row, one key: eight chains, or the multipliers would wait for each other. */
INLINE float dot_1x1(const mla_stream_block *b, int64_t n, mla_format format)
{
    __m512 x0 = _mm512_setzero_ps(), y0 = x0, x1 = x0, y1 = x0, x2 = x0, y2 = x0, x3 = x0, y3 = x0;
    for (int32_t i = 0; i < b->n_k_part; i++) {
        const void *row = b->k[i].row[n];
        const float *q = b->q + b->k[i].at;
        int64_t c = 0, n_col = b->k[i].n_col;
        __m512 x, y;
#define STEP_1X1(j, width)                                                \
    load_step(row, c + (j) * STEP, width, format, &x, &y);                \
    x##j = _mm512_fmadd_ps(_mm512_loadu_ps(q + c + (j) * STEP), x, x##j); \
    y##j = _mm512_fmadd_ps(_mm512_loadu_ps(q + c + (j) * STEP + STEP / 2), y, y##j);
        for (; c + 4 * STEP <= n_col; c += 4 * STEP) {
            STEP_1X1(0, STEP)
            STEP_1X1(1, STEP)
            STEP_1X1(2, STEP)
            STEP_1X1(3, STEP)
        }
        for (; c + STEP <= n_col; c += STEP) {
            STEP_1X1(0, STEP)
        }
        if (c < n_col) {
            STEP_1X1(0, n_col - c)
        }
#undef STEP_1X1
    }
    __m512 even = _mm512_add_ps(_mm512_add_ps(x0, x1), _mm512_add_ps(x2, x3));
    __m512 odd = _mm512_add_ps(_mm512_add_ps(y0, y1), _mm512_add_ps(y2, y3));
    return sum_lanes(_mm512_add_ps(even, odd));
}

INLINE void dot_2x2(const mla_stream_block *b, int32_t r, int64_t n, mla_format format, float *s)
{
    __m512 x00 = _mm512_setzero_ps(), y00 = x00, x01 = x00, y01 = x00, x10 = x00, y10 = x00, x11 = x00, y11 = x00;
    for (int32_t i = 0; i < b->n_k_part; i++) {
        const void *row0 = b->k[i].row[n], *row1 = b->k[i].row[n + 1];
        const float *q0 = b->q + r * b->stride + b->k[i].at, *q1 = q0 + b->stride;
        int64_t c = 0, n_col = b->k[i].n_col;
#define KEY_2X2(k)                         \
    x0##k = _mm512_fmadd_ps(u0, x, x0##k); \
    y0##k = _mm512_fmadd_ps(w0, y, y0##k); \
    x1##k = _mm512_fmadd_ps(u1, x, x1##k); \
    y1##k = _mm512_fmadd_ps(w1, y, y1##k);
#define STEP_2X2(width)                                                                     \
    {                                                                                       \
        __m512 u0 = _mm512_loadu_ps(q0 + c), w0 = _mm512_loadu_ps(q0 + c + STEP / 2), x, y; \
        __m512 u1 = _mm512_loadu_ps(q1 + c), w1 = _mm512_loadu_ps(q1 + c + STEP / 2);       \
        load_step(row0, c, width, format, &x, &y);                                          \
        KEY_2X2(0)                                                                          \
        load_step(row1, c, width, format, &x, &y);                                          \
        KEY_2X2(1)                                                                          \
    }
        for (; c + STEP <= n_col; c += STEP) {
            STEP_2X2(STEP)
        }
        if (c < n_col) {
            STEP_2X2(n_col - c)
        }
#undef STEP_2X2
#undef KEY_2X2
    }
    s[r] = sum_lanes(_mm512_add_ps(x00, y00));
    s[r + 1] = sum_lanes(_mm512_add_ps(x10, y10));
    s[ROWS + r] = sum_lanes(_mm512_add_ps(x01, y01));
    s[ROWS + r + 1] = sum_lanes(_mm512_add_ps(x11, y11));
}

INLINE void values_1x2(const mla_stream_part *v, int64_t n, float *o, const float *p, mla_format format)
{
    const void *row0 = v->row[n], *row1 = v->row[n + 1];
    const void *ahead0 = v->row[n + MLA_STREAM_AHEAD], *ahead1 = v->row[n + 1 + MLA_STREAM_AHEAD];
    __m512 w0 = _mm512_set1_ps(p[0]), w1 = _mm512_set1_ps(p[ROWS]), x, y;
    int64_t c = 0;
#define STEP_1X2(width)                                                                   \
    {                                                                                     \
        __m512 sum_x = _mm512_loadu_ps(o + c), sum_y = _mm512_loadu_ps(o + c + STEP / 2); \
        load_step(row0, c, width, format, &x, &y);                                        \
        sum_x = _mm512_fmadd_ps(w0, x, sum_x);                                            \
        sum_y = _mm512_fmadd_ps(w0, y, sum_y);                                            \
        load_step(row1, c, width, format, &x, &y);                                        \
        _mm512_storeu_ps(o + c, _mm512_fmadd_ps(w1, x, sum_x));                           \
        _mm512_storeu_ps(o + c + STEP / 2, _mm512_fmadd_ps(w1, y, sum_y));                \
    }
    for (; c + STEP <= v->n_col; c += STEP) {
        fetch(ahead0, c, format);
        fetch(ahead1, c, format);
        STEP_1X2(STEP)
    }
    if (c < v->n_col) {
        STEP_1X2(v->n_col - c)
    }
#undef STEP_1X2
}

INLINE void values_2x2(const mla_stream_part *v, int64_t n, float *o, int64_t stride, const float *p, bool first,
                       mla_format format)
{
    const void *row0 = v->row[n], *row1 = v->row[n + 1];
    const int64_t ahead = n + (first ? MLA_STREAM_AHEAD : 0);
    const void *ahead0 = v->row[ahead], *ahead1 = v->row[ahead + 1];
    __m512 w00 = _mm512_set1_ps(p[0]), w01 = _mm512_set1_ps(p[ROWS]);
    __m512 w10 = _mm512_set1_ps(p[1]), w11 = _mm512_set1_ps(p[ROWS + 1]), x, y;
    float *o0 = o, *o1 = o + stride;
    int64_t c = 0;
#define STEP_2X2(width)                                                                       \
    {                                                                                         \
        __m512 sum_x0 = _mm512_loadu_ps(o0 + c), sum_y0 = _mm512_loadu_ps(o0 + c + STEP / 2); \
        __m512 sum_x1 = _mm512_loadu_ps(o1 + c), sum_y1 = _mm512_loadu_ps(o1 + c + STEP / 2); \
        load_step(row0, c, width, format, &x, &y);                                            \
        sum_x0 = _mm512_fmadd_ps(w00, x, sum_x0);                                             \
        sum_y0 = _mm512_fmadd_ps(w00, y, sum_y0);                                             \
        sum_x1 = _mm512_fmadd_ps(w10, x, sum_x1);                                             \
        sum_y1 = _mm512_fmadd_ps(w10, y, sum_y1);                                             \
        load_step(row1, c, width, format, &x, &y);                                            \
        _mm512_storeu_ps(o0 + c, _mm512_fmadd_ps(w01, x, sum_x0));                            \
        _mm512_storeu_ps(o0 + c + STEP / 2, _mm512_fmadd_ps(w01, y, sum_y0));                 \
        _mm512_storeu_ps(o1 + c, _mm512_fmadd_ps(w11, x, sum_x1));                            \
        _mm512_storeu_ps(o1 + c + STEP / 2, _mm512_fmadd_ps(w11, y, sum_y1));                 \
    }
    for (; c + STEP <= v->n_col; c += STEP) {
        fetch(ahead0, c, format);
        fetch(ahead1, c, format);
        STEP_2X2(STEP)
    }
    if (c < v->n_col) {
        STEP_2X2(v->n_col - c)
    }
#undef STEP_2X2
}

INLINE void values_1x1(const mla_stream_part *v, int64_t n, float *o, float weight, mla_format format)
{
    __m512 w = _mm512_set1_ps(weight), x, y;
    for (int64_t c = 0; c < v->n_col; c += STEP) {
        load_step(v->row[n], c, v->n_col - c, format, &x, &y);
        _mm512_storeu_ps(o + c, _mm512_fmadd_ps(w, x, _mm512_loadu_ps(o + c)));
        _mm512_storeu_ps(o + c + STEP / 2, _mm512_fmadd_ps(w, y, _mm512_loadu_ps(o + c + STEP / 2)));
    }
}

static const stream_loops loops = {dot_1x1, dot_2x2, values_1x1, values_1x2, values_2x2};

void mla_stream_f32_avx512(const mla_stream_block *block)
{
    stream_pairs(block, &loops, MLA_FORMAT_F32);
}

void mla_stream_f16_avx512(const mla_stream_block *block)
{
    stream_pairs(block, &loops, MLA_FORMAT_F16);
}

void mla_stream_bf16_avx512(const mla_stream_block *block)
{
    stream_pairs(block, &loops, MLA_FORMAT_BF16);
}
