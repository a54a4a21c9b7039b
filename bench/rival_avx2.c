/*
 * rival_avx2.c - the loops around the BLAS; see rival.h.
 */
#include "rival.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>

static inline __m256 widen(const uint16_t *from, bool f16)
{
    __m128i half = _mm_loadu_si128((const __m128i *)from);
    return f16 ? _mm256_cvtph_ps(half) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

void rival_widen_avx2(const uint16_t *from, int64_t n, bool f16, float factor, float *to)
{
    __m256 f = _mm256_set1_ps(factor);
    int64_t i = 0;
    if (factor == 1) {
        for (; i + 8 <= n; i += 8) {
            _mm256_storeu_ps(to + i, widen(from + i, f16));
        }
    } else {
        for (; i + 8 <= n; i += 8) {
            _mm256_storeu_ps(to + i, _mm256_mul_ps(widen(from + i, f16), f));
        }
    }
    if (i < n) {
        uint16_t rest[8] = {0};
        float wide[8];
        for (int64_t j = i; j < n; j++) {
            rest[j - i] = from[j];
        }
        _mm256_storeu_ps(wide, _mm256_mul_ps(widen(rest, f16), f));
        for (int64_t j = i; j < n; j++) {
            to[j] = wide[j - i];
        }
    }
}

/* 2^x for x <= 8: nearest integer apart, Taylor polynomial of degree 7 on [-1/2, 1/2] (error below 1 ulp), exponent by
 * addition. Below -126 the result is 0. */
static inline __m256 exp2_avx2(__m256 x)
{
    __m256 dead = _mm256_cmp_ps(x, _mm256_set1_ps(-126), _CMP_LT_OQ);
    x = _mm256_max_ps(x, _mm256_set1_ps(-126));
    __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_sub_ps(x, n);
    __m256 p = _mm256_set1_ps(1.5252734e-5f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.5403530e-4f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.3333558e-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(9.6181291e-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.5504109e-2f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.4022651e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.9314718e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
    return _mm256_andnot_ps(dead, p);
}

static inline float largest(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

static inline float total(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

void rival_softmax_avx2(float *score, int64_t n, float *m, float *l, float *o, int64_t d_v)
{
    /* scores are padded to whole vectors by the caller's buffer; the tail is made to vanish */
    int64_t n8 = (n + 7) / 8 * 8;
    for (int64_t i = n; i < n8; i++) {
        score[i] = -INFINITY;
    }
    __m256 top = _mm256_set1_ps(-INFINITY);
    for (int64_t i = 0; i < n8; i += 8) {
        top = _mm256_max_ps(top, _mm256_loadu_ps(score + i));
    }
    float block_max = largest(top);
    if (block_max > *m + 8) { /* also the first block, where *m is -inf */
        float factor = *m == -INFINITY ? 0 : exp2f(*m - block_max);
        *m = block_max;
        *l *= factor;
        __m256 f = _mm256_set1_ps(factor);
        for (int64_t c = 0; c < d_v; c += 8) {
            _mm256_storeu_ps(o + c, _mm256_mul_ps(f, _mm256_loadu_ps(o + c)));
        }
    }
    __m256 shift = _mm256_set1_ps(*m == -INFINITY ? 0 : *m), sum = _mm256_setzero_ps();
    for (int64_t i = 0; i < n8; i += 8) {
        __m256 p = exp2_avx2(_mm256_sub_ps(_mm256_loadu_ps(score + i), shift));
        sum = _mm256_add_ps(sum, p);
        _mm256_storeu_ps(score + i, p);
    }
    *l += total(sum);
}

void rival_add_avx2(float *o, const float *from, int64_t n, float factor, bool first)
{
    __m256 f = _mm256_set1_ps(factor);
    for (int64_t i = 0; i < n; i += 8) {
        __m256 x = _mm256_mul_ps(f, _mm256_loadu_ps(from + i));
        _mm256_storeu_ps(o + i, first ? x : _mm256_add_ps(x, _mm256_loadu_ps(o + i)));
    }
}

#endif
