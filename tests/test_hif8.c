/*
 * test_hif8.c - HiFloat8: every code, every border of rounding, and vectors equal to scalars.
 *
 * Judged by two rules written here from the format's definition alone: decoding reads a code bit by bit from its prefix
 * on; encoding looks for the nearest magnitude among all there are. Neither knows the tables of the library.
 *
 * With MLA_TEST_LONG set, vectors are compared with scalars on all 2^32 bit patterns of fp32 (minutes).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/features.h"
#include "cpu/scalar/hif8.h"
#include "hif8_vector.h"

/* ---- the format, by definition ----------------------------------------------------------------------------------- */

/* Takes the upper n of the `*left` low bits of a code. */
static int take(int code, int *left, int n)
{
    *left -= n;
    return code >> *left & ((1 << n) - 1);
}

static double defined_value(int code)
{
    int left = 7, exponent_bits;
    double sign = code & 0x80 ? -1 : 1;
    if (code == 0x80) {
        return NAN;
    }
    if ((code & 0x7f) == 0x6f) {
        return sign * INFINITY;
    }
    if (take(code, &left, 1)) {
        exponent_bits = take(code, &left, 1) ? 4 : 3;
    } else if (take(code, &left, 1)) {
        exponent_bits = 2;
    } else if (take(code, &left, 1)) {
        exponent_bits = 1;
    } else if (take(code, &left, 1)) {
        exponent_bits = 0;
    } else {
        int m = take(code, &left, 3);
        return m == 0 ? 0 : sign * ldexp(1, m - 23);
    }
    int exponent = 0;
    if (exponent_bits > 0) {
        int negative = take(code, &left, 1);
        int rest = take(code, &left, exponent_bits - 1);
        exponent = (1 << (exponent_bits - 1)) + rest; /* the leading one is not stored */
        exponent = negative ? -exponent : exponent;
    }
    int fraction_bits = left;
    double fraction = ldexp(take(code, &left, fraction_bits), -fraction_bits);
    return sign * ldexp(1 + fraction, exponent);
}

/* All finite magnitudes in ascending order with their codes, and where the next one would be. */
enum { MAGNITUDES = 127 };
static double magnitude[MAGNITUDES + 1];
static int magnitude_code[MAGNITUDES + 1];

static int setup(void **state)
{
    (void)state;
    int n = 0;
    for (int code = 0; code < 128; code++) {
        double value = code == 0x6f ? 49152 : defined_value(code);
        int at = n++;
        for (; at > 0 && magnitude[at - 1] > value; at--) {
            magnitude[at] = magnitude[at - 1];
            magnitude_code[at] = magnitude_code[at - 1];
        }
        magnitude[at] = value;
        magnitude_code[at] = code;
    }
    return 0;
}

/* The nearest magnitude, the larger of two. */
static int defined_code(float x, bool saturate)
{
    double size = fabs((double)x);
    if (isnan(x)) {
        return saturate ? 0 : 0x80;
    }
    int low = 0, high = MAGNITUDES; /* magnitude[low] <= size < magnitude[high], if high is not the end */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(magnitude[middle] <= size ? &low : &high) = middle;
    }
    int nearest = size - magnitude[low] >= magnitude[high] - size ? high : low;
    if (nearest == MAGNITUDES && saturate) {
        nearest = MAGNITUDES - 1;
    }
    int code = magnitude_code[nearest];
    return code != 0 && signbit(x) ? code | 0x80 : code;
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

static bool same_bits(float a, float b)
{
    return mla_bits_from_f32(a) == mla_bits_from_f32(b);
}

/* Beyond the definition, what is published of the format. */
static void test_landmarks(void **state)
{
    (void)state;
    static const struct {
        int code;
        float value;
    } known[] = {{0x00, 0.0f},   {0x01, 0x1p-22f},  {0x07, 0x1p-16f},  {0x7e, 0x1p-15f},  {0x08, 1.0f},
                 {0x0f, 1.875f}, {0x10, 2.0f},      {0x18, 0.5f},      {0x20, 4.0f},      {0x30, 0.25f},
                 {0x40, 16.0f},  {0x60, 256.0f},    {0x6e, 32768.0f},  {0x6f, INFINITY},  {0xef, -INFINITY},
                 {0x88, -1.0f},  {0xee, -32768.0f}, {0x57, 0x1.cp-5f}, {0x7f, 0x1.8p-15f}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_true(same_bits(mla_f32_from_hif8((uint8_t)known[i].code), known[i].value));
    }
    assert_true(isnan(mla_f32_from_hif8(0x80)));
    assert_int_equal(magnitude_code[MAGNITUDES], 0x6f); /* nothing lies beyond the infinity's place */
    for (int i = 1; i <= MAGNITUDES; i++) {
        assert_true(magnitude[i] > magnitude[i - 1]);
    }
}

static void test_every_code(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        float value = mla_f32_from_hif8((uint8_t)code);
        double expected = defined_value(code);
        assert_true(code == 0x80 ? isnan(value) : value == expected);
        assert_int_equal(signbit(value) != 0, code > 0x80);
        assert_int_equal(mla_hif8_from_f32(value, false), code);
        int saturated = code == 0x80 ? 0 : (code & 0x7f) == 0x6f ? code - 1 : code;
        assert_int_equal(mla_hif8_from_f32(value, true), saturated);
    }
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

static void check_encode(float x)
{
    for (int saturate = 0; saturate < 2; saturate++) {
        int code = mla_hif8_from_f32(x, saturate), expected = defined_code(x, saturate);
        if (code != expected) {
            fail_msg("%a, saturate %d: code %02x, expected %02x", (double)x, saturate, (unsigned)code,
                     (unsigned)expected);
        }
    }
    if (!same_bits(mla_f32_rounded_to_hif8(x), mla_f32_from_hif8(mla_hif8_from_f32(x, false)))) {
        fail_msg("%a is rounded to %a", (double)x, (double)mla_f32_rounded_to_hif8(x));
    }
}

/* x, its neighbours in fp32 up to `ulps` away, and all of them negative. */
static void check_around(double x, int ulps)
{
    uint32_t bits = mla_bits_from_f32((float)x);
    for (int i = -ulps; i <= ulps; i++) {
        uint32_t near = bits + (uint32_t)i;
        if (near <= 0x7fffffffu) {
            check_encode(mla_f32_from_bits(near));
            check_encode(mla_f32_from_bits(near | 0x80000000u));
        }
    }
}

static void test_borders(void **state)
{
    (void)state;
    for (int i = 0; i < MAGNITUDES; i++) {
        check_around(magnitude[i], 64);
        check_around((magnitude[i] + magnitude[i + 1]) / 2, 64); /* ties; the last one is the border of overflow */
    }
    for (int exponent = -149; exponent <= 127; exponent++) {
        check_around(ldexp(1, exponent), 64);
        check_around(ldexp(1.5, exponent), 64);
    }
    check_around(49152, 64);
    check_around((double)mla_f32_from_bits(0x7f800000), 64); /* the largest number, infinity, NaN of small payload */
    check_around((double)mla_f32_from_bits(0x7fffffff), 64);
    check_encode(mla_f32_from_bits(0x7fffffff));
    check_encode(mla_f32_from_bits(0xffc00000));
    check_encode(0.0f);
    check_encode(-0.0f);
}

static void test_sweep(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 4099) {
        check_encode(mla_f32_from_bits((uint32_t)bits));
    }
}

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

static void need_vectors(void)
{
#if !defined(__aarch64__)
    if (!mla_cpu_features_detect().avx2) {
        print_message("this machine has no AVX2\n");
        skip();
    }
#endif
}

static void test_vector_decode(void **state)
{
    (void)state;
    need_vectors();
    uint8_t code[32];
    float x[32];
    uint32_t seed = 1;
    /* every code in every lane, alone and beside others: special ones take a path of their own */
    for (int value = 0; value < 256; value++) {
        for (int lane = 0; lane < 32; lane++) {
            for (int i = 0; i < 32; i++) {
                seed = seed * 1664525u + 1013904223u;
                code[i] = i == lane ? (uint8_t)value : lane % 2 ? (uint8_t)(seed >> 24) : 0x08;
            }
            hif8_vector_decode32(code, x);
            for (int i = 0; i < 32; i++) {
                assert_true(same_bits(x[i], mla_f32_from_hif8(code[i])));
            }
            hif8_vector_decode8(code + lane / 8 * 8, x);
            for (int i = 0; i < 8; i++) {
                assert_true(same_bits(x[i], mla_f32_from_hif8(code[lane / 8 * 8 + i])));
            }
        }
    }
}

static void compare_vectors(const uint32_t bits[8])
{
    float x[8], rounded[8];
    uint8_t code[2][8];
    memcpy(x, bits, sizeof x);
    hif8_vector_round8(x, rounded);
    hif8_vector_encode8(x, false, code[0]);
    hif8_vector_encode8(x, true, code[1]);
    for (int i = 0; i < 8; i++) {
        float one = mla_f32_from_bits(bits[i]);
        if (!same_bits(rounded[i], mla_f32_rounded_to_hif8(one)) || code[0][i] != mla_hif8_from_f32(one, false) ||
            code[1][i] != mla_hif8_from_f32(one, true)) {
            fail_msg("bits %08x: rounded to %a, codes %02x and %02x", bits[i], (double)rounded[i], code[0][i],
                     code[1][i]);
        }
    }
}

static void test_vector_borders(void **state)
{
    (void)state;
    need_vectors();
    for (int i = 0; i < MAGNITUDES; i++) {
        uint32_t tie = mla_bits_from_f32((float)((magnitude[i] + magnitude[i + 1]) / 2));
        uint32_t exact = mla_bits_from_f32((float)magnitude[i]);
        compare_vectors((uint32_t[8]){tie - 1, tie, tie + 1, tie ^ 0x80000000u, (tie - 1) ^ 0x80000000u, exact,
                                      exact + 1, (exact - 1) ^ 0x80000000u});
    }
    for (uint32_t exponent = 0; exponent < 256; exponent++) {
        uint32_t bits = exponent << 23;
        compare_vectors((uint32_t[8]){bits, bits + 1, bits - 1, bits + 0x400000, bits + 0x3fffff, bits ^ 0x80000000u,
                                      (bits - 1) ^ 0x80000000u, (bits + 0x400000) ^ 0x80000000u});
    }
}

static void compare_sweep(uint32_t stride)
{
    for (uint64_t first = 0; first < (uint64_t)1 << 32; first += 8 * (uint64_t)stride) {
        uint32_t bits[8];
        for (uint32_t i = 0; i < 8; i++) {
            bits[i] = (uint32_t)first + i * stride;
        }
        compare_vectors(bits);
    }
}

static void test_vector_sweep(void **state)
{
    (void)state;
    need_vectors();
    compare_sweep(1021);
}

static void test_vector_all_bit_patterns(void **state)
{
    (void)state;
    need_vectors();
    if (!getenv("MLA_TEST_LONG")) {
        print_message("takes minutes; set MLA_TEST_LONG=1\n");
        skip();
    }
    compare_sweep(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_landmarks),     cmocka_unit_test(test_every_code),
        cmocka_unit_test(test_borders),       cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_vector_decode), cmocka_unit_test(test_vector_borders),
        cmocka_unit_test(test_vector_sweep),  cmocka_unit_test(test_vector_all_bit_patterns),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
