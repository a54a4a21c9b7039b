/*
 * exp2_avx2.h - the exponential of the softmax kernels.
 */
#ifndef MLA_CPU_EXP2_AVX2_H
#define MLA_CPU_EXP2_AVX2_H

#include <float.h>
#include <immintrin.h>

#include "cpu/exp2_polynomial.h"
#include "cpu/kernels.h"

/*
 * 2^x for x <= MLA_RESCALE_SLACK. x = n + f with n an integer and |f| <= 1/2; 2^f by a polynomial of degree 6 (relative
 * error below 1.1e-7 with its roundings), 2^n by adding n to the exponent. Below 2^-126 the result is 0, whatever the
 * steps have made of x: such a weight is invisible beside the 1 that the largest key contributes. NaN stays NaN.
 */
static inline __m256 exp2_avx2(__m256 x)
{
    __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
    __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_sub_ps(x, n);
    __m256 y = _mm256_set1_ps(MLA_EXP2_C6);
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(MLA_EXP2_C5));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(MLA_EXP2_C4));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(MLA_EXP2_C3));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(MLA_EXP2_C2));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(MLA_EXP2_C1));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(1.0f));
    __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), exponent));
    return _mm256_andnot_ps(tiny, y);
}

/* A score beyond fp32 counts as its largest number, so that no difference of infinities arises. NaN stays NaN. */
static inline __m256 below_infinity_avx2(__m256 x)
{
    return _mm256_min_ps(_mm256_set1_ps(FLT_MAX), x); /* operand order: NaN in x wins */
}

#endif
