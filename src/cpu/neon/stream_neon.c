/*
 * stream_neon.c - few rows against keys where they lie.
 *
 * Keys go by in pairs: scores, probabilities, values, then the next pair; lines further ahead are fetched in the values'
 * loop. Two to four rows share the conversion of a pair. A step of 8 columns becomes two vectors of fp32, in order. Each
 * score and each accumulator is summed in an order of its own row's and key's, so its bits do not depend on how many rows
 * go together.
 */
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "exp2_neon.h"
#include "tables_neon.h"

enum { ROWS = MLA_STREAM_ROWS, STEP = 8, LANES = 4, LINE = 64 };
#define INLINE static inline __attribute__((always_inline))

INLINE int64_t bytes_of(int64_t n_col, mla_format format)
{
    return n_col * (format == MLA_FORMAT_F32 ? 4 : 2);
}

/* The two vectors of the step that starts at p. */
INLINE void load_step(const char *p, mla_format format, float32x4_t *x, float32x4_t *y)
{
    if (format == MLA_FORMAT_F32) {
        *x = vld1q_f32((const float *)p);
        *y = vld1q_f32((const float *)p + 4);
        return;
    }
    uint16x8_t half = vld1q_u16((const uint16_t *)p);
    if (format == MLA_FORMAT_BF16) {
        *x = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(half), 16));
        *y = vreinterpretq_f32_u32(vshll_high_n_u16(half, 16));
    } else {
        *x = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(half)));
        *y = vcvt_high_f32_f16(vreinterpretq_f16_u16(half));
    }
}

/* The columns [c, c + STEP) of a row; those from n_col on are 0, and nothing behind the row is read. */
INLINE void load_columns(const void *row, int64_t c, int64_t n_col, mla_format format, float32x4_t *x, float32x4_t *y)
{
    const char *p = (const char *)row + bytes_of(c, format);
    char buffer[STEP * sizeof(float)] = {0};
    if (c + STEP > n_col) {
        memcpy(buffer, p, (size_t)bytes_of(n_col - c, format));
        p = buffer;
    }
    load_step(p, format, x, y);
}

/* Fetches the 32 columns from c on into the first-level cache: a line, or two of fp32. */
INLINE void fetch(const void *row, int64_t c, mla_format format)
{
    const char *at = (const char *)row + bytes_of(c, format);
    __builtin_prefetch(at, 0, 3);
    if (format == MLA_FORMAT_F32) {
        __builtin_prefetch(at + LINE, 0, 3);
    }
}

/* Four steps in a row. */
#define FOUR(WORK)  \
    WORK c += STEP; \
    WORK c += STEP; \
    WORK c += STEP; \
    WORK c += STEP;

#define ROWS1(M) M(0)
#define ROWS2(M) M(0) M(1)
#define ROWS4(M) M(0) M(1) M(2) M(3)

/* ---- scores ------------------------------------------------------------------------------------------------------ */

#define ZERO(r)                                                     \
    float32x4_t x##r##0 = vdupq_n_f32(0), y##r##0 = vdupq_n_f32(0); \
    float32x4_t x##r##1 = vdupq_n_f32(0), y##r##1 = vdupq_n_f32(0);
#define QUERY(r)                                           \
    float32x4_t u##r = vld1q_f32(q + (r) * b->stride + c); \
    float32x4_t w##r = vld1q_f32(q + (r) * b->stride + c + 4);
#define DOT0(r)                            \
    x##r##0 = vfmaq_f32(x##r##0, u##r, x); \
    y##r##0 = vfmaq_f32(y##r##0, w##r, y);
#define DOT1(r)                            \
    x##r##1 = vfmaq_f32(x##r##1, u##r, x); \
    y##r##1 = vfmaq_f32(y##r##1, w##r, y);
#define SUM(r)                                        \
    s[(r)] = vaddvq_f32(vaddq_f32(x##r##0, y##r##0)); \
    s[ROWS + (r)] = vaddvq_f32(vaddq_f32(x##r##1, y##r##1));
#define DOT_STEP(N, WIDTH)                            \
    {                                                 \
        float32x4_t x, y;                             \
        N(QUERY)                                      \
        load_columns(row0, c, WIDTH, format, &x, &y); \
        N(DOT0)                                       \
        load_columns(row1, c, WIDTH, format, &x, &y); \
        N(DOT1)                                       \
    }
/* Some rows from r on against the keys at n and n + 1, into s[key][row]. In fours: not where registers would not do. */
#define DOT_BODY(N, IN_FOURS)                                \
    N(ZERO)                                                  \
    for (int32_t i = 0; i < b->n_k_part; i++) {              \
        const mla_stream_part *k = &b->k[i];                 \
        const void *row0 = k->row[n], *row1 = k->row[n + 1]; \
        const float *q = b->q + r * b->stride + k->at;       \
        int64_t c = 0;                                       \
        while (IN_FOURS && c + 4 * STEP <= k->n_col) {       \
            FOUR(DOT_STEP(N, c + STEP))                      \
        }                                                    \
        for (; c + STEP <= k->n_col; c += STEP) {            \
            DOT_STEP(N, c + STEP)                            \
        }                                                    \
        if (c < k->n_col) {                                  \
            DOT_STEP(N, k->n_col)                            \
        }                                                    \
    }                                                        \
    s += r;                                                  \
    N(SUM)

INLINE void dot_1(const mla_stream_block *b, int32_t r, int64_t n, mla_format format, float *s)
{
    DOT_BODY(ROWS1, true);
}

INLINE void dot_2(const mla_stream_block *b, int32_t r, int64_t n, mla_format format, float *s)
{
    DOT_BODY(ROWS2, true);
}

INLINE void dot_4(const mla_stream_block *b, int32_t r, int64_t n, mla_format format, float *s)
{
    DOT_BODY(ROWS4, false);
}

/* All rows against the pair of keys at n. A key that stands alone is paired with the one after it, and an odd row with the
 * zeros behind the last query; what comes of these is not used. */
INLINE void scores(const mla_stream_block *b, int64_t n, mla_format format, float *s)
{
    if (b->n_row == 1) {
        dot_1(b, 0, n, format, s);
        return;
    }
    int32_t r = 0;
    for (; r + 3 <= b->n_row; r += 4) {
        dot_4(b, r, n, format, s);
    }
    if (r < b->n_row) {
        dot_2(b, r, n, format, s);
    }
}

/* ---- probabilities ----------------------------------------------------------------------------------------------- */

/* Scores of one key become finished base-2 scores of four rows. */
INLINE float32x4_t finish(const mla_stream_block *b, int64_t n, int32_t r, const float *s)
{
    float32x4_t t = vmulq_f32(vld1q_f32(s + r), vld1q_f32(b->scale + r));
    if (b->addend) {
        float32x4_t addend = vld1q_f32(b->addend + n * ROWS + r);
        return vbslq_f32(vceqq_f32(addend, vdupq_n_f32(-INFINITY)), addend, vaddq_f32(t, addend));
    }
    return t;
}

/* Rows [r, r + 4), as far as there are so many. */
static void scale_rows(const mla_stream_block *b, int32_t r, float32x4_t factor)
{
    float lane[LANES];
    vst1q_f32(lane, factor);
    for (int32_t i = 0; i < LANES && r + i < b->n_row; i++) {
        for (int64_t c = 0; c < b->stride; c += 4) {
            float *o = b->o + (r + i) * b->stride + c;
            vst1q_f32(o, vmulq_n_f32(vld1q_f32(o), lane[i]));
        }
    }
}

typedef struct running {
    float32x4_t m, l, max;
} running;

/* Turns the scores s of a pair into probabilities of four rows, in place, and accounts for them. */
INLINE void probabilities(const mla_stream_block *b, int64_t n, int64_t n_pair, int32_t r, float *s, running *run)
{
    const float32x4_t nothing = vdupq_n_f32(-INFINITY);
    float32x4_t t0 = finish(b, n, r, s), t1 = n_pair > 1 ? finish(b, n + 1, r, s + ROWS) : nothing;
    float32x4_t top = larger_neon(larger_neon(t0, nothing), t1);
    uint32x4_t grown = vcgtq_f32(top, vaddq_f32(run->m, vdupq_n_f32(MLA_RESCALE_SLACK))); /* from -inf, too */
    if (__builtin_expect(vmaxvq_u32(grown) != 0, 0)) {
        t0 = below_infinity_neon(t0); /* an infinite score always leads here */
        t1 = below_infinity_neon(t1);
        top = below_infinity_neon(top);
        float32x4_t m = vbslq_f32(grown, top, run->m);
        uint32x4_t fresh = vceqq_f32(run->m, nothing);
        float32x4_t factor = vbslq_f32(vbicq_u32(grown, fresh), exp2_neon(vsubq_f32(run->m, m)), vdupq_n_f32(1));
        run->m = m;
        run->l = vmulq_f32(run->l, factor);
        scale_rows(b, r, factor);
    }
    run->max = larger_neon(run->max, top);
    /* a row that has seen nothing keeps m = -inf; its probabilities are taken relative to 0 and come out as 0 */
    float32x4_t base = vbslq_f32(vceqq_f32(run->m, nothing), vdupq_n_f32(0), run->m);
    float32x4_t p0 = exp2_neon(vsubq_f32(t0, base)), p1 = exp2_neon(vsubq_f32(t1, base));
    run->l = vaddq_f32(vaddq_f32(run->l, p0), p1);
    vst1q_f32(s + r, p0);
    vst1q_f32(s + ROWS + r, p1);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* One key for one row. */
INLINE void values_alone(const mla_stream_part *v, int64_t n, float *o, float weight, mla_format format)
{
    for (int64_t c = 0; c < v->n_col; c += STEP) {
        float32x4_t x, y;
        load_columns(v->row[n], c, v->n_col, format, &x, &y);
        vst1q_f32(o + c, vfmaq_n_f32(vld1q_f32(o + c), x, weight));
        vst1q_f32(o + c + 4, vfmaq_n_f32(vld1q_f32(o + c + 4), y, weight));
    }
}

#define WEIGHTS(r) float p##r##0 = p[(r)], p##r##1 = p[ROWS + (r)];
#define VALUE(r)                                              \
    {                                                         \
        float *to = o + (r) * stride + c;                     \
        float32x4_t x = vld1q_f32(to), y = vld1q_f32(to + 4); \
        x = vfmaq_n_f32(x, x0, p##r##0);                      \
        y = vfmaq_n_f32(y, y0, p##r##0);                      \
        vst1q_f32(to, vfmaq_n_f32(x, x1, p##r##1));           \
        vst1q_f32(to + 4, vfmaq_n_f32(y, y1, p##r##1));       \
    }
#define VALUE_STEP(N, WIDTH)                            \
    {                                                   \
        float32x4_t x0, y0, x1, y1;                     \
        load_columns(row0, c, WIDTH, format, &x0, &y0); \
        load_columns(row1, c, WIDTH, format, &x1, &y1); \
        N(VALUE)                                        \
    }
/* o[row] += p[key][row] * value[key] over a pair of keys; fetches the pair of rows from `ahead` on. */
#define VALUES_BODY(N)                                   \
    const void *row0 = v->row[n], *row1 = v->row[n + 1]; \
    N(WEIGHTS)                                           \
    int64_t c = 0;                                       \
    while (c + 4 * STEP <= v->n_col) {                   \
        fetch(v->row[ahead], c, format);                 \
        fetch(v->row[ahead + 1], c, format);             \
        FOUR(VALUE_STEP(N, c + STEP))                    \
    }                                                    \
    for (; c + STEP <= v->n_col; c += STEP) {            \
        VALUE_STEP(N, c + STEP)                          \
    }                                                    \
    if (c < v->n_col) {                                  \
        VALUE_STEP(N, v->n_col)                          \
    }
#define VALUES_ARGUMENTS \
    const mla_stream_part *v, int64_t n, float *o, int64_t stride, const float *p, int64_t ahead, mla_format format

INLINE void values_1(VALUES_ARGUMENTS)
{
    (void)stride;
    VALUES_BODY(ROWS1)
}

INLINE void values_2(VALUES_ARGUMENTS){VALUES_BODY(ROWS2)}

INLINE void values_4(VALUES_ARGUMENTS){VALUES_BODY(ROWS4)}

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
                        values_alone(v, n + k, o + r * b->stride, p[k * ROWS + r], format);
                    }
                }
            }
            continue;
        }
        int64_t ahead = n + MLA_STREAM_AHEAD;
        int32_t r = 0, left;
        for (; (left = b->n_row - r) > 0; r += left >= 4 ? 4 : left >= 2 ? 2 : 1) {
            float *to = o + r * b->stride;
            if (left >= 4) {
                values_4(v, n, to, b->stride, p + r, ahead, format);
            } else if (left >= 2) {
                values_2(v, n, to, b->stride, p + r, ahead, format);
            } else {
                values_1(v, n, to, b->stride, p + r, ahead, format);
            }
            ahead = n; /* fetched once */
        }
    }
}

/* Columns of a key that are no value, which the values' loops leave out. */
INLINE void fetch_rest(const mla_stream_block *b, int64_t n, mla_format format)
{
    for (int32_t i = 0; i < b->n_k_part; i++) {
        const mla_stream_part *k = &b->k[i];
        bool shared = i < b->n_v_part && b->v[i].row == k->row;
        const char *ahead0 = k->row[n + MLA_STREAM_AHEAD], *ahead1 = k->row[n + 1 + MLA_STREAM_AHEAD];
        for (int64_t at = bytes_of(shared ? b->v[i].n_col : 0, format); at < bytes_of(k->n_col, format); at += LINE) {
            __builtin_prefetch(ahead0 + at, 0, 3);
            __builtin_prefetch(ahead1 + at, 0, 3);
        }
    }
}

INLINE void stream(const mla_stream_block *b, mla_format format)
{
    enum { QUARTERS = ROWS / LANES };
    float s[2 * ROWS] = {0}; /* [key][row]: scores, then probabilities */
    running run[QUARTERS];
    for (int i = 0; i < QUARTERS; i++) {
        run[i] = (running){vld1q_f32(b->state->m + i * LANES), vld1q_f32(b->state->l + i * LANES),
                           vld1q_f32(b->state->max + i * LANES)};
    }
    for (int64_t n = 0, n_pair; n < b->n_key; n += n_pair) {
        n_pair = (n == 0 && b->odd) || b->n_key - n == 1 ? 1 : 2;
        scores(b, n, format, s);
        for (int32_t i = 0; i * LANES < b->n_row; i++) {
            probabilities(b, n, n_pair, i * LANES, s, &run[i]);
        }
        fetch_rest(b, n, format);
        values(b, n, n_pair, s, format);
    }
    for (int i = 0; i < QUARTERS; i++) {
        vst1q_f32(b->state->m + i * LANES, run[i].m);
        vst1q_f32(b->state->l + i * LANES, run[i].l);
        vst1q_f32(b->state->max + i * LANES, run[i].max);
    }
}

void mla_stream_f32_neon(const mla_stream_block *block)
{
    stream(block, MLA_FORMAT_F32);
}

void mla_stream_f16_neon(const mla_stream_block *block)
{
    stream(block, MLA_FORMAT_F16);
}

void mla_stream_bf16_neon(const mla_stream_block *block)
{
    stream(block, MLA_FORMAT_BF16);
}
