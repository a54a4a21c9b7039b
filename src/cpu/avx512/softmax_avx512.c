/*
 * softmax_avx512.c - online softmax over a score panel [key][16], all of it vertical: a lane is a row.
 */
#include <float.h>
#include <immintrin.h>
#include <math.h>

#include "cpu/exp2_polynomial.h"
#include "tables_avx512.h"

enum { ROWS = MLA_ROW_PANEL };

/*
 * 2^x for x <= MLA_RESCALE_SLACK. x = n + f with n an integer and |f| <= 1/2; 2^f by a polynomial of degree 6 (relative
 * error below 1.1e-7 with its roundings), times 2^n. Below 2^-126 the result is 0: such a weight is invisible beside
 * the 1 that the largest key contributes. NaN stays NaN.
 */
static inline __m512 exp2_avx512(__m512 x)
{
    __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 y = _mm512_set1_ps(MLA_EXP2_C6);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(MLA_EXP2_C5));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(MLA_EXP2_C4));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(MLA_EXP2_C3));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(MLA_EXP2_C2));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(MLA_EXP2_C1));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(kept, y, n);
}

/* A score beyond fp32 counts as its largest number, so that no difference of infinities arises. NaN stays NaN. */
static inline __m512 below_infinity_avx512(__m512 x)
{
    return _mm512_min_ps(_mm512_set1_ps(FLT_MAX), x); /* operand order: NaN in x wins */
}

bool mla_softmax_f32_avx512(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                            const float *mask, mla_row_state *state, float *factor)
{
    const __m512 nothing = _mm512_set1_ps(-INFINITY), one = _mm512_set1_ps(1.0f);
    __m512 c = _mm512_loadu_ps(scale), top = nothing;
    if (!begin && !mask) {
        for (int64_t n = 0; n < n_key; n++) {
            __m512 t = below_infinity_avx512(_mm512_mul_ps(_mm512_loadu_ps(s + n * ROWS), c));
            _mm512_storeu_ps(s + n * ROWS, t);
            top = _mm512_max_ps(t, top); /* operand order: a NaN does not become the maximum */
        }
    } else {
        __m512i from = begin ? _mm512_loadu_si512(begin) : _mm512_setzero_si512();
        __m512i to = end ? _mm512_loadu_si512(end) : _mm512_set1_epi32((int)n_key);
        for (int64_t n = 0; n < n_key; n++) {
            __m512i key = _mm512_set1_epi32((int)n);
            __mmask16 seen = _mm512_cmple_epi32_mask(from, key) & _mm512_cmplt_epi32_mask(key, to);
            __m512 t = _mm512_mul_ps(_mm512_loadu_ps(s + n * ROWS), c);
            if (mask) {
                __m512 addend = _mm512_loadu_ps(mask + n * ROWS);
                t = _mm512_add_ps(t, addend);
                seen &= _mm512_cmp_ps_mask(addend, nothing, _CMP_NEQ_UQ);
            }
            t = _mm512_mask_blend_ps(seen, nothing, below_infinity_avx512(t));
            _mm512_storeu_ps(s + n * ROWS, t);
            top = _mm512_max_ps(t, top);
        }
    }

    __m512 old = _mm512_loadu_ps(state->m);
    __mmask16 fresh = _mm512_cmp_ps_mask(old, nothing, _CMP_EQ_OQ);
    __mmask16 grown = _mm512_cmp_ps_mask(top, _mm512_add_ps(old, _mm512_set1_ps(MLA_RESCALE_SLACK)), _CMP_GT_OQ);
    __m512 now = _mm512_mask_blend_ps(grown | fresh, old, top);
    __m512 shrink = _mm512_mask_blend_ps((__mmask16)(grown & ~fresh), one, exp2_avx512(_mm512_sub_ps(old, now)));
    /* a row that has seen nothing keeps m = -inf; its probabilities are taken relative to 0 and come out as 0 */
    __m512 base = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(now, nothing, _CMP_NEQ_UQ), now);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t n = 0; n < n_key; n++) {
        __m512 p = exp2_avx512(_mm512_sub_ps(_mm512_loadu_ps(s + n * ROWS), base));
        _mm512_storeu_ps(s + n * ROWS, p);
        sum = _mm512_add_ps(sum, p);
    }
    _mm512_storeu_ps(state->m, now);
    _mm512_storeu_ps(state->l, _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(state->l), shrink), sum));
    _mm512_storeu_ps(state->max, _mm512_max_ps(top, _mm512_loadu_ps(state->max)));
    _mm512_storeu_ps(factor, shrink);
    return _mm512_cmp_ps_mask(shrink, one, _CMP_NEQ_UQ) != 0;
}
