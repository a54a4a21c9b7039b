/*
 * stream_avx2.c - few rows against keys where they lie.
 *
 * Keys go by in pairs: the scores of the next pair, then the values of this one while the next one's probabilities are
 * being computed. Rows of the cache are read from front to back, one after the other, because that is what hardware
 * prefetchers follow; lines further ahead are fetched in the values' loop, where the memory would be idle.
 *
 * A step of 16 columns becomes two vectors of fp32: bf16 by shifting and masking (even and odd columns), f16 by two
 * conversions, f32 as it is.
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "exp2_avx2.h"
#include "tables_avx2.h"

enum { STEP = MLA_STREAM_STEP, ROWS = MLA_STREAM_ROWS };
#define INLINE static inline __attribute__((always_inline))

/* Keeps a value in a register: compilers would rather load it again, and loads are what these loops are short of. */
#define PIN(x) __asm__("" : "+x"(x))

INLINE const char *column(const void *row, int64_t c, mla_format format)
{
    return (const char *)row + c * (format == MLA_FORMAT_F32 ? 4 : 2);
}

/* The two vectors of the step that starts at p. */
INLINE void load_step(const char *p, mla_format format, __m256 *x, __m256 *y)
{
    if (format == MLA_FORMAT_BF16) {
        __m256i raw = _mm256_loadu_si256((const __m256i *)p);
        PIN(raw);
        *x = _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
        *y = _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32((int)0xffff0000u)));
    } else if (format == MLA_FORMAT_F16) {
        *x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
        *y = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16)));
    } else {
        *x = _mm256_loadu_ps((const float *)p);
        *y = _mm256_loadu_ps((const float *)p + 8);
    }
}

/* The columns from c on, fewer than a step, copied in front of zeros so that nothing past the row is read. */
INLINE void load_tail(const void *row, int64_t c, int64_t n_col, mla_format format, __m256 *x, __m256 *y)
{
    char buffer[STEP * 4] = {0};
    memcpy(buffer, column(row, c, format), (size_t)(column(row, n_col, format) - column(row, c, format)));
    load_step(buffer, format, x, y);
}

/* Fetches 32 columns into the first-level cache. */
INLINE void fetch(const void *row, int64_t c, mla_format format)
{
    __builtin_prefetch(column(row, c, format), 0, 3);
    if (format == MLA_FORMAT_F32) {
        __builtin_prefetch(column(row, c + STEP, format), 0, 3);
    }
}

INLINE float sum_lanes(__m256 a)
{
    a = _mm256_hadd_ps(a, a);
    a = _mm256_hadd_ps(a, a);
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)));
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* One row, one key: eight chains, or the multipliers would wait for each other. */
INLINE float dot_1x1(const mla_stream_block *b, int64_t n, mla_format format)
{
    __m256 x0 = _mm256_setzero_ps(), y0 = x0, x1 = x0, y1 = x0, x2 = x0, y2 = x0, x3 = x0, y3 = x0;
    for (int32_t i = 0; i < b->n_k_part; i++) {
        const void *row = b->k[i].row[n];
        const float *q = b->q + b->k[i].at;
        int64_t c = 0, n_col = b->k[i].n_col;
        __m256 x, y;
#define STEP_1X1(j)                                                                                            \
    load_step(column(row, c + (j) * STEP, format), format, &x, &y);                                            \
    x##j = _mm256_fmadd_ps(_mm256_loadu_ps(q + c + (j) * STEP), x, x##j);                                      \
    y##j = _mm256_fmadd_ps(_mm256_loadu_ps(q + c + (j) * STEP + 8), y, y##j);
        for (; c + 4 * STEP <= n_col; c += 4 * STEP) {
            STEP_1X1(0)
            STEP_1X1(1)
            STEP_1X1(2)
            STEP_1X1(3)
        }
        for (; c + STEP <= n_col; c += STEP) {
            STEP_1X1(0)
        }
        if (c < n_col) {
            load_tail(row, c, n_col, format, &x, &y);
            x1 = _mm256_fmadd_ps(_mm256_loadu_ps(q + c), x, x1);
            y1 = _mm256_fmadd_ps(_mm256_loadu_ps(q + c + 8), y, y1);
        }
#undef STEP_1X1
    }
    __m256 even = _mm256_add_ps(_mm256_add_ps(x0, x1), _mm256_add_ps(x2, x3));
    __m256 odd = _mm256_add_ps(_mm256_add_ps(y0, y1), _mm256_add_ps(y2, y3));
    return sum_lanes(_mm256_add_ps(even, odd));
}

/* Two rows, two keys; s[key][row]. */
INLINE void dot_2x2(const mla_stream_block *b, int32_t r, int64_t n, mla_format format, float *s)
{
    __m256 x00 = _mm256_setzero_ps(), y00 = x00, x01 = x00, y01 = x00, x10 = x00, y10 = x00, x11 = x00, y11 = x00;
    for (int32_t i = 0; i < b->n_k_part; i++) {
        const void *row0 = b->k[i].row[n], *row1 = b->k[i].row[n + 1];
        const float *q0 = b->q + r * b->stride + b->k[i].at, *q1 = q0 + b->stride;
        int64_t c = 0, n_col = b->k[i].n_col;
        __m256 x, y;
#define STEP_2X2                                                                           \
    __m256 u0 = _mm256_loadu_ps(q0 + c), w0 = _mm256_loadu_ps(q0 + c + 8);                  \
    __m256 u1 = _mm256_loadu_ps(q1 + c), w1 = _mm256_loadu_ps(q1 + c + 8);                  \
    PIN(u0);                                                                               \
    PIN(w0);                                                                               \
    PIN(u1);                                                                               \
    PIN(w1);
#define KEY_2X2(k)                               \
    x0##k = _mm256_fmadd_ps(u0, x, x0##k);       \
    y0##k = _mm256_fmadd_ps(w0, y, y0##k);       \
    x1##k = _mm256_fmadd_ps(u1, x, x1##k);       \
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

/* All rows against the pair of keys at n; s[key][row]. With several rows a key that stands alone is paired with the one
 * after it, and an odd row with the zeros behind the last query; what comes of these is not used. */
INLINE void scores(const mla_stream_block *b, int64_t n, int64_t n_pair, mla_format format, float *s)
{
    if (b->n_row == 1) {
        for (int64_t k = 0; k < n_pair; k++) {
            s[k * ROWS] = dot_1x1(b, n + k, format);
        }
        return;
    }
    for (int32_t r = 0; r < b->n_row; r += 2) {
        dot_2x2(b, r, n, format, s);
    }
}

/* ---- probabilities ----------------------------------------------------------------------------------------------- */

/* Scores of one key become finished base-2 scores of all rows. */
INLINE __m256 finish(const mla_stream_block *b, int64_t n, const float *s)
{
    __m256 raw = b->n_row == 1 ? _mm256_broadcast_ss(s) : _mm256_loadu_ps(s);
    __m256 t = _mm256_mul_ps(raw, _mm256_loadu_ps(b->scale));
    if (b->addend) {
        __m256 addend = _mm256_loadu_ps(b->addend + n * ROWS);
        __m256 hidden = _mm256_cmp_ps(addend, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ);
        t = _mm256_blendv_ps(_mm256_add_ps(t, addend), addend, hidden);
    }
    return t;
}

static void scale_rows(const mla_stream_block *b, const float *factor)
{
    for (int32_t r = 0; r < b->n_row; r++) {
        __m256 f = _mm256_broadcast_ss(factor + r);
        for (int64_t c = 0; c < b->stride; c += 8) {
            float *o = b->o + r * b->stride + c;
            _mm256_storeu_ps(o, _mm256_mul_ps(_mm256_loadu_ps(o), f));
        }
    }
}

typedef struct running {
    __m256 m, l, max;
} running;

/* Turns the scores s of a pair into probabilities, in place, and accounts for them. */
INLINE void probabilities(const mla_stream_block *b, int64_t n, int64_t n_pair, float *s, running *run)
{
    const __m256 nothing = _mm256_set1_ps(-INFINITY);
    __m256 t0 = finish(b, n, s), t1 = n_pair > 1 ? finish(b, n + 1, s + ROWS) : nothing;
    __m256 top = _mm256_max_ps(t1, _mm256_max_ps(t0, nothing)); /* operand order: a NaN does not become the maximum */
    run->max = _mm256_max_ps(top, run->max);
    __m256 limit = _mm256_add_ps(run->m, _mm256_set1_ps(MLA_RESCALE_SLACK));
    __m256 grown = _mm256_cmp_ps(top, limit, _CMP_GT_OQ); /* from -inf, too: nothing seen so far */
    if (__builtin_expect(_mm256_movemask_ps(grown), 0)) {
        __m256 m = _mm256_blendv_ps(run->m, top, grown), fresh = _mm256_cmp_ps(run->m, nothing, _CMP_EQ_OQ);
        __m256 factor = _mm256_blendv_ps(_mm256_set1_ps(1.0f), exp2_avx2(_mm256_sub_ps(run->m, m)),
                                         _mm256_andnot_ps(fresh, grown));
        float lanes[ROWS];
        _mm256_storeu_ps(lanes, factor);
        run->m = m;
        run->l = _mm256_mul_ps(run->l, factor);
        scale_rows(b, lanes);
    }
    /* a row that has seen nothing keeps m = -inf; its probabilities are taken relative to 0 and come out as 0 */
    __m256 base = _mm256_blendv_ps(run->m, _mm256_setzero_ps(), _mm256_cmp_ps(run->m, nothing, _CMP_EQ_OQ));
    __m256 p0 = exp2_avx2(_mm256_sub_ps(t0, base)), p1 = exp2_avx2(_mm256_sub_ps(t1, base));
    run->l = _mm256_add_ps(_mm256_add_ps(run->l, p0), p1);
    _mm256_storeu_ps(s, p0);
    _mm256_storeu_ps(s + ROWS, p1);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* o[row] += p[key] * value[key] over two keys of one row; fetches two rows ahead. */
INLINE void values_1x2(const mla_stream_part *v, int64_t n, float *o, const float *p, mla_format format)
{
    const void *row0 = v->row[n], *row1 = v->row[n + 1];
    const void *ahead0 = v->row[n + MLA_STREAM_AHEAD], *ahead1 = v->row[n + 1 + MLA_STREAM_AHEAD];
    __m256 w0 = _mm256_broadcast_ss(p), w1 = _mm256_broadcast_ss(p + ROWS), x, y;
    int64_t c = 0;
#define STEP_1X2(LOAD0, LOAD1)                                                              \
    {                                                                                       \
        __m256 sum_x = _mm256_loadu_ps(o + c), sum_y = _mm256_loadu_ps(o + c + 8);          \
        LOAD0;                                                                              \
        sum_x = _mm256_fmadd_ps(w0, x, sum_x);                                              \
        sum_y = _mm256_fmadd_ps(w0, y, sum_y);                                              \
        LOAD1;                                                                              \
        _mm256_storeu_ps(o + c, _mm256_fmadd_ps(w1, x, sum_x));                             \
        _mm256_storeu_ps(o + c + 8, _mm256_fmadd_ps(w1, y, sum_y));                         \
    }
#define WHOLE_1X2                                                       \
    STEP_1X2(load_step(column(row0, c, format), format, &x, &y),        \
             load_step(column(row1, c, format), format, &x, &y))        \
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
    const void *ahead0 = v->row[n + (first ? MLA_STREAM_AHEAD : 0)], *ahead1 = v->row[n + 1 + (first ? MLA_STREAM_AHEAD : 0)];
    __m256 w00 = _mm256_broadcast_ss(p), w01 = _mm256_broadcast_ss(p + ROWS);
    __m256 w10 = _mm256_broadcast_ss(p + 1), w11 = _mm256_broadcast_ss(p + ROWS + 1), x, y;
    int64_t c = 0;
#define STEP_2X2(LOAD0, LOAD1)                                                                         \
    {                                                                                                  \
        __m256 sum_x0 = _mm256_loadu_ps(o + c), sum_y0 = _mm256_loadu_ps(o + c + 8);                    \
        __m256 sum_x1 = _mm256_loadu_ps(o + stride + c), sum_y1 = _mm256_loadu_ps(o + stride + c + 8);  \
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
#define WHOLE_2X2                                                       \
    STEP_2X2(load_step(column(row0, c, format), format, &x, &y),        \
             load_step(column(row1, c, format), format, &x, &y))        \
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

/* One key for one row. */
static void values_1x1(const mla_stream_part *v, int64_t n, float *o, float weight, mla_format format)
{
    __m256 w = _mm256_set1_ps(weight), x, y;
    for (int64_t c = 0; c < v->n_col; c += STEP) {
        if (c + STEP <= v->n_col) {
            load_step(column(v->row[n], c, format), format, &x, &y);
        } else {
            load_tail(v->row[n], c, v->n_col, format, &x, &y);
        }
        _mm256_storeu_ps(o + c, _mm256_fmadd_ps(w, x, _mm256_loadu_ps(o + c)));
        _mm256_storeu_ps(o + c + 8, _mm256_fmadd_ps(w, y, _mm256_loadu_ps(o + c + 8)));
    }
}

INLINE void values(const mla_stream_block *b, int64_t n, int64_t n_pair, const float *p, mla_format format)
{
    for (int32_t i = 0; i < b->n_v_part; i++) {
        const mla_stream_part *v = &b->v[i];
        float *o = b->o + v->at;
        if (b->addend || n_pair == 1) {
            /* (row, key) by (row, key): a hidden value may be NaN, and 0 * NaN is NaN */
            for (int64_t k = 0; k < n_pair; k++) {
                for (int32_t r = 0; r < b->n_row; r++) {
                    if (!b->addend || b->addend[(n + k) * ROWS + r] != -INFINITY) {
                        values_1x1(v, n + k, o + r * b->stride, p[k * ROWS + r], format);
                    }
                }
            }
            continue;
        }
        for (int32_t r = 0; r < b->n_row; r += 2) {
            if (r + 1 < b->n_row) {
                values_2x2(v, n, o + r * b->stride, b->stride, p + r, r == 0, format);
            } else {
                values_1x2(v, n, o + r * b->stride, p + r, format);
            }
        }
    }
}

/* Columns of a key that are no value, which the values' loops leave out. */
INLINE void fetch_rest(const mla_stream_block *b, int64_t n, mla_format format)
{
    for (int32_t i = 0; i < b->n_k_part; i++) {
        const mla_stream_part *k = &b->k[i];
        bool shared = i < b->n_v_part && b->v[i].row == k->row;
        for (int64_t c = shared ? b->v[i].n_col : 0; c < k->n_col; c += 2 * STEP) {
            fetch(k->row[n + MLA_STREAM_AHEAD], c, format);
            fetch(k->row[n + 1 + MLA_STREAM_AHEAD], c, format);
        }
    }
}

/* ---- the block --------------------------------------------------------------------------------------------------- */

INLINE void stream(const mla_stream_block *b, mla_format format)
{
    _Alignas(32) float s[2][2 * ROWS] = {{0}}; /* [pair][key][row]: this pair's probabilities, the next one's scores */
    running run = {_mm256_loadu_ps(b->state->m), _mm256_loadu_ps(b->state->l), _mm256_loadu_ps(b->state->max)};
    int64_t n = 0, n_pair = b->odd || b->n_key == 1 ? 1 : 2;
    int which = 0;
    scores(b, n, n_pair, format, s[which]);
    probabilities(b, n, n_pair, s[which], &run);
    while (n < b->n_key) {
        int64_t next = n + n_pair, n_next = b->n_key - next < 2 ? b->n_key - next : 2;
        if (n_next > 0) {
            scores(b, next, n_next, format, s[1 - which]);
        }
        fetch_rest(b, n, format);
        values(b, n, n_pair, s[which], format);
        which = 1 - which;
        if (n_next > 0) {
            probabilities(b, next, n_next, s[which], &run);
        }
        n = next;
        n_pair = n_next;
    }
    _mm256_storeu_ps(b->state->m, run.m);
    _mm256_storeu_ps(b->state->l, run.l);
    _mm256_storeu_ps(b->state->max, run.max);
}

void mla_stream_f32_avx2(const mla_stream_block *block)
{
    stream(block, MLA_FORMAT_F32);
}

void mla_stream_f16_avx2(const mla_stream_block *block)
{
    stream(block, MLA_FORMAT_F16);
}

void mla_stream_bf16_avx2(const mla_stream_block *block)
{
    stream(block, MLA_FORMAT_BF16);
}
