/*
 * cli_number.h - 16-bit floats and random numbers, in plain C.
 *
 * The command has its own conversions on purpose: what it checks the library with should not be the library's.
 */
#ifndef MLA_CLI_NUMBER_H
#define MLA_CLI_NUMBER_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "mla/mla_types.h"

static inline uint32_t number_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float number_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float number_from_bf16(uint16_t h)
{
    return number_from_bits((uint32_t)h << 16);
}

static inline float number_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u;
    uint32_t mantissa = h & 1023u;
    if (exponent == 31) {
        return number_from_bits(sign | 0x7f800000u | mantissa << 13);
    }
    if (exponent == 0) { /* 0 or subnormal: mantissa * 2^-24, exact */
        float x = (float)mantissa * 0x1p-24f;
        return sign != 0 ? -x : x;
    }
    return number_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* to nearest, ties to even */
static inline uint16_t number_to_bf16(float x)
{
    uint32_t bits = number_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* to nearest, ties to even */
static inline uint16_t number_to_f16(float x)
{
    uint32_t bits = number_bits(x);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u);
    }
    if (magnitude >= 0x477ff000u) { /* 65520 and up */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: a multiple of 2^-24, and adding 0.5 rounds to just that */
        return (uint16_t)(sign | (number_bits(number_from_bits(magnitude) + 0.5f) - 0x3f000000u));
    }
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

/* element i of contiguous data of a float dtype */
static inline float number_load(const void *data, mla_dtype dtype, int64_t i)
{
    switch (dtype) {
    case MLA_DTYPE_BF16: return number_from_bf16(((const uint16_t *)data)[i]);
    case MLA_DTYPE_F16: return number_from_f16(((const uint16_t *)data)[i]);
    default: return ((const float *)data)[i];
    }
}

static inline void number_store(void *data, mla_dtype dtype, int64_t i, float x)
{
    switch (dtype) {
    case MLA_DTYPE_BF16: ((uint16_t *)data)[i] = number_to_bf16(x); break;
    case MLA_DTYPE_F16: ((uint16_t *)data)[i] = number_to_f16(x); break;
    default: ((float *)data)[i] = x; break;
    }
}

/* ---- random numbers: splitmix64, one 64-bit state ---------------------------------------------------------------- */

typedef struct number_rng {
    uint64_t state;
} number_rng;

static inline uint64_t number_random(number_rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* low .. high, both included; the bias is below 2^-32 for the ranges used here */
static inline int64_t number_range(number_rng *rng, int64_t low, int64_t high)
{
    uint64_t span = (uint64_t)(high - low) + 1;
    return low + (int64_t)(((number_random(rng) >> 32) * span) >> 32);
}

/* [0, 1) */
static inline double number_uniform(number_rng *rng)
{
    return (double)(number_random(rng) >> 11) * 0x1p-53;
}

/* Close to the standard normal: the sum of four 16-bit uniforms, brought to mean 0 and variance 1. Its tails end at
 * 3.46. */
static inline float number_normal(number_rng *rng)
{
    uint64_t r = number_random(rng);
    int32_t sum =
        (int32_t)(r & 0xffff) + (int32_t)(r >> 16 & 0xffff) + (int32_t)(r >> 32 & 0xffff) + (int32_t)(r >> 48);
    return (float)(sum - 131070) * (1.7320508f / 65536.0f);
}

static inline void number_fill_normal(void *data, mla_dtype dtype, int64_t count, float spread, number_rng *rng)
{
    for (int64_t i = 0; i < count; i++) {
        number_store(data, dtype, i, spread * number_normal(rng));
    }
}

/* 0 .. n - 1 in random order */
static inline void number_fill_permutation(int32_t *index, int64_t n, number_rng *rng)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t j = number_range(rng, 0, i);
        index[i] = index[j];
        index[j] = (int32_t)i;
    }
}

#endif
