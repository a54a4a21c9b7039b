/*
 * round_avx2.c - probabilities that are rounded before they multiply the values: a score panel [key][16] in, a lane a row.
 */
#include <immintrin.h>
#include <math.h>

#include "exp2_avx2.h"
#include "hif8_avx2.h"
#include "tables_avx2.h"

enum { ROWS = MLA_ROW_PANEL };

static inline __m256 round_f16(__m256 p, __m256 unit)
{
    (void)unit;
    return _mm256_cvtph_ps(_mm256_cvtps_ph(p, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline __m256 round_bf16(__m256 p, __m256 unit)
{
    (void)unit;
    __m256i bits = _mm256_castps_si256(p);
    __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), even);
    __m256 rounded = _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(-0x10000)));
    return _mm256_blendv_ps(rounded, p, _mm256_cmp_ps(p, p, _CMP_UNORD_Q));
}

static inline __m256 round_hif8(__m256 p, __m256 unit)
{
    (void)unit;
    return _mm256_mul_ps(hif8_round_avx2(_mm256_mul_ps(p, _mm256_set1_ps(16))), _mm256_set1_ps(0.0625f));
}

static inline __m256 round_i8(__m256 p, __m256 unit)
{
    __m256 n = round_f16(_mm256_div_ps(p, unit), unit);
    return _mm256_round_ps(n, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Two vectors of eight rows; each row's sum is one chain, over keys in ascending order. */
#define ROUND_BODY(ROUND)                                                                             \
    for (int r = 0; r < ROWS; r += 8) {                                                               \
        const __m256 nothing = _mm256_set1_ps(-INFINITY);                                             \
        __m256 base = _mm256_loadu_ps(m + r), total = _mm256_loadu_ps(sum + r);                       \
        __m256 one_unit = unit ? _mm256_loadu_ps(unit + r) : _mm256_setzero_ps();                     \
        base = _mm256_blendv_ps(base, _mm256_setzero_ps(), _mm256_cmp_ps(base, nothing, _CMP_EQ_OQ)); \
        for (float *t = s + r, *end = t + n_key * ROWS; t != end; t += ROWS) {                        \
            __m256 p = exp2_avx2(_mm256_sub_ps(_mm256_loadu_ps(t), base));                            \
            total = _mm256_add_ps(total, p);                                                          \
            _mm256_storeu_ps(t, ROUND(p, one_unit));                                                  \
        }                                                                                             \
        _mm256_storeu_ps(sum + r, total);                                                             \
    }

void mla_round_f16_avx2(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    ROUND_BODY(round_f16)
}

void mla_round_bf16_avx2(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    ROUND_BODY(round_bf16)
}

void mla_round_hif8_avx2(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    ROUND_BODY(round_hif8)
}

void mla_round_i8_avx2(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    ROUND_BODY(round_i8)
}
