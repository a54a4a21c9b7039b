/*
 * stream_pairs.h - the stream kernel around its inner loops: pairs of keys, their probabilities, who may see them.
 *
 * Keys go by in pairs: scores, probabilities, values, then the next pair. Rows of the cache are read from front to back, one after the other, because that is what hardware
 * prefetchers follow; lines further ahead are fetched in the values' loop, where the memory would be idle.
 *
 * Included by the files that bring the inner loops for a vector width; everything here is inlined into them.
 */
#ifndef MLA_CPU_STREAM_PAIRS_H
#define MLA_CPU_STREAM_PAIRS_H

#include <immintrin.h>
#include <math.h>

#include "cpu/kernels.h"
#include "exp2_avx2.h"

enum { ROWS = MLA_STREAM_ROWS };
#define INLINE static inline __attribute__((always_inline))

/* Keeps a value in a register: compilers would rather load it again, and loads are what these loops are short of. */
#define PIN(x) __asm__("" : "+x"(x))

INLINE const char *column(const void *row, int64_t c, mla_format format)
{
    return (const char *)row + c * (format == MLA_FORMAT_F32 ? 4 : 2);
}

/* Fetches a line into the second-level cache: it has room for more requests to memory than the first, and from there to
 * the registers the way is short (docs/performance.md). */
INLINE void fetch_line(const char *at)
{
    __builtin_prefetch(at, 0, 2);
}

/* Fetches 32 columns. */
INLINE void fetch(const void *row, int64_t c, mla_format format)
{
    fetch_line(column(row, c, format));
    if (format == MLA_FORMAT_F32) {
        fetch_line(column(row, c + 16, format));
    }
}

/* The inner loops, for one vector width and one format. */
typedef struct stream_loops {
    /* Scores of one row against the key at n; NULL when one row alone does not come this way. */
    float (*dot_1x1)(const mla_stream_block *b, int64_t n, mla_format format);
    /* Scores of rows r and r + 1 against the keys at n and n + 1, into s[key][row]. */
    void (*dot_2x2)(const mla_stream_block *b, int32_t r, int64_t n, mla_format format, float *s);
    /* o[row] += p[key][row] * value[key]: one key for one row; two keys for one row, or for two. */
    void (*values_1x1)(const mla_stream_part *v, int64_t n, float *o, float weight, mla_format format);
    void (*values_1x2)(const mla_stream_part *v, int64_t n, float *o, const float *p, mla_format format);
    void (*values_2x2)(const mla_stream_part *v, int64_t n, float *o, int64_t stride, const float *p, bool first,
                       mla_format format);
} stream_loops;

/* All rows against the pair of keys at n; s[key][row]. With several rows a key that stands alone is paired with the one
 * after it, and an odd row with the zeros behind the last query; what comes of these is not used. */
INLINE void scores(const mla_stream_block *b, int64_t n, int64_t n_pair, const stream_loops *loops, mla_format format,
                   float *s)
{
    if (b->n_row == 1 && loops->dot_1x1) {
        for (int64_t k = 0; k < n_pair; k++) {
            s[k * ROWS] = loops->dot_1x1(b, n + k, format);
        }
        return;
    }
    for (int32_t r = 0; r < b->n_row; r += 2) {
        loops->dot_2x2(b, r, n, format, s);
    }
}

/* Scores of one key become finished base-2 scores of all rows. */
INLINE __m256 finish(const mla_stream_block *b, int64_t n, const float *s)
{
    __m256 raw = b->n_row == 1 ? _mm256_broadcast_ss(s) : _mm256_loadu_ps(s);
    __m256 t = _mm256_mul_ps(raw, _mm256_loadu_ps(b->scale));
    if (b->addend) {
        __m256 addend = _mm256_loadu_ps(b->addend + n * ROWS);
        __m256 hidden = _mm256_cmp_ps(addend, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ);
        return _mm256_blendv_ps(_mm256_add_ps(t, addend), addend, hidden);
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
    __m256 limit = _mm256_add_ps(run->m, _mm256_set1_ps(MLA_RESCALE_SLACK));
    __m256 grown = _mm256_cmp_ps(top, limit, _CMP_GT_OQ); /* from -inf, too: nothing seen so far */
    if (__builtin_expect(_mm256_movemask_ps(grown), 0)) {
        t0 = below_infinity_avx2(t0); /* an infinite score always leads here */
        t1 = below_infinity_avx2(t1);
        top = below_infinity_avx2(top);
        __m256 m = _mm256_blendv_ps(run->m, top, grown), fresh = _mm256_cmp_ps(run->m, nothing, _CMP_EQ_OQ);
        __m256 factor =
            _mm256_blendv_ps(_mm256_set1_ps(1.0f), exp2_avx2(_mm256_sub_ps(run->m, m)), _mm256_andnot_ps(fresh, grown));
        float lanes[ROWS];
        _mm256_storeu_ps(lanes, factor);
        run->m = m;
        run->l = _mm256_mul_ps(run->l, factor);
        scale_rows(b, lanes);
    }
    run->max = _mm256_max_ps(top, run->max);
    /* a row that has seen nothing keeps m = -inf; its probabilities are taken relative to 0 and come out as 0 */
    __m256 base = _mm256_blendv_ps(run->m, _mm256_setzero_ps(), _mm256_cmp_ps(run->m, nothing, _CMP_EQ_OQ));
    __m256 p0 = exp2_avx2(_mm256_sub_ps(t0, base)), p1 = exp2_avx2(_mm256_sub_ps(t1, base));
    run->l = _mm256_add_ps(_mm256_add_ps(run->l, p0), p1);
    _mm256_storeu_ps(s, p0);
    _mm256_storeu_ps(s + ROWS, p1);
}

INLINE void values(const mla_stream_block *b, int64_t n, int64_t n_pair, const float *p, const stream_loops *loops,
                   mla_format format)
{
    for (int32_t i = 0; i < b->n_v_part; i++) {
        const mla_stream_part *v = &b->v[i];
        float *o = b->o + v->at;
        if (b->addend || n_pair == 1) {
            /* (row, key) by (row, key): a hidden value may be NaN, and 0 * NaN is NaN */
            for (int64_t k = 0; k < n_pair; k++) {
                for (int32_t r = 0; r < b->n_row; r++) {
                    if (!b->addend || b->addend[(n + k) * ROWS + r] != -INFINITY) {
                        loops->values_1x1(v, n + k, o + r * b->stride, p[k * ROWS + r], format);
                    }
                }
            }
            continue;
        }
        for (int32_t r = 0; r < b->n_row; r += 2) {
            if (r + 1 < b->n_row) {
                loops->values_2x2(v, n, o + r * b->stride, b->stride, p + r, r == 0, format);
            } else {
                loops->values_1x2(v, n, o + r * b->stride, p + r, format);
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
        for (int64_t c = shared ? b->v[i].n_col : 0; c < k->n_col; c += 32) {
            fetch(k->row[n + MLA_STREAM_AHEAD], c, format);
            fetch(k->row[n + 1 + MLA_STREAM_AHEAD], c, format);
        }
    }
}

INLINE void stream_pairs(const mla_stream_block *b, const stream_loops *loops, mla_format format)
{
    _Alignas(32) float s[2 * ROWS] = {0}; /* [key][row]: scores, then probabilities */
    running run = {_mm256_loadu_ps(b->state->m), _mm256_loadu_ps(b->state->l), _mm256_loadu_ps(b->state->max)};
    for (int64_t n = 0, n_pair; n < b->n_key; n += n_pair) {
        n_pair = (n == 0 && b->odd) || b->n_key - n == 1 ? 1 : 2;
        scores(b, n, n_pair, loops, format, s);
        probabilities(b, n, n_pair, s, &run);
        fetch_rest(b, n, format);
        values(b, n, n_pair, s, loops, format);
    }
    _mm256_storeu_ps(b->state->m, run.m);
    _mm256_storeu_ps(b->state->l, run.l);
    _mm256_storeu_ps(b->state->max, run.max);
}

#endif
