/*
 * broken_numbers.c - the number formats of the self-test's own attention, in fp32 and bit patterns.
 */
#include <math.h>
#include <string.h>

#include "broken_attention.h"

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_f16(uint32_t half)
{
    uint32_t sign = half >> 15 << 31, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 0) {
        return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    }
    return from_bits(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

static float from_hif8(ck_bug bug, uint32_t code)
{
    uint32_t body = code & 0x7f;
    float sign = code >> 7 ? -1.0f : 1.0f;
    if (body == 0) {
        return code ? NAN : 0.0f;
    }
    if (body == 0x6f) {
        return sign * (float)INFINITY;
    }
    if (body < 8) {
        return bug == BUG_HIF8_LADDER ? 0.0f : sign * from_bits((body + 104) << 23); /* 2^(body - 23) */
    }
    /* how many bits the exponent has in all, its sign included, and where it begins */
    int size = body >> 5 == 3 ? 4 : body >> 5 == 2 ? 3 : body >> 5 == 1 ? 2 : body >> 4 == 1 ? 1 : 0;
    int left = size < 3 ? 3 : 5 - size; /* bits of the fraction */
    uint32_t field = body >> left & ((1u << size) - 1), fraction = body & ((1u << left) - 1);
    int exponent = 0;
    if (size > 0) {
        uint32_t top = 1u << (size - 1);
        exponent = (int)(field | top);
        exponent = field & top ? -exponent : exponent;
    }
    return sign * from_bits((uint32_t)(exponent + 127) << 23 | fraction << (23 - left));
}

float ck_broken_load(ck_bug bug, const mla_tensor *t, int64_t at)
{
    switch (t->dtype) {
    case MLA_DTYPE_F32: return ((const float *)t->data)[at];
    case MLA_DTYPE_F16: return from_f16(((const uint16_t *)t->data)[at]);
    case MLA_DTYPE_HIF8: return from_hif8(bug, ((const uint8_t *)t->data)[at]);
    case MLA_DTYPE_I8:
        return bug == BUG_I8_UNSIGNED ? (float)((const uint8_t *)t->data)[at] : (float)((const int8_t *)t->data)[at];
    default: return from_bits((uint32_t)((const uint16_t *)t->data)[at] << 16);
    }
}

static uint16_t drop_bits(uint32_t bits, int drop, bool truncate)
{
    uint32_t odd = bits >> drop & 1;
    return (uint16_t)((truncate ? bits : bits + (1u << (drop - 1)) - 1 + odd) >> drop);
}

static uint16_t to_f16(float value, bool truncate)
{
    uint16_t sign = (uint16_t)(to_bits(value) >> 16 & 0x8000);
    float magnitude = fabsf(value);
    if (isnan(value)) {
        return 0x7e00;
    }
    if (magnitude >= 65520) {
        return sign | 0x7c00;
    }
    if (magnitude < 0x1p-14f) {
        float units = magnitude * 0x1p24f;
        return sign | (uint16_t)(truncate ? floorf(units) : rintf(units));
    }
    return sign | drop_bits(to_bits(magnitude) - (112u << 23), 13, truncate);
}

static uint16_t to_bf16(float value, bool truncate)
{
    return isnan(value) ? 0x7fc0 : drop_bits(to_bits(value), 16, truncate);
}

void ck_broken_store(ck_bug bug, const mla_tensor *t, int64_t at, float value)
{
    bool truncate = bug == BUG_TRUNCATED;
    switch (t->dtype) {
    case MLA_DTYPE_F32: ((float *)t->data)[at] = value; break;
    case MLA_DTYPE_F16: ((uint16_t *)t->data)[at] = to_f16(value, truncate); break;
    default: ((uint16_t *)t->data)[at] = to_bf16(value, truncate); break;
    }
}

float ck_broken_round_16bit(mla_dtype dtype, float value)
{
    return dtype == MLA_DTYPE_F16 ? from_f16(to_f16(value, false)) : from_bits((uint32_t)to_bf16(value, false) << 16);
}

float ck_broken_round_hif8(float value)
{
    if (isnan(value) || value >= 40960) {
        return isnan(value) ? value : INFINITY;
    }
    if (value < 0x1p-22f) {
        return value < 0x1p-23f ? 0 : 0x1p-22f;
    }
    uint32_t bits = to_bits(value);
    int exponent = (int)(bits >> 23) - 127, size = exponent < 0 ? -exponent : exponent;
    int drop = 23 - (size <= 3 ? 3 : size <= 7 ? 2 : size <= 15 ? 1 : 0);
    return from_bits((bits + (1u << (drop - 1))) >> drop << drop);
}
