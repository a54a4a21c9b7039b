/*
 * test_atb_decode.c - AtbMLA in 16-bit caches: the configurations of ATB's own tests and the corners of its rules,
 * judged on whole tensors by ATB's criteria and, for each element, by what fp32 arithmetic and one rounding can
 * explain.
 */
#include "atb_decode_case.h"

#define F16 MLA_ATB_FLOAT16
#define BF16 MLA_ATB_BF16

/* clang-format off: a case is a line */
static const decode_config CASES[] = {
    /* one token a sequence */
    {.h = 32, .b = 32, .ctx = "256", .n_block = 64, .dtype = F16, .cache = 1},
    {.h = 32, .b = 32, .ctx = "3072", .n_block = 800, .dtype = F16, .cache = 1, .long_mode = true},
    {.h = 32, .b = 32, .ctx = "4096", .n_block = 1100, .dtype = F16, .cache = 1, .long_mode = true},
    {.h = 16, .b = 27, .ctx = "256", .n_block = 64, .dtype = F16, .cache = 1},
    {.h = 128, .b = 32, .ctx = "256", .n_block = 64, .dtype = F16, .cache = 1, .long_mode = true},
    {.h = 128, .b = 32, .ctx = "3072", .n_block = 800, .dtype = F16, .cache = 1, .long_mode = true},
    {.h = 128, .b = 32, .ctx = "4096", .n_block = 1100, .dtype = F16, .cache = 1, .long_mode = true},
    {.h = 128, .b = 3, .ctx = "256 129 1", .dtype = BF16, .cache = 1},
    {.h = 32, .b = 32, .ctx = "256", .n_block = 64, .dtype = F16, .cache = 3, .range = 5},
    {.h = 32, .b = 32, .ctx = "256", .n_block = 64, .dtype = BF16, .cache = 3, .range = 5},
    {.h = 8, .b = 5, .ctx = "129 257 1025 1150 0", .dtype = F16, .cache = 1},
    {.h = 128, .b = 27, .ctx = "1150", .dtype = F16, .cache = 1, .long_mode = true},
    {.h = 128, .b = 1, .ctx = "3073", .dtype = F16, .cache = 1},
    {.h = 8, .b = 4, .ctx = "1 128 300 0", .dtype = BF16, .cache = 0},
    /* with lse */
    {.h = 32, .b = 32, .ctx = "256", .n_block = 64, .dtype = F16, .cache = 3, .calc = 2, .range = 5},
    {.h = 32, .b = 32, .ctx = "256", .n_block = 64, .dtype = F16, .cache = 1, .calc = 2},
    {.h = 32, .b = 32, .ctx = "256", .n_block = 64, .dtype = BF16, .cache = 1, .calc = 2},
    {.h = 16, .b = 6, .ctx = "200 0 1", .dtype = BF16, .cache = 3, .calc = 2, .f32_lse = true},
    {.h = 64, .b = 1, .q = "4", .ctx = "3072", .dtype = F16, .cache = 1, .calc = 3},
    /* several tokens a sequence, no mask: nothing is causal below 128 heads */
    {.h = 32,
     .b = 10,
     .q = "2",
     .ctx = "64",
     .n_block = 64,
     .dtype = F16,
     .cache = 1,
     .calc = 1,
     .random_blocks = true},
    {.h = 32,
     .b = 10,
     .q = "2",
     .ctx = "256",
     .n_block = 64,
     .dtype = F16,
     .cache = 1,
     .calc = 1,
     .random_blocks = true},
    {.h = 8, .b = 5, .q = "2", .ctx = "256", .dtype = F16, .cache = 1, .calc = 1},
    {.h = 32, .b = 13, .q = "3", .ctx = "513", .dtype = BF16, .cache = 3, .calc = 1},
    {.h = 32, .b = 16, .q = "3", .ctx = "257", .dtype = F16, .cache = 1, .calc = 1},
    /* 128 heads are causal, with whatever mask */
    {.h = 128,
     .b = 2,
     .q = "2",
     .ctx = "257",
     .n_block = 64,
     .dtype = F16,
     .cache = 1,
     .calc = 1,
     .mask = 1,
     .random_blocks = true},
    {.h = 128,
     .b = 2,
     .q = "2",
     .ctx = "256",
     .n_block = 64,
     .dtype = F16,
     .cache = 1,
     .calc = 1,
     .mask = 1,
     .random_blocks = true},
    {.h = 128, .b = 2, .q = "2", .ctx = "257", .n_block = 64, .dtype = F16, .cache = 1, .calc = 3, .mask = 1},
    {.h = 128, .b = 2, .q = "2", .ctx = "127", .n_block = 64, .dtype = F16, .cache = 1, .calc = 1, .mask = 2},
    {.h = 128,
     .b = 2,
     .q = "2",
     .ctx = "128 127",
     .n_block = 640,
     .dtype = F16,
     .cache = 3,
     .calc = 3,
     .mask = 2,
     .template_3d = true,
     .scale = 0.13523377f},
    {.h = 128, .b = 2, .q = "16", .ctx = "127", .dtype = F16, .cache = 1, .calc = 1, .mask = 2},
    {.h = 128, .b = 2, .q = "17", .ctx = "129", .dtype = F16, .cache = 1, .calc = 1, .mask = 2},
    {.h = 128,
     .b = 4,
     .q = "4 1 0 2",
     .ctx = "2 200 5 131",
     .dtype = BF16,
     .cache = 1,
     .calc = 3,
     .free_mask = true,
     .mask = 1},
    {.h = 128, .b = 32, .q = "2", .ctx = "4096 4097 3841 3500", .dtype = F16, .cache = 1, .calc = 1, .long_mode = true},
    {.h = 128, .b = 8, .q = "1", .ctx = "4097 4096 3978 3700", .dtype = F16, .cache = 1, .long_mode = true},
    {.h = 128, .b = 5, .q = "2", .ctx = "300 140 7", .dtype = F16, .cache = 1, .calc = 3, .use = "1 0 0 1"},
    /* masks below 128 heads */
    {.h = 64, .b = 16, .q = "2", .ctx = "47 48 49 50 51 52 53 54", .dtype = F16, .cache = 1, .calc = 1, .mask = 1},
    {.h = 64, .b = 9, .q = "4", .ctx = "257", .dtype = F16, .cache = 1, .calc = 1, .mask = 1},
    {.h = 8,
     .b = 4,
     .q = "3 0 1 5",
     .ctx = "200 17 300 129",
     .dtype = BF16,
     .cache = 1,
     .calc = 1,
     .mask = 1,
     .free_mask = true},
    {.h = 16,
     .b = 3,
     .q = "2 4",
     .ctx = "5 130 257",
     .dtype = F16,
     .cache = 3,
     .calc = 3,
     .mask = 1,
     .free_mask = true},
    {.h = 64, .b = 2, .q = "5", .ctx = "127", .dtype = F16, .cache = 1, .calc = 1, .mask = 2},
    {.h = 64, .b = 2, .q = "9", .ctx = "129", .dtype = F16, .cache = 1, .calc = 1, .mask = 2},
    {.h = 8, .b = 6, .q = "4", .ctx = "128 129 130 131 259 500", .dtype = BF16, .cache = 1, .calc = 1, .mask = 2},
    {.h = 8,
     .b = 6,
     .q = "4",
     .ctx = "128 129 130 131 0 4",
     .dtype = F16,
     .cache = 3,
     .calc = 3,
     .mask = 2,
     .template_3d = true},
    {.h = 8,
     .b = 7,
     .q = "17",
     .ctx = "17 128 129 143 144 300 272",
     .dtype = F16,
     .cache = 1,
     .calc = 1,
     .mask = 2,
     .free_mask = true},
    {.h = 8,
     .b = 4,
     .q = "3 1 0 2",
     .ctx = "129 128 300 257",
     .dtype = F16,
     .cache = 1,
     .calc = 1,
     .mask = 2,
     .free_mask = true,
     .template_3d = true},
    {.h = 8, .b = 3, .q = "1", .ctx = "128 1 129", .dtype = F16, .cache = 1, .calc = 1, .mask = 2, .free_mask = true},
};
/* clang-format on */

/* What fp32 sums, a score's own error of some 1e-4 and the one rounding of the output can explain. */
static void check_elements(const double *got, const double *want, const double *weight, int64_t n, int32_t dtype,
                           const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        double limit = half_ulp(dtype) * fabs(want[i]) + 1e-4 * weight[i] + 0x1p-25;
        bool same = got[i] == want[i] || fabs(got[i] - want[i]) <= limit; /* infinities */
        if (!same) {
            fail_msg("%s[%lld] = %.9g instead of %.9g, limit %.3g", what, (long long)i, got[i], want[i], limit);
        }
    }
}

static void judge(const decode_case *c, const decode_reference *r)
{
    int64_t n = c->t * c->h * NOPE, rows = c->t * c->h;
    int32_t dtype = c->config.dtype;
    double *out = load_all(&c->out);
    assert_true(accepted_by_n(out, r->rounded, n, dtype, WIDTH * (double)c->max_kv + 4) ||
                accepted_by_d(out, r->out, r->rounded, n, dtype));
    check_elements(out, r->out, r->weight, n, dtype, "attenOut");
    free(out);
    if (c->config.calc < MLA_ATB_CALC_RING) {
        return;
    }
    double *lse = load_all(&c->lse);
    for (int64_t i = 0; i < rows; i++) {
        r->weight[i] = fabs(r->lse[i]) * 0.01 + 0.1; /* a score's error, again */
    }
    check_elements(lse, r->lse, r->weight, rows, c->lse.dtype, "lse");
    free(lse);
}

static void test_cases(void **state)
{
    (void)state;
    bool long_mode = getenv("MLA_TEST_LONG") != NULL, short_mode = getenv("MLA_TEST_SHORT") != NULL;
    for (int64_t i = 0; i < COUNT(CASES); i++) {
        const decode_config *f = &CASES[i];
        char name[128];
        snprintf(name, sizeof name, "case %lld: H %d, B %d, q %s, ctx %s, cache %d, calc %d, mask %d", (long long)i,
                 f->h, f->b, f->q != NULL ? f->q : "1", f->ctx, f->cache, f->calc, f->mask);
        if (f->long_mode && !long_mode) {
            printf("# left out without MLA_TEST_LONG=1: %s\n", name);
            continue;
        }
        if (f->h > 8 && short_mode) {
            printf("# left out with MLA_TEST_SHORT=1: %s\n", name);
            continue;
        }
        printf("# %s\n", name);
        decode_case *c = decode_open(f);
        decode_run(c);
        decode_reference r = reference_open(c);
        judge(c, &r);
        reference_close(&r);
        decode_close(c);
    }
}

/* A mask of -inf hides, also where it hides every key of a row: that row is empty then, never NaN. */
static void test_infinite_masks(void **state)
{
    (void)state;
    for (int32_t mask = 1; mask <= 2; mask++) {
        decode_config f =
            {.h = 8, .b = 2, .q = "2", .ctx = "100 130", .dtype = BF16, .cache = 1, .calc = 3, .mask = mask};
        decode_case *c = decode_open(&f);
        int64_t n = c->mask_rows * c->mask_columns;
        for (int64_t i = 0; i < n; i++) {
            int64_t row = i / c->mask_columns, column = i % c->mask_columns;
            /* SPEC: token 1 sees nothing, others a part; MASK_FREE: the template's rows of sequence 0, token 1 */
            bool hidden = mask == 1 ? row == 1 || column % 3 == 0 : row == 100;
            c->mask_value[i] = hidden ? (double)-INFINITY : 0;
            mla_ref_store(c->mask_data, MLA_DTYPE_BF16, i, c->mask_value[i]);
        }
        decode_run(c);
        double *out = load_all(&c->out), *lse = load_all(&c->lse);
        for (int64_t i = 0; i < c->h; i++) {
            assert_true(lse[c->h + i] == (double)-INFINITY);
            assert_true(isfinite(lse[i]) && isfinite(lse[2 * c->h + i]));
        }
        for (int64_t i = 0; i < c->t * c->h * NOPE; i++) {
            assert_true(i / (c->h * NOPE) == 1 ? out[i] == 0 : isfinite(out[i]));
        }
        if (mask == 1) { /* the rows that see something */
            decode_reference r = reference_open(c);
            for (int64_t i = 0; i < c->t * c->h * NOPE; i++) {
                assert_true(i / (c->h * NOPE) == 1 ||
                            fabs(out[i] - r.out[i]) <= 0x1p-8 * fabs(r.out[i]) + 1e-4 * r.weight[i]);
            }
            reference_close(&r);
        }
        free(out);
        free(lse);
        decode_close(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_infinite_masks)};
    return cmocka_run_group_tests_name("ATB: decode in 16 bits", tests, NULL, NULL);
}
