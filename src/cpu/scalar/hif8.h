/*
 * hif8.h - HiFloat8 to fp32 and back, in plain C. Internal linkage only, as in convert.h.
 */
#ifndef MLA_CPU_SCALAR_HIF8_H
#define MLA_CPU_SCALAR_HIF8_H

#include <stdbool.h>

#include "convert.h"
#include "cpu/hif8_table.h"

/* Exact. */
static inline float mla_f32_from_hif8(uint8_t code)
{
    static const int8_t start[16] = {MLA_HIF8_START};
    static const uint8_t down[16] = {MLA_HIF8_DOWN}, step[16] = {MLA_HIF8_STEP};
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, magnitude = code & 0x7fu;
    if (magnitude == 0) {
        return sign ? mla_f32_from_bits(MLA_HIF8_BITS_NAN) : 0.0f;
    }
    if (magnitude == MLA_HIF8_INFINITY) {
        return mla_f32_from_bits(sign | MLA_HIF8_BITS_INFINITY);
    }
    uint32_t row = magnitude >> 3;
    int32_t count = start[row] + (int32_t)((magnitude & 7) ^ down[row]);
    return mla_f32_from_bits(sign | (uint32_t)(0x3f800000 + count * 0x10000 * step[row]));
}

/* Bits that fp32 has more than HiF8 around a magnitude of 2^-23 or more, from its own binade: 20 where HiF8 has 3 bits
 * of fraction, 23 where it has none. */
static inline uint32_t mla_hif8_excess(uint32_t magnitude_bits)
{
    static const uint8_t excess[16] = {MLA_HIF8_EXCESS};
    int32_t exponent = (int32_t)(magnitude_bits >> 23) - 127, size = exponent < 0 ? -exponent : exponent;
    return size < 16 ? excess[size] : 23u;
}

/* fp32 bits of a finite magnitude, rounded to the nearest one of HiF8, ties away from zero. All of [2^-23, 2^-22) goes
 * up. At 40960 and above the result is infinity, or the largest magnitude. */
static inline uint32_t mla_hif8_round_magnitude(uint32_t bits, bool saturate)
{
    if (bits < MLA_HIF8_BITS_LEAST) {
        return bits < MLA_HIF8_BITS_HALF_LEAST ? 0 : MLA_HIF8_BITS_LEAST;
    }
    if (bits >= MLA_HIF8_BITS_OVERFLOW) {
        return saturate ? MLA_HIF8_BITS_LARGEST : MLA_HIF8_BITS_INFINITY;
    }
    uint32_t excess = mla_hif8_excess(bits);
    return (bits + (1u << (excess - 1))) >> excess << excess; /* a carry reaches the next power of two, exact in HiF8 */
}

/* The nearest number of HiF8: mla_f32_from_hif8(mla_hif8_from_f32(x, false)), bit for bit. */
static inline float mla_f32_rounded_to_hif8(float x)
{
    uint32_t bits = mla_bits_from_f32(x), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return mla_f32_from_bits(MLA_HIF8_BITS_NAN);
    }
    uint32_t rounded = mla_hif8_round_magnitude(magnitude, false);
    return mla_f32_from_bits(rounded ? rounded | (bits & 0x80000000u) : 0);
}

/* Nearest, ties away from zero; the sign of what becomes zero is dropped. saturate: infinities and magnitudes of 40960
 * and more become the largest finite one, NaN becomes zero. */
static inline uint8_t mla_hif8_from_f32(float x, bool saturate)
{
    static const uint8_t power[16] = {MLA_HIF8_POWER}, below_one[16] = {MLA_HIF8_BELOW_ONE};
    uint32_t bits = mla_bits_from_f32(x), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return saturate ? 0 : MLA_HIF8_NAN;
    }
    uint32_t rounded = mla_hif8_round_magnitude(magnitude, saturate), sign = bits >> 24 & 0x80u;
    if (rounded == 0) {
        return 0;
    }
    if (rounded == MLA_HIF8_BITS_INFINITY) {
        return (uint8_t)(sign | MLA_HIF8_INFINITY);
    }
    int32_t exponent = (int32_t)(rounded >> 23) - 127;
    if (exponent < -15) {
        return (uint8_t)(sign | (uint32_t)(exponent + 23));
    }
    uint32_t code = exponent < 0 ? power[-exponent] + below_one[-exponent] : power[exponent];
    return (uint8_t)(sign | (code + ((rounded & 0x7fffffu) >> mla_hif8_excess(rounded))));
}

#endif
