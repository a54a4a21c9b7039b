/*
 * number.c - f32, f16 and bf16 by the book: sign, exponent, fraction; HiFloat8 by its table of prefix codes; integers.
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

static double power_of_two(int exponent) /* of a normal binary64 */
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/*
 * HiFloat8. Behind the sign stands a prefix code that says how long the exponent's magnitude is, then the exponent's
 * sign and its magnitude without the leading 1, then the fraction in the bits that are left:
 *
 *     bits 6..0    exponent                     fraction bits
 *     0000 mmm     mmm - 23, and 0 for mmm = 0  0
 *     0001 mmm     0                            3
 *     001 s mmm    +-1                          3
 *     01 s e mmm   +-(2 + e)                    3
 *     10 s ee mm   +-(4 + ee)                   2
 *     11 s eee m   +-(8 + eee)                  1
 *
 * but for 110 1111, which would be 1.5 * 2^15 and is infinity, and -0, which is the NaN.
 */
#define HIF8_NAN 0x80u
#define HIF8_INFINITY 0x6fu
#define HIF8_LEAST_EXPONENT (-22)
#define HIF8_LARGEST_EXPONENT 15

static double decode_hif8(uint32_t bits)
{
    uint32_t magnitude = bits & 0x7f;
    if (bits == HIF8_NAN) {
        return NAN;
    }
    double sign = bits & 0x80 ? -1 : 1;
    if (magnitude == HIF8_INFINITY) {
        return sign * (double)INFINITY;
    }
    if (magnitude < 0x08) {
        return magnitude == 0 ? 0 : sign * power_of_two((int)magnitude - 23);
    }
    int exponent_bits = magnitude < 0x10 ? 0 : magnitude < 0x20 ? 1 : magnitude < 0x40 ? 2 : magnitude < 0x60 ? 3 : 4;
    int fraction_bits = exponent_bits < 3 ? 3 : 5 - exponent_bits;
    int exponent = 0;
    if (exponent_bits > 0) {
        int field = (int)(magnitude >> fraction_bits) & ((1 << exponent_bits) - 1);
        int leading = 1 << (exponent_bits - 1); /* the sign's place, and the magnitude's own leading 1 */
        exponent = field & leading ? -field : field | leading;
    }
    int fraction = (int)magnitude & ((1 << fraction_bits) - 1);
    return sign * ((1 << fraction_bits) + fraction) * power_of_two(exponent - fraction_bits);
}

/* Fraction bits of a number of this exponent. */
static int hif8_fraction_bits(int exponent)
{
    int size = exponent < 0 ? -exponent : exponent;
    return size < 4 ? 3 : size < 8 ? 2 : size < 16 ? 1 : 0;
}

static uint32_t encode_hif8(double value)
{
    double magnitude = fabs(value);
    if (isnan(value)) {
        return HIF8_NAN;
    }
    if (magnitude < ldexp(0.5, HIF8_LEAST_EXPONENT)) {
        return 0; /* without a sign */
    }
    uint32_t sign = signbit(value) ? 0x80 : 0;
    int exponent;
    frexp(fmin(magnitude, 0x1p20), &exponent);
    exponent -= 1;
    if (exponent < HIF8_LEAST_EXPONENT) {
        exponent = HIF8_LEAST_EXPONENT; /* between 2^-23 and 2^-22 there is nothing: the quantum stops shrinking */
    }
    /* In units of the last place of the number's own binade; adding one half and rounding down takes ties away. */
    int fraction_bits = hif8_fraction_bits(exponent);
    double units = floor(ldexp(magnitude, fraction_bits - exponent) + 0.5);
    if (units == ldexp(2, fraction_bits)) { /* the next binade's first number, whatever its fraction is like */
        exponent += 1;
        fraction_bits = hif8_fraction_bits(exponent);
        units = ldexp(1, fraction_bits);
    }
    uint32_t fraction = (uint32_t)units & ((1u << fraction_bits) - 1);
    if (exponent > HIF8_LARGEST_EXPONENT || (exponent == HIF8_LARGEST_EXPONENT && fraction > 0)) {
        return sign | HIF8_INFINITY;
    }
    if (exponent < -15) {
        return sign | (uint32_t)(exponent + 23);
    }
    uint32_t size = (uint32_t)(exponent < 0 ? -exponent : exponent), minus = exponent < 0;
    switch (fraction_bits) {
    case 3:
        return sign | (size == 0   ? 0x08 | fraction
                       : size == 1 ? 0x10 | minus << 3 | fraction
                                   : 0x20 | minus << 4 | (size - 2) << 3 | fraction);
    case 2: return sign | 0x40 | minus << 4 | (size - 4) << 2 | fraction;
    default: return sign | 0x60 | minus << 4 | (size - 8) << 1 | fraction;
    }
}

static uint32_t encode_i8(double value)
{
    return isnan(value) ? 0 : (uint8_t)(int8_t)rint(fmax(-128, fmin(127, value)));
}

double mla_ref_decode(mla_dtype dtype, uint32_t bits)
{
    switch (dtype) {
    case MLA_DTYPE_I8: return (int8_t)(uint8_t)bits;
    case MLA_DTYPE_HIF8: return decode_hif8(bits);
    case MLA_DTYPE_F16: return decode_f16(bits);
    case MLA_DTYPE_BF16: return decode_f32(bits << 16);
    default: return decode_f32(bits);
    }
}

uint32_t mla_ref_encode(mla_dtype dtype, double value)
{
    if (dtype == MLA_DTYPE_HIF8) {
        return encode_hif8(value);
    }
    if (dtype == MLA_DTYPE_I8) {
        return encode_i8(value);
    }
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
    if (dtype == MLA_DTYPE_I8 || dtype == MLA_DTYPE_HIF8) {
        for (int64_t i = 0; i < n; i++) {
            row[i] = mla_ref_decode(dtype, ((const uint8_t *)data)[index + i]);
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
    if (dtype == MLA_DTYPE_I8 || dtype == MLA_DTYPE_HIF8) {
        ((uint8_t *)data)[index] = (uint8_t)bits;
        return;
    }
    uint16_t half = (uint16_t)bits;
    memcpy((char *)data + index * 2, &half, sizeof half);
}
