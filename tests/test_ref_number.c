/*
 * test_ref_number.c - the oracle's HiFloat8, int8 and rounded probabilities against what defines them.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ref/number.h"
#include "ref/ref.h"

static double hif8(uint32_t code)
{
    return mla_ref_decode(MLA_DTYPE_HIF8, code);
}

static uint32_t to_hif8(double value)
{
    return mla_ref_encode(MLA_DTYPE_HIF8, value);
}

/* One value of each row of the format's table, both ends of each, and the exceptions. */
static void test_hif8_landmarks(void **state)
{
    (void)state;
    static const struct {
        uint32_t code;
        double value;
    } known[] = {
        {0x00, 0},         {0x01, 0x1p-22}, {0x07, 0x1p-16}, {0x08, 1},        {0x0f, 1.875},     {0x10, 2},
        {0x17, 3.75},      {0x18, 0.5},     {0x1f, 0.9375},  {0x20, 4},        {0x2f, 15},        {0x30, 0.25},
        {0x3f, 0x1.ep-3},  {0x40, 16},      {0x43, 28},      {0x4f, 224},      {0x50, 0x1p-4},    {0x5f, 0x1.cp-7},
        {0x60, 256},       {0x61, 384},     {0x6d, 24576},   {0x6e, 32768},    {0x70, 0x1p-8},    {0x7e, 0x1p-15},
        {0x7f, 0x1.8p-15}, {0x88, -1},      {0xee, -32768},  {0x6f, INFINITY}, {0xef, -INFINITY},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_true(hif8(known[i].code) == known[i].value);
    }
    assert_true(isnan(hif8(0x80)));
}

/* 253 finite codes, all different, each the nearest to itself. */
static void test_hif8_round_trip(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 256; code++) {
        assert_int_equal(to_hif8(hif8(code)), code);
        for (uint32_t other = 0; other < code; other++) {
            assert_true(hif8(code) != hif8(other));
        }
    }
}

/* Nearest, ties away from zero, by looking at all codes: between two neighbours the border is their mean, and at the top
 * the infinity stands where 1.5 * 2^15 would be. */
static void test_hif8_rounding(void **state)
{
    (void)state;
    double sorted[128];
    int n = 0;
    for (uint32_t code = 0; code < 0x80; code++) { /* insertion sort: 127 numbers */
        double value = code == 0x6f ? 1.5 * 32768 : hif8(code);
        int at = n++;
        for (; at > 0 && sorted[at - 1] > value; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = value;
    }
    assert_int_equal(n, 128);
    for (int i = 0; i + 1 < n; i++) {
        double middle = (sorted[i] + sorted[i + 1]) / 2, above = sorted[i + 1];
        above = above == 1.5 * 32768 ? (double)INFINITY : above;
        assert_true(hif8(to_hif8(middle)) == above);
        assert_true(hif8(to_hif8(-middle)) == -above);
        double below = nextafter(middle, 0);
        assert_true(hif8(to_hif8(below)) == sorted[i]);
        assert_true(hif8(to_hif8(-below)) == -sorted[i]);
        assert_true(hif8(to_hif8(nextafter(sorted[i + 1], 0))) == above);
        assert_true(i == 0 || hif8(to_hif8(nextafter(sorted[i], INFINITY))) == sorted[i]);
    }
    assert_int_equal(to_hif8(-1e-30), 0);
    assert_int_equal(to_hif8(-0.0), 0);
    assert_int_equal(to_hif8(1e300), 0x6f);
    assert_int_equal(to_hif8(-(double)INFINITY), 0xef);
    assert_int_equal(to_hif8(NAN), 0x80);
}

static void test_i8(void **state)
{
    (void)state;
    for (int value = -128; value <= 127; value++) {
        uint32_t bits = mla_ref_encode(MLA_DTYPE_I8, value);
        assert_int_equal(bits, (uint8_t)(int8_t)value);
        assert_true(mla_ref_decode(MLA_DTYPE_I8, bits) == value);
    }
    static const double given[] = {0.5, 1.5, -0.5, -1.5, 126.5, 500, -500, NAN},
                        made[] = {0, 2, 0, -2, 126, 127, -128, 0};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        assert_true(mla_ref_decode(MLA_DTYPE_I8, mla_ref_encode(MLA_DTYPE_I8, given[i])) == made[i]);
    }
    uint8_t row[3] = {0x7f, 0x80, 0xff};
    double wide[3];
    mla_ref_load_row(row, MLA_DTYPE_I8, 0, 3, wide);
    assert_true(wide[0] == 127 && wide[1] == -128 && wide[2] == -1);
    mla_ref_store(row, MLA_DTYPE_HIF8, 1, 1.0);
    assert_memory_equal(row, ((uint8_t[]){0x7f, 0x08, 0xff}), 3);
}

/* round(p), at points that tell the modes and their rules of ties apart. */
static void test_p_round(void **state)
{
    (void)state;
    mla_problem p = {.p_rounding = MLA_P_ROUND_HIF8, .q = {.dtype = MLA_DTYPE_BF16}};
    assert_true(mla_ref_p_round(&p, 1) == 1);
    assert_true(mla_ref_p_round(&p, 15.5 / 16) == 1); /* a tie, away from zero, into the next binade */
    assert_true(mla_ref_p_round(&p, 0x1.1p-1) == 0x1.2p-1);
    assert_true(mla_ref_p_round(&p, 0x1p-27) == 0x1p-26); /* 2^-23 of 16 p: half of the smallest number */
    assert_true(mla_ref_p_round(&p, nextafter(0x1p-27, 0)) == 0);
    p.p_rounding = MLA_P_ROUND_16BIT;
    assert_true(mla_ref_p_round(&p, 0x1.03p-1) == 0x1.04p-1); /* ties to even */
    assert_true(mla_ref_p_round(&p, 0x1.01p-1) == 0x1.0p-1);
    p.q.dtype = MLA_DTYPE_F16;
    assert_true(mla_ref_p_round(&p, 0x1.03p-1) == 0x1.03p-1);
    assert_true(mla_ref_p_round(&p, 0x1p-25) == 0); /* a tie below the smallest subnormal */
    p.p_rounding = MLA_P_ROUND_INT8;
    mla_ref_tile tile = {.largest = -2, .maximum = -1};
    assert_true(fabs(mla_ref_p_unit(&p, &tile) - exp(-1) / 127) < 1e-18);
    assert_true(mla_ref_p_in_units(&p, &tile, -2) == 127);
    assert_true(mla_ref_p_round(&p, 127) == 127);
    assert_true(mla_ref_p_round(&p, 62.5) == 62);
    assert_true(mla_ref_p_round(&p, 63.5 - 0x1p-7) == 64); /* 63.5 in f16, then to even: rounded twice */
    assert_true(mla_ref_p_round(&p, 62.5 + 0x1p-7) == 62);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hif8_landmarks), cmocka_unit_test(test_hif8_round_trip),
        cmocka_unit_test(test_hif8_rounding),  cmocka_unit_test(test_i8),
        cmocka_unit_test(test_p_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
