/*
 * hif8_avx2.h - HiFloat8 in vectors, bit for bit as cpu/scalar/hif8.h.
 */
#ifndef MLA_CPU_HIF8_AVX2_H
#define MLA_CPU_HIF8_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "cpu/hif8_table.h"

/* A table of 16 bytes in both halves of a vector, for _mm256_shuffle_epi8. */
static inline __m256i hif8_lookup_avx2(const void *table)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
}

/*
 * 32 codes to the bits of bf16, which holds every HiF8 number exactly. In each half, low gets its first 8 codes and
 * high the others. All is looked up and added in bytes, for 32 codes at once; then one multiplication of byte pairs
 * makes start + count * step with the sign: 128 * 127 = 0x3f80 for positive, 129 * -128 = 0x3f80 - 0x8000 for negative,
 * 0 for zero.
 */
static inline void hif8_to_bf16_avx2(__m256i code, __m256i *low, __m256i *high)
{
    static const int8_t start_table[16] = {MLA_HIF8_START};
    static const uint8_t down_table[16] = {MLA_HIF8_DOWN}, step_table[16] = {MLA_HIF8_STEP};
    const __m256i none = _mm256_setzero_si256(), low_seven = _mm256_set1_epi8(0x7f);
    __m256i magnitude = _mm256_and_si256(code, low_seven);
    __m256i row = _mm256_and_si256(_mm256_srli_epi16(code, 3), _mm256_set1_epi8(15));
    __m256i lower = _mm256_and_si256(code, _mm256_set1_epi8(7));
    lower = _mm256_xor_si256(lower, _mm256_shuffle_epi8(hif8_lookup_avx2(down_table), row));
    __m256i count = _mm256_add_epi8(lower, _mm256_shuffle_epi8(hif8_lookup_avx2(start_table), row));
    __m256i step = _mm256_shuffle_epi8(hif8_lookup_avx2(step_table), row);

    __m256i is_zero = _mm256_cmpeq_epi8(magnitude, none), negative = _mm256_cmpgt_epi8(none, code);
    __m256i one = _mm256_xor_si256(low_seven, negative);                         /* 127 or -128 */
    __m256i one_times = _mm256_sub_epi8(_mm256_set1_epi8((char)0x80), negative); /* 128 or 129 */
    step = _mm256_andnot_si256(is_zero, step);
    one_times = _mm256_andnot_si256(is_zero, one_times);
    *low = _mm256_maddubs_epi16(_mm256_unpacklo_epi8(step, one_times), _mm256_unpacklo_epi8(count, one));
    *high = _mm256_maddubs_epi16(_mm256_unpackhi_epi8(step, one_times), _mm256_unpackhi_epi8(count, one));

    __m256i infinite = _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(MLA_HIF8_INFINITY));
    __m256i nan = _mm256_cmpeq_epi8(code, _mm256_set1_epi8((char)MLA_HIF8_NAN));
    if (__builtin_expect(_mm256_movemask_epi8(_mm256_or_si256(infinite, nan)) != 0, 0)) {
        const __m256i infinity_bits = _mm256_set1_epi16(MLA_HIF8_BITS_INFINITY >> 16);
        const __m256i nan_bits = _mm256_set1_epi16(MLA_HIF8_BITS_NAN >> 16);
        const __m256i sign = _mm256_set1_epi16((short)0x8000);
        __m256i low_infinity = _mm256_or_si256(_mm256_and_si256(*low, sign), infinity_bits);
        __m256i high_infinity = _mm256_or_si256(_mm256_and_si256(*high, sign), infinity_bits);
        *low = _mm256_blendv_epi8(*low, low_infinity, _mm256_unpacklo_epi8(infinite, infinite));
        *high = _mm256_blendv_epi8(*high, high_infinity, _mm256_unpackhi_epi8(infinite, infinite));
        *low = _mm256_blendv_epi8(*low, nan_bits, _mm256_unpacklo_epi8(nan, nan));
        *high = _mm256_blendv_epi8(*high, nan_bits, _mm256_unpackhi_epi8(nan, nan));
    }
}

/* x[i]: codes 8 i .. 8 i + 7, exactly. Index x with constants: in a loop that is not unrolled it goes
 * through memory, which triples the time. */
static inline void hif8_decode32_avx2(const uint8_t code[32], __m256 x[4])
{
    /* fours of codes so that unpacking, which stays within each half, leaves them in order */
    const __m256i fours = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7), none = _mm256_setzero_si256();
    __m256i low, high;
    hif8_to_bf16_avx2(_mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)code), fours), &low, &high);
    x[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(none, low));
    x[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(none, low));
    x[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(none, high));
    x[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(none, high));
}

/* Eight codes, for what 32 do not divide: nearly the work of hif8_decode32_avx2(). */
static inline __m256 hif8_decode8_avx2(const uint8_t code[8])
{
    const __m256i none = _mm256_setzero_si256();
    __m128i eight = _mm_loadl_epi64((const __m128i *)code);
    __m256i low, high;
    hif8_to_bf16_avx2(_mm256_inserti128_si256(_mm256_castsi128_si256(eight), _mm_srli_epi64(eight, 32), 1), &low,
                      &high);
    return _mm256_castsi256_ps(_mm256_unpacklo_epi16(none, low));
}

/* |E| of each lane, for the tables. */
static inline __m256i hif8_exponent_size_avx2(__m256i magnitude)
{
    return _mm256_abs_epi32(_mm256_sub_epi32(_mm256_srli_epi32(magnitude, 23), _mm256_set1_epi32(127)));
}

/* Rounds magnitudes of 2^-23 and more to those of HiF8, as mla_hif8_round_magnitude() does. */
static inline __m256i hif8_round_magnitude_avx2(__m256i magnitude, bool saturate)
{
    /* By |E| / 2: half the distance between neighbours in HiF8, beyond the 2^19 that it is at least in bits of fp32; in
     * units of 2^16. */
    static const uint8_t more_table[16] = {0, 0, 0x08, 0x08, 0x18, 0x18, 0x18, 0x18, 0x38, 0x38, 0x38, 0x38};
    const int over = saturate ? MLA_HIF8_BITS_LARGEST : MLA_HIF8_BITS_INFINITY;
    __m256i index = _mm256_srli_epi32(hif8_exponent_size_avx2(magnitude), 1);
    __m256i more = _mm256_slli_epi32(_mm256_shuffle_epi8(hif8_lookup_avx2(more_table), index), 16);
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(magnitude, _mm256_set1_epi32(0x80000)), more);
    __m256i keep = _mm256_sub_epi32(_mm256_set1_epi32(-0x100000), _mm256_add_epi32(more, more));
    __m256i rounded = _mm256_max_epi32(_mm256_and_si256(sum, keep), _mm256_set1_epi32(MLA_HIF8_BITS_LEAST));
    __m256i overflow = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(MLA_HIF8_BITS_OVERFLOW - 1));
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(over), overflow);
}

/* fp32 to the nearest number of HiF8, as fp32: mla_f32_rounded_to_hif8(). */
static inline __m256 hif8_round_avx2(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i lasts = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(MLA_HIF8_BITS_HALF_LEAST - 1));
    __m256i rounded = hif8_round_magnitude_avx2(magnitude, false);
    rounded = _mm256_and_si256(_mm256_or_si256(rounded, _mm256_xor_si256(bits, magnitude)), lasts);
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(MLA_HIF8_BITS_NAN));
    return _mm256_blendv_ps(_mm256_castsi256_ps(rounded), nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* The codes of eight numbers: mla_hif8_from_f32(). */
static inline void hif8_encode8_avx2(__m256 x, bool saturate, uint8_t code[8])
{
    static const uint8_t power_table[16] = {MLA_HIF8_POWER}, below_one_table[16] = {MLA_HIF8_BELOW_ONE};
    static const uint8_t excess_table[16] = {MLA_HIF8_EXCESS};
    const __m256i byte = _mm256_set1_epi32(0xff);
    __m256i bits = _mm256_castps_si256(x);
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i lasts = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(MLA_HIF8_BITS_HALF_LEAST - 1));
    __m256i rounded = hif8_round_magnitude_avx2(magnitude, saturate);

    __m256i size = hif8_exponent_size_avx2(rounded);
    __m256i excess = _mm256_and_si256(_mm256_shuffle_epi8(hif8_lookup_avx2(excess_table), size), byte);
    __m256i fraction = _mm256_srlv_epi32(_mm256_and_si256(rounded, _mm256_set1_epi32(0x7fffff)), excess);
    __m256i below_one = _mm256_cmpgt_epi32(_mm256_set1_epi32(127 << 23), rounded);
    below_one = _mm256_and_si256(below_one, _mm256_shuffle_epi8(hif8_lookup_avx2(below_one_table), size));
    __m256i result = _mm256_add_epi32(_mm256_shuffle_epi8(hif8_lookup_avx2(power_table), size), below_one);
    result = _mm256_and_si256(_mm256_add_epi32(result, fraction), byte);
    __m256i no_fraction = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(15));
    result = _mm256_blendv_epi8(result, _mm256_sub_epi32(_mm256_set1_epi32(23), size), no_fraction);
    __m256i infinite = _mm256_cmpeq_epi32(rounded, _mm256_set1_epi32(MLA_HIF8_BITS_INFINITY));
    result = _mm256_blendv_epi8(result, _mm256_set1_epi32(MLA_HIF8_INFINITY), infinite);

    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    result = _mm256_and_si256(_mm256_or_si256(result, sign), lasts);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    result = _mm256_blendv_epi8(result, _mm256_set1_epi32(saturate ? 0 : MLA_HIF8_NAN), nan);
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
    _mm_storel_epi64((__m128i *)code, _mm_packus_epi16(words, words));
}

#endif
