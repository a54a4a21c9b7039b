/*
 * test_atb_int8.c - AtbMLA with an int8 cache. The rounding of the probabilities is part of the result here, so it is
 * compared with a model of ATB's procedure, tile by tile in fp32, written from the contract; and with the truth.
 *
 * A probability that lies on the edge between two integers may fall on either side when a score differs in its last
 * bits. The model finds these and knows what each would change; nothing else is allowed to differ.
 */
#include "atb_decode_case.h"

#define F16 MLA_ATB_FLOAT16
#define BF16 MLA_ATB_BF16

/* clang-format off: a case is a line */
static const decode_config CASES[] = {
    {.h = 32, .b = 32, .ctx = "256", .n_block = 64, .dtype = F16, .cache = 2, .long_mode = true},
    {.h = 32, .b = 3, .ctx = "256", .dtype = F16, .cache = 2},
    {.h = 128, .b = 32, .ctx = "256", .n_block = 64, .dtype = F16, .cache = 2, .long_mode = true},
    {.h = 128, .b = 2, .ctx = "256", .dtype = F16, .cache = 2},
    {.h = 32, .b = 32, .ctx = "256", .n_block = 64, .dtype = BF16, .cache = 2, .long_mode = true},
    {.h = 32, .b = 3, .ctx = "256", .dtype = BF16, .cache = 2},
    /* tile 128 against 512, and tails */
    {.h = 8, .b = 6, .ctx = "127 128 129 700 1 0", .dtype = F16, .cache = 2},
    {.h = 64, .b = 1, .ctx = "256", .dtype = F16, .cache = 2},
    {.h = 128, .b = 1, .ctx = "1023", .dtype = F16, .cache = 2},
    /* several tokens: causal, tile 512 */
    {.h = 128, .b = 8, .q = "2", .ctx = "256", .dtype = F16, .cache = 2, .calc = 1, .long_mode = true},
    {.h = 128, .b = 8, .q = "3", .ctx = "1024", .dtype = F16, .cache = 2, .calc = 1, .long_mode = true},
    {.h = 128, .b = 8, .q = "4", .ctx = "512", .dtype = BF16, .cache = 2, .calc = 1, .long_mode = true},
    {.h = 128, .b = 1, .q = "3", .ctx = "514", .dtype = BF16, .cache = 2, .calc = 1},
    {.h = 8, .b = 8, .q = "2", .ctx = "256", .dtype = F16, .cache = 2, .calc = 1},
    {.h = 16, .b = 2, .q = "3", .ctx = "1024", .dtype = F16, .cache = 2, .calc = 1},
    {.h = 32, .b = 2, .q = "4", .ctx = "512", .dtype = BF16, .cache = 2, .calc = 1},
    {.h = 64, .b = 8, .q = "4", .ctx = "512", .dtype = BF16, .cache = 2, .calc = 1, .long_mode = true},
    {.h = 128, .b = 1, .q = "2", .ctx = "2511", .dtype = F16, .cache = 2, .calc = 1, .long_mode = true},
    {.h = 8, .b = 20, .q = "4", .ctx = "768", .dtype = F16, .cache = 2, .calc = 1, .long_mode = true},
    {.h = 8, .b = 4, .q = "4 1 0 2", .ctx = "3 700 5 513", .dtype = F16, .cache = 2, .calc = 1},
    {.h = 8, .b = 2, .q = "1", .ctx = "700", .dtype = F16, .cache = 2, .calc = 1}, /* one token each: tile 128 */
    {.h = 8, .b = 2, .q = "2", .ctx = "300", .dtype = F16, .cache = 2, .calc = 1, .mask = 1, .free_mask = true},
    {.h = 128, .b = 32, .q = "2", .ctx = "4096 4097 3841 3500", .dtype = F16, .cache = 2, .calc = 1, .long_mode = true},
    /* with lse */
    {.h = 32, .b = 8, .ctx = "1025", .dtype = F16, .cache = 2, .calc = 2, .long_mode = true},
    {.h = 32, .b = 1, .ctx = "1025", .dtype = F16, .cache = 2, .calc = 2},
    {.h = 128, .b = 8, .ctx = "512", .dtype = F16, .cache = 2, .calc = 2, .long_mode = true},
    {.h = 128, .b = 1, .ctx = "512", .dtype = BF16, .cache = 2, .calc = 2},
    {.h = 128, .b = 8, .q = "4", .ctx = "512", .dtype = F16, .cache = 2, .calc = 3, .long_mode = true},
    {.h = 8, .b = 32, .q = "1", .ctx = "1700", .dtype = F16, .cache = 2, .calc = 3, .long_mode = true},
    {.h = 8, .b = 2, .q = "1", .ctx = "1700 0", .dtype = F16, .cache = 2, .calc = 3},
    {.h = 32, .b = 1, .q = "4", .ctx = "1500", .dtype = F16, .cache = 2, .calc = 3, .long_mode = true},
    {.h = 128,
     .b = 2,
     .q = "2",
     .ctx = "256",
     .n_block = 64,
     .dtype = F16,
     .cache = 2,
     .calc = 3,
     .use = "1 0",
     .scale = 0.137f},
};
/* clang-format on */

static float to_half(double value)
{
    return (float)mla_ref_decode(MLA_DTYPE_F16, mla_ref_encode(MLA_DTYPE_F16, value));
}

/* An fp32 number of at most 127 as the kernel makes an int8 of it: by way of fp16, both to nearest even. */
static int32_t to_int8(float x)
{
    return (int32_t)nearbyintf(to_half(x));
}

typedef struct model_row {
    double out[NOPE], slack[NOPE]; /* before the output is rounded; what probabilities on an edge may change */
    double lse;
} model_row;

/* score [n] in fp32; slack follows o through the rescaling. */
static void model(const decode_case *c, int64_t b, int64_t h, const float *score, int64_t n, int64_t tile, model_row *r)
{
    memset(r, 0, sizeof *r);
    float m = -INFINITY, l = 0, o[NOPE] = {0};
    for (int64_t begin = 0; begin < n; begin += tile) {
        int64_t end = begin + tile < n ? begin + tile : n;
        float largest = -INFINITY;
        for (int64_t p = begin; p < end; p++) {
            largest = fmaxf(largest, score[p]);
        }
        float next = fmaxf(m, largest), fade = expf(m - next), a = expf(largest - next) * (1.0f / 127), sum = 0;
        int32_t dots[NOPE] = {0};
        double edge[NOPE] = {0};
        for (int64_t p = begin; p < end; p++) {
            float probability = expf(score[p] - next), x = probability / a;
            const float *v = key_row(c, b, p);
            int32_t code = to_int8(x);
            double off = 2e-6 * fabs(score[p]) + 4e-6; /* relative: a score of 576 products, exp and the division */
            bool on_edge = to_int8(x * (float)(1 - off)) != code || to_int8(x * (float)(1 + off)) != code;
            sum += probability;
            for (int64_t d = 0; d < NOPE && (code != 0 || on_edge); d++) {
                dots[d] += code * (int32_t)v[d];
                edge[d] += on_edge ? fabs(v[d]) : 0;
            }
        }
        l = l * fade + sum;
        for (int64_t d = 0; d < NOPE; d++) {
            o[d] = o[d] * fade + (float)dots[d] * (c->pv_descale[h] * a);
            r->slack[d] = r->slack[d] * fade + edge[d] * fabs((double)c->pv_descale[h] * a);
        }
        m = next;
    }
    for (int64_t d = 0; d < NOPE && n > 0; d++) {
        r->out[d] = o[d] / l;
        r->slack[d] = r->slack[d] / l;
    }
    r->lse = n > 0 ? m + log(l) : -INFINITY;
}

static void judge_row(const decode_case *c, const decode_reference *truth, int64_t at, const model_row *r,
                      const double *got, double lse)
{
    double change = 0;
    for (int64_t d = 0; d < NOPE; d++) {
        double want = r->out[d], weight = truth->weight[at * NOPE + d];
        double limit =
            half_ulp(c->config.dtype) * (fabs(want) + r->slack[d]) * 1.01 + r->slack[d] + 2e-5 * weight + 0x1p-25;
        if (!(fabs(got[d] - want) <= limit)) {
            fail_msg("row %lld, column %lld: %.9g instead of %.9g, limit %.3g", (long long)at, (long long)d, got[d],
                     want, limit);
        }
        change += r->slack[d] / (weight + 1e-30) / NOPE;
    }
    assert_true(change < 0.05); /* else the model would say nothing */
    if (c->config.calc >= MLA_ATB_CALC_RING && !(lse == r->lse || fabs(lse - r->lse) <= 1e-5 * (10 + fabs(r->lse)))) {
        fail_msg("lse of row %lld: %.9g instead of %.9g", (long long)at, lse, r->lse);
    }
}

static void judge(const decode_case *c)
{
    decode_reference truth = reference_open(c);
    double *out = load_all(&c->out), *lse = load_all(&c->lse);
    int64_t tile = c->h == 128 || c->max_q > 1 ? 512 : 128, n = c->t * c->h * NOPE;
    float *score = allocate(larger(c->max_kv, 1) * 4);
    model_row *row = allocate(sizeof *row);
    for (int64_t b = 0, token = 0; b < c->b; b++) {
        for (int64_t j = 0; j < c->n_q[b]; j++, token++) {
            int64_t n_key = is_causal(c, b) ? larger(c->n_kv[b] - c->n_q[b] + j + 1, 0) : c->n_kv[b];
            for (int64_t h = 0; h < c->h; h++) {
                const float *q = c->q + (token * c->h + h) * WIDTH;
                for (int64_t p = 0; p < n_key; p++) {
                    const float *k = key_row(c, b, p);
                    float integers = (float)dot(q, k, NOPE), rope = (float)dot(q + NOPE, k + NOPE, ROPE);
                    score[p] = (integers * c->qk_descale[h] + rope) * c->config.scale;
                }
                int64_t at = token * c->h + h;
                model(c, b, h, score, n_key, tile, row);
                judge_row(c, &truth, at, row, out + at * NOPE, lse[at]);
            }
        }
    }
    assert_true(accepted_by_n(out, truth.rounded, n, c->config.dtype, WIDTH * (double)c->max_kv + 4) ||
                accepted_by_d(out, truth.out, truth.rounded, n, c->config.dtype));
    reference_close(&truth);
    free(out);
    free(lse);
    free(score);
    free(row);
}

static void test_cases(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT(CASES); i++) {
        const decode_config *f = &CASES[i];
        char name[128];
        snprintf(name, sizeof name, "case %lld: H %d, B %d, q %s, ctx %s, calc %d", (long long)i, f->h, f->b,
                 f->q != NULL ? f->q : "1", f->ctx, f->calc);
        if (f->long_mode && getenv("MLA_TEST_LONG") == NULL) {
            printf("# left out without MLA_TEST_LONG=1: %s\n", name);
            continue;
        }
        printf("# %s\n", name);
        decode_case *c = decode_open(f);
        decode_run(c);
        judge(c);
        decode_close(c);
    }
}

/* Both descales zero, as in a demo that leaves its buffers cleared: scores are rope alone, the output is 0. */
static void test_zero_descales(void **state)
{
    (void)state;
    decode_config f = {.h = 8, .b = 2, .ctx = "130", .dtype = F16, .cache = 2, .calc = 2};
    decode_case *c = decode_open(&f);
    memset(c->qk_descale, 0, (size_t)c->h * 4);
    memset(c->pv_descale, 0, (size_t)c->h * 4);
    decode_run(c);
    double *out = load_all(&c->out), *lse = load_all(&c->lse);
    decode_reference r = reference_open(c);
    for (int64_t i = 0; i < c->t * c->h * NOPE; i++) {
        assert_true(out[i] == 0);
    }
    for (int64_t i = 0; i < c->t * c->h; i++) {
        assert_true(fabs(lse[i] - r.lse[i]) < 1e-4);
    }
    reference_close(&r);
    free(out);
    free(lse);
    decode_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_zero_descales)};
    return cmocka_run_group_tests_name("ATB: decode with an int8 cache", tests, NULL, NULL);
}
