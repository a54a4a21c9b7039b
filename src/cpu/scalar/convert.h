/*
 * convert.h - 16-bit floats to fp32 and back, in plain C. Internal linkage only: every file compiles its own copy with
 * its own flags.
 */
#ifndef MLA_CPU_SCALAR_CONVERT_H
#define MLA_CPU_SCALAR_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline float mla_f32_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t mla_bits_from_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float mla_f32_from_bf16(uint16_t h)
{
    return mla_f32_from_bits((uint32_t)h << 16);
}

static inline float mla_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
    if (exponent == 0) { /* zero and subnormals: fraction * 2^-24, exact */
        float f = (float)fraction * 0x1p-24f;
        return sign ? -f : f;
    }
    if (exponent == 31) {
        return mla_f32_from_bits(sign | 0x7f800000u | fraction << 13);
    }
    return mla_f32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* Nearest, ties to even. A NaN stays a (quiet) NaN of the same sign. */
static inline uint16_t mla_bf16_from_f32(float f)
{
    uint32_t bits = mla_bits_from_f32(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline uint16_t mla_f16_from_f32(float f)
{
    uint32_t bits = mla_bits_from_f32(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* 65520 and up, where rounding reaches 2^16 */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 lines the fraction up with 2^-24 and rounds it */
        float shifted = mla_f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (mla_bits_from_f32(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

#endif
