/*
 * hif8_neon.h - HiFloat8 in vectors, bit for bit as cpu/scalar/hif8.h.
 */
#ifndef MLA_CPU_HIF8_NEON_H
#define MLA_CPU_HIF8_NEON_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>

#include "cpu/hif8_table.h"

/* 16 codes to the bits of bf16, which holds every HiF8 number exactly; low gets the first 8. Tables are looked up in bytes;
 * then one multiply-add of 16 bits makes base + count * step. Where the tables say nothing (zero, infinity, NaN) the step
 * is 0 and the base the result. */
static inline void hif8_to_bf16_neon(uint8x16_t code, uint16x8_t *low, uint16x8_t *high)
{
    static const int8_t start_table[16] = {MLA_HIF8_START};
    static const uint8_t down_table[16] = {MLA_HIF8_DOWN}, step_table[16] = {MLA_HIF8_STEP};
    uint8x16_t magnitude = vandq_u8(code, vdupq_n_u8(0x7f)), row = vshrq_n_u8(magnitude, 3);
    uint8x16_t lower = veorq_u8(vandq_u8(code, vdupq_n_u8(7)), vqtbl1q_u8(vld1q_u8(down_table), row));
    int8x16_t count = vaddq_s8(vreinterpretq_s8_u8(lower), vqtbl1q_s8(vld1q_s8(start_table), row));
    uint8x16_t is_zero = vceqzq_u8(magnitude), infinite = vceqq_u8(magnitude, vdupq_n_u8(MLA_HIF8_INFINITY));
    uint8x16_t step = vbicq_u8(vqtbl1q_u8(vld1q_u8(step_table), row), vorrq_u8(is_zero, infinite));

    /* The two bytes of the base: 1, or infinity, with the code's sign; the code of -0 is NaN. */
    uint8x16_t negative = vreinterpretq_u8_s8(vshrq_n_s8(vreinterpretq_s8_u8(code), 7));
    uint8x16_t upper = vbslq_u8(infinite, vdupq_n_u8(MLA_HIF8_BITS_INFINITY >> 24), vdupq_n_u8(0x3f));
    upper = vbslq_u8(vdupq_n_u8(0x80), code, upper);
    upper = vbslq_u8(is_zero, vandq_u8(negative, vdupq_n_u8(MLA_HIF8_BITS_NAN >> 24)), upper);
    uint8x16_t under = vandq_u8(negative, vdupq_n_u8(MLA_HIF8_BITS_NAN >> 16 & 0xff));
    under = vbslq_u8(is_zero, under, vdupq_n_u8(0x80));

    int16x8_t base = vreinterpretq_s16_u8(vzip1q_u8(under, upper));
    int16x8_t steps = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(step)));
    *low = vreinterpretq_u16_s16(vmlaq_s16(base, vmovl_s8(vget_low_s8(count)), steps));
    base = vreinterpretq_s16_u8(vzip2q_u8(under, upper));
    steps = vreinterpretq_s16_u16(vmovl_high_u8(step));
    *high = vreinterpretq_u16_s16(vmlaq_s16(base, vmovl_high_s8(count), steps));
}

static inline float32x4_t hif8_low_half_neon(uint16x8_t bf16)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bf16), 16));
}

static inline float32x4_t hif8_high_half_neon(uint16x8_t bf16)
{
    return vreinterpretq_f32_u32(vshll_high_n_u16(bf16, 16));
}

/* x[i]: codes 4 i .. 4 i + 3, exactly. */
static inline void hif8_decode16_neon(const uint8_t *code, float32x4_t x[4])
{
    uint16x8_t low, high;
    hif8_to_bf16_neon(vld1q_u8(code), &low, &high);
    x[0] = hif8_low_half_neon(low);
    x[1] = hif8_high_half_neon(low);
    x[2] = hif8_low_half_neon(high);
    x[3] = hif8_high_half_neon(high);
}

/* Eight codes, for what 16 do not divide. */
static inline void hif8_decode8_neon(const uint8_t *code, float32x4_t x[2])
{
    uint16x8_t low, high;
    hif8_to_bf16_neon(vcombine_u8(vld1_u8(code), vdup_n_u8(0)), &low, &high);
    x[0] = hif8_low_half_neon(low);
    x[1] = hif8_high_half_neon(low);
}

/* |E| of each lane, for the tables; beyond 15 these give 0. */
static inline uint32x4_t hif8_exponent_size_neon(uint32x4_t magnitude)
{
    int32x4_t exponent = vsubq_s32(vreinterpretq_s32_u32(vshrq_n_u32(magnitude, 23)), vdupq_n_s32(127));
    return vreinterpretq_u32_s32(vabsq_s32(exponent));
}

/* Entry index[lane] of a table of bytes, in the lane's lowest byte. */
static inline uint32x4_t hif8_lookup_neon(const uint8_t table[16], uint32x4_t index)
{
    uint8x16_t found = vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_u32(index));
    return vandq_u32(vreinterpretq_u32_u8(found), vdupq_n_u32(0xff));
}

/* Rounds magnitudes of 2^-23 and more to those of HiF8, as mla_hif8_round_magnitude() does. */
static inline uint32x4_t hif8_round_magnitude_neon(uint32x4_t magnitude, bool saturate)
{
    /* By |E| / 2: half the distance between neighbours in HiF8, beyond the 2^19 that it is at least in bits of fp32; in
     * units of 2^16. */
    static const uint8_t more_table[16] = {0, 0, 0x08, 0x08, 0x18, 0x18, 0x18, 0x18, 0x38, 0x38, 0x38, 0x38};
    uint32x4_t index = vshrq_n_u32(hif8_exponent_size_neon(magnitude), 1);
    uint32x4_t more = vshlq_n_u32(hif8_lookup_neon(more_table, index), 16);
    uint32x4_t sum = vaddq_u32(vaddq_u32(magnitude, vdupq_n_u32(0x80000)), more);
    uint32x4_t keep = vsubq_u32(vdupq_n_u32(0xfff00000u), vaddq_u32(more, more));
    uint32x4_t rounded = vmaxq_u32(vandq_u32(sum, keep), vdupq_n_u32(MLA_HIF8_BITS_LEAST));
    uint32x4_t overflow = vcgeq_u32(magnitude, vdupq_n_u32(MLA_HIF8_BITS_OVERFLOW));
    return vbslq_u32(overflow, vdupq_n_u32(saturate ? MLA_HIF8_BITS_LARGEST : MLA_HIF8_BITS_INFINITY), rounded);
}

/* fp32 to the nearest number of HiF8, as fp32: mla_f32_rounded_to_hif8(). */
static inline float32x4_t hif8_round_neon(float32x4_t x)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x), magnitude = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
    uint32x4_t lasts = vcgeq_u32(magnitude, vdupq_n_u32(MLA_HIF8_BITS_HALF_LEAST));
    uint32x4_t rounded = vbslq_u32(vdupq_n_u32(0x80000000u), bits, hif8_round_magnitude_neon(magnitude, false));
    rounded = vandq_u32(rounded, lasts);
    return vreinterpretq_f32_u32(vbslq_u32(vceqq_f32(x, x), rounded, vdupq_n_u32(MLA_HIF8_BITS_NAN)));
}

/* The codes of four numbers, each in a lane's lowest byte: mla_hif8_from_f32(). */
static inline uint32x4_t hif8_encode4_neon(float32x4_t x, bool saturate)
{
    static const uint8_t power_table[16] = {MLA_HIF8_POWER}, below_one_table[16] = {MLA_HIF8_BELOW_ONE};
    static const uint8_t excess_table[16] = {MLA_HIF8_EXCESS};
    uint32x4_t bits = vreinterpretq_u32_f32(x), magnitude = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
    uint32x4_t lasts = vcgeq_u32(magnitude, vdupq_n_u32(MLA_HIF8_BITS_HALF_LEAST));
    uint32x4_t rounded = hif8_round_magnitude_neon(magnitude, saturate);

    uint32x4_t size = hif8_exponent_size_neon(rounded);
    int32x4_t excess = vreinterpretq_s32_u32(hif8_lookup_neon(excess_table, size));
    uint32x4_t fraction = vshlq_u32(vandq_u32(rounded, vdupq_n_u32(0x7fffff)), vnegq_s32(excess));
    uint32x4_t below_one = vcltq_u32(rounded, vdupq_n_u32(127u << 23));
    below_one = vandq_u32(below_one, hif8_lookup_neon(below_one_table, size));
    uint32x4_t result = vaddq_u32(vaddq_u32(hif8_lookup_neon(power_table, size), below_one), fraction);
    uint32x4_t no_fraction = vcgtq_u32(size, vdupq_n_u32(15));
    result = vbslq_u32(no_fraction, vsubq_u32(vdupq_n_u32(23), size), result);
    uint32x4_t infinite = vceqq_u32(rounded, vdupq_n_u32(MLA_HIF8_BITS_INFINITY));
    result = vbslq_u32(infinite, vdupq_n_u32(MLA_HIF8_INFINITY), result);

    result = vorrq_u32(result, vandq_u32(vshrq_n_u32(bits, 24), vdupq_n_u32(0x80)));
    result = vandq_u32(result, lasts);
    return vbslq_u32(vceqq_f32(x, x), result, vdupq_n_u32(saturate ? 0 : MLA_HIF8_NAN));
}

#endif
