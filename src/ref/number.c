/*
 * number.c - f32, f16 and bf16 by the book: sign, exponent, fraction.
 */
#include "number.h"

#include <math.h>
#include <string.h>

/* How a binary format lays out its bits below the sign. */
typedef struct layout {
    int fraction_bits, exponent_bits;
} layout;

static layout layout_of(mla_dtype dtype)
{
    switch (dtype) {
    case MLA_DTYPE_F16: return (layout){10, 5};
    case MLA_DTYPE_BF16: return (layout){7, 8};
    default: return (layout){23, 8};
    }
}

/* f32, and bf16 as the f32 whose lower half is zero: the machine's own type. */
static inline double decode_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline double decode_f16(uint32_t bits)
{
    uint64_t sign = bits >> 15 & 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 0) { /* zero and subnormals */
        double magnitude = (double)fraction * 0x1p-24;
        return sign ? -magnitude : magnitude;
    }
    /* the same sign, exponent and fraction as a binary64, whose exponent bias is 1023 and whose fraction has 52 bits */
    uint64_t wide = sign << 63 | (exponent == 31 ? 2047 : exponent - 15 + 1023) << 52 | fraction << 42;
    double value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

double mla_ref_decode(mla_dtype dtype, uint32_t bits)
{
    switch (dtype) {
    case MLA_DTYPE_F16: return decode_f16(bits);
    case MLA_DTYPE_BF16: return decode_f32(bits << 16);
    default: return decode_f32(bits);
    }
}

uint32_t mla_ref_encode(mla_dtype dtype, double value)
{
    layout f = layout_of(dtype);
    int bias = (1 << (f.exponent_bits - 1)) - 1;
    uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.fraction_bits;
    uint32_t sign = signbit(value) ? 1u << (f.fraction_bits + f.exponent_bits) : 0;
    double magnitude = fabs(value);
    if (isnan(value)) {
        return sign | infinity | 1u << (f.fraction_bits - 1);
    }
    if (magnitude == 0 || isinf(magnitude)) {
        return sign | (magnitude == 0 ? 0 : infinity);
    }
    int exponent;
    frexp(magnitude, &exponent); /* 2^(exponent - 1) <= magnitude < 2^exponent */
    exponent -= 1;
    if (exponent < 1 - bias) {
        exponent = 1 - bias; /* subnormal: the quantum stops shrinking */
    }
    if (exponent > bias) {
        return sign | infinity;
    }
    /* In units of the last place; scaling by a power of two is exact, rint() rounds to nearest even. */
    uint32_t units = (uint32_t)rint(ldexp(magnitude, f.fraction_bits - exponent));
    /* A normal number has units in [2^fraction_bits, 2^(fraction_bits + 1)]: its leading bit adds the 1 that is missing
     * from the biased exponent below, and rounding up to the next binade, or to infinity, carries by itself. */
    return sign | ((((uint32_t)(exponent + bias - 1)) << f.fraction_bits) + units);
}

void mla_ref_load_row(const void *data, mla_dtype dtype, int64_t index, int64_t n, double *row)
{
    if (dtype == MLA_DTYPE_F32) {
        const char *from = (const char *)data + index * 4;
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, from + i * 4, sizeof bits);
            row[i] = decode_f32(bits);
        }
        return;
    }
    const char *from = (const char *)data + index * 2;
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, from + i * 2, sizeof bits);
        row[i] = dtype == MLA_DTYPE_F16 ? decode_f16(bits) : decode_f32((uint32_t)bits << 16);
    }
}

double mla_ref_load(const void *data, mla_dtype dtype, int64_t index)
{
    double value;
    mla_ref_load_row(data, dtype, index, 1, &value);
    return value;
}

void mla_ref_store(void *data, mla_dtype dtype, int64_t index, double value)
{
    uint32_t bits = mla_ref_encode(dtype, value);
    if (dtype == MLA_DTYPE_F32) {
        memcpy((char *)data + index * 4, &bits, sizeof bits);
        return;
    }
    uint16_t half = (uint16_t)bits;
    memcpy((char *)data + index * 2, &half, sizeof half);
}
