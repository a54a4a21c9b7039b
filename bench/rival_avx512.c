/*
 * rival_avx512.c - the softmax between two products of bf16 matrices; see rival_bf16.h.
 */
#include "rival_bf16.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>

/* 2^x for x <= 8, 0 below -126. */
static inline __m512 exp2_avx512(__m512 x)
{
    __mmask16 alive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126), _CMP_GE_OQ);
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.5403530e-4f); /* what follows is rounded to bf16 */
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3333558e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(alive, p, n);
}

/* To bf16, nearest even; no NaN comes here. */
static inline __m256i narrow(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x), even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

void rival_softmax_avx512(float *score, int64_t n, float *m, float *l, float *o, int64_t d_v, uint16_t *p)
{
    int64_t n16 = (n + 15) / 16 * 16;
    for (int64_t i = n; i < n16; i++) {
        score[i] = -INFINITY;
    }
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (int64_t i = 0; i < n16; i += 16) {
        top = _mm512_max_ps(top, _mm512_loadu_ps(score + i));
    }
    float block_max = _mm512_reduce_max_ps(top);
    if (block_max > *m + 8) { /* also the first block, where *m is -inf */
        float factor = *m == -INFINITY ? 0 : exp2f(*m - block_max);
        *m = block_max;
        *l *= factor;
        for (int64_t c = 0; c < d_v; c += 16) {
            _mm512_storeu_ps(o + c, _mm512_mul_ps(_mm512_set1_ps(factor), _mm512_loadu_ps(o + c)));
        }
    }
    __m512 shift = _mm512_set1_ps(*m == -INFINITY ? 0 : *m), sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < n16; i += 16) {
        __m512 x = exp2_avx512(_mm512_sub_ps(_mm512_loadu_ps(score + i), shift));
        sum = _mm512_add_ps(sum, x);
        _mm256_storeu_si256((__m256i *)(p + i), narrow(x));
    }
    *l += _mm512_reduce_add_ps(sum);
}

#endif
