/*
 * softmax_avx2.c - online softmax over a score panel [key][16], all of it vertical: a lane is a row.
 */
#include <immintrin.h>
#include <math.h>

#include "exp2_avx2.h"
#include "tables_avx2.h"

enum { ROWS = MLA_ROW_PANEL };

/* Lanes whose visible range holds key n. */
static inline __m256 sees(__m256i begin, __m256i end, int64_t n)
{
    __m256i key = _mm256_set1_epi32((int)n);
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(begin, key), _mm256_cmpgt_epi32(end, key)));
}

/* Scores of eight rows in place, -inf where they are hidden; returns the largest of each row. */
static inline __m256 scale_and_hide(float *s, int64_t n_key, const float *scale, const int32_t *begin,
                                    const int32_t *end, const float *mask)
{
    const __m256 nothing = _mm256_set1_ps(-INFINITY);
    __m256 c = _mm256_loadu_ps(scale), top = nothing;
    if (!begin && !mask) {
        /* two chains, for one would wait for itself; operand order: a NaN does not become the maximum */
        __m256 other = nothing;
        for (int64_t n = 0; n < n_key; n += 2) {
            __m256 t = below_infinity_avx2(_mm256_mul_ps(_mm256_loadu_ps(s + n * ROWS), c));
            _mm256_storeu_ps(s + n * ROWS, t);
            top = _mm256_max_ps(t, top);
            if (n + 1 < n_key) {
                t = below_infinity_avx2(_mm256_mul_ps(_mm256_loadu_ps(s + (n + 1) * ROWS), c));
                _mm256_storeu_ps(s + (n + 1) * ROWS, t);
                other = _mm256_max_ps(t, other);
            }
        }
        top = _mm256_max_ps(top, other);
    } else {
        __m256i from = begin ? _mm256_loadu_si256((const __m256i *)begin) : _mm256_setzero_si256();
        __m256i to = end ? _mm256_loadu_si256((const __m256i *)end) : _mm256_set1_epi32((int)n_key);
        for (int64_t n = 0; n < n_key; n++) {
            __m256 t = _mm256_mul_ps(_mm256_loadu_ps(s + n * ROWS), c);
            __m256 seen = sees(from, to, n);
            if (mask) {
                __m256 addend = _mm256_loadu_ps(mask + n * ROWS);
                t = _mm256_add_ps(t, addend);
                seen = _mm256_and_ps(seen, _mm256_cmp_ps(addend, nothing, _CMP_NEQ_UQ));
            }
            t = _mm256_blendv_ps(nothing, below_infinity_avx2(t), seen);
            _mm256_storeu_ps(s + n * ROWS, t);
            top = _mm256_max_ps(t, top);
        }
    }
    return top;
}

/* Eight rows of the panel; returns whether any of them must rescale. */
static bool softmax_half(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                         const float *mask, float *m, float *l, float *max, float *factor)
{
    const __m256 nothing = _mm256_set1_ps(-INFINITY);
    __m256 top = scale_and_hide(s, n_key, scale, begin, end, mask);
    __m256 old = _mm256_loadu_ps(m);
    __m256 grown = _mm256_cmp_ps(top, _mm256_add_ps(old, _mm256_set1_ps(MLA_RESCALE_SLACK)), _CMP_GT_OQ);
    __m256 fresh = _mm256_cmp_ps(old, nothing, _CMP_EQ_OQ);
    __m256 now = _mm256_blendv_ps(old, top, _mm256_or_ps(grown, fresh));
    __m256 one = _mm256_set1_ps(1.0f);
    __m256 shrink = _mm256_blendv_ps(one, exp2_avx2(_mm256_sub_ps(old, now)), _mm256_andnot_ps(fresh, grown));
    /* a row that has seen nothing keeps m = -inf; its probabilities are taken relative to 0 and come out as 0 */
    __m256 base = _mm256_blendv_ps(now, _mm256_setzero_ps(), _mm256_cmp_ps(now, nothing, _CMP_EQ_OQ));
    __m256 sum = _mm256_setzero_ps();
    for (int64_t n = 0; n < n_key; n++) {
        __m256 p = exp2_avx2(_mm256_sub_ps(_mm256_loadu_ps(s + n * ROWS), base));
        _mm256_storeu_ps(s + n * ROWS, p);
        sum = _mm256_add_ps(sum, p);
    }
    _mm256_storeu_ps(m, now);
    _mm256_storeu_ps(l, _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(l), shrink), sum));
    _mm256_storeu_ps(max, _mm256_max_ps(top, _mm256_loadu_ps(max)));
    _mm256_storeu_ps(factor, shrink);
    return _mm256_movemask_ps(_mm256_cmp_ps(shrink, one, _CMP_NEQ_UQ)) != 0;
}

bool mla_softmax_f32_avx2(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                          const float *mask, mla_row_state *state, float *factor)
{
    bool low = softmax_half(s, n_key, scale, begin, end, mask, state->m, state->l, state->max, factor);
    bool high = softmax_half(s + 8, n_key, scale + 8, begin ? begin + 8 : NULL, end ? end + 8 : NULL,
                             mask ? mask + 8 : NULL, state->m + 8, state->l + 8, state->max + 8, factor + 8);
    return low || high;
}

void mla_peak_f32_avx2(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                       const float *mask, float *top)
{
    for (int r = 0; r < ROWS; r += 8) {
        __m256 t = scale_and_hide(s + r, n_key, scale + r, begin ? begin + r : NULL, end ? end + r : NULL,
                                  mask ? mask + r : NULL);
        _mm256_storeu_ps(top + r, _mm256_max_ps(t, _mm256_loadu_ps(top + r)));
    }
}
