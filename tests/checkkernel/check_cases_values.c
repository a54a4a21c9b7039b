/*
 * check_cases_values.c - fault reports about numbers: lse (C), masks (D), range and precision (H), determinism (I),
 * lists and sinks (J), the CPU (K). See check_cases.c.
 */
#include <math.h>
#include <string.h>

#include "cases.h"
#include "ref/number.h"

static double value_at(const mla_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return mla_ref_load(t->data, t->dtype, ck_offset(t, i0, i1, i2, i3));
}

static void expect_near(const char *what, double got, double want, double allowed)
{
    if (!(fabs(got - want) <= allowed)) {
        ck_fail("%s = %.9g, expected %.9g within %.2g", what, got, want, allowed);
    }
}

/* ---- C: lse ------------------------------------------------------------------------------------------------------ */

static void case_c2(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){256});
    case_run(&p);
    case_expect(&p, 0, 0, 127.5, log(256.0));
    p.lse_base = MLA_LSE_BASE2;
    ck_reset_outputs(&p);
    case_run(&p);
    case_expect(&p, 0, 0, 127.5, 8);
}

/* One split, two, three and more: same result, and lse is written in all of them. */
static void case_c7(void)
{
    int64_t n_split_kinds = 0, before = -1;
    for (int32_t length = 32; length <= 32768; length *= 2) {
        size_t mark = ck_mark();
        mla_problem p =
            case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 1, .page = 64, .d_k = 64, .dtype = MLA_DTYPE_F32},
                       (int32_t[]){length});
        ck_execute(&p, &(ck_run){.n_thread = 4});
        /* sums of integers below 2^24 are exact, up to 5792 keys; beyond, n roundings of at most u each */
        double mean = (double)(length - 1) / 2, allowed = 0x1p-24 * (8 * sqrt((double)length) + 4) * mean;
        for (int64_t c = 0; c < 64; c++) {
            expect_near("o", value_at(&p.o, 0, 0, 0, c), mean, allowed);
        }
        expect_near("lse", value_at(&p.lse, 0, 0, 0, 0), log((double)length), 0x1p-24 * 8 * log((double)length));
        if (!ck_subject_now->broken) {
            mla_plan *plan;
            mla_plan_info info;
            CK_REQUIRE(mla_plan_build(&p, &(mla_plan_options){.backend = ck_subject_now->backend, .n_thread = 4},
                                      &plan) == MLA_STATUS_OK);
            CK_REQUIRE(mla_plan_describe(plan, &info) == MLA_STATUS_OK);
            n_split_kinds += info.n_slot != before;
            before = info.n_slot;
            mla_plan_free(plan);
        }
        ck_release(mark);
    }
    CK_REQUIRE(ck_subject_now->broken || ck_subject_now->backend == MLA_BACKEND_REF || n_split_kinds >= 4);
}

/* One key: lse is the scaled score itself. */
static void case_c9(void)
{
    static const float scales[] = {0.5f, 1, 0.125f, -2, 0};
    for (int x = 0; x < 5; x++) {
        mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){1});
        case_fill(&p.q, 0, 16 * 576, 0.5);
        case_fill(&p.segment[0].k, 0, 576, 3);
        p.softmax_scale = scales[x];
        case_run(&p);
        case_expect(&p, 0, 0, 3, (double)scales[x] * 576 * 1.5);
    }
}

static void case_c10(void)
{
    ck_config c = ck_config_plain(1, 1, 16, 64, 64, 6000);
    mla_problem first;
    ck_make(&c, &first);
    ck_execute(&first, &(ck_run){.n_thread = 4});
    for (int x = 0; x < 100; x++) {
        size_t mark = ck_mark();
        mla_problem again = ck_with_new_outputs(&first, CK_DENSE);
        ck_execute(&again, &(ck_run){.n_thread = 4});
        ck_same_bits(&first, &again, "one run and the next");
        ck_release(mark);
    }
}

/* ---- D: masks ---------------------------------------------------------------------------------------------------- */

static void case_d1(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 2, .h_q = 16, .page = 64, .causal = true}, (int32_t[]){65});
    case_run(&p);
    case_expect(&p, 0, 0, 31.5, log(64.0));
    case_expect(&p, 0, 1, 32, log(65.0));
}

static void case_d2(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 4, .h_q = 2, .page = 64, .causal = true}, (int32_t[]){2});
    case_run(&p);
    case_expect(&p, 0, 0, 0, INFINITY);
    case_expect(&p, 0, 1, 0, INFINITY);
    case_expect(&p, 0, 2, 0, 0);
    case_expect(&p, 0, 3, 0.5, log(2.0));
}

static void case_d3(void)
{
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16};
    for (int x = 0; x < 3; x++) {
        for (int causal = 0; causal < 2; causal++) {
            mla_problem p =
                case_dense(&(case_shape){.b = 1, .s_q = 2, .h_q = 16, .page = 64, .causal = causal, .dtype = dtypes[x]},
                           (int32_t[]){65});
            case_run(&p);
            case_expect_mean(&p, 0, 0, 0, causal ? 64 : 65);
            case_expect_mean(&p, 0, 1, 0, 65);
        }
    }
}

/* A plan made for one query token per sequence is refused for two. */
static void case_d4(void)
{
    const case_shape one = {.b = 2, .s_q = 1, .h_q = 16, .page = 64, .causal = true};
    case_shape two = one;
    two.s_q = 2;
    mla_problem first = case_dense(&one, (int32_t[]){70, 5}), second = case_dense(&two, (int32_t[]){70, 5});
    mla_plan *plan;
    mla_plan_options options = {.backend = ck_subject_now->backend, .n_thread = 1};
    CK_REQUIRE(mla_plan_build(&first, &options, &plan) == MLA_STATUS_OK);
    size_t bytes = mla_plan_workspace_bytes(plan);
    void *workspace = ck_buffer("workspace", bytes);
    CK_REQUIRE(mla_run(plan, &second, workspace, bytes, NULL) == MLA_STATUS_STALE_PLAN);
    CK_REQUIRE(ck_is_untouched(second.o.data, second.o.dtype, 0));
    CK_REQUIRE(mla_run(plan, &first, workspace, bytes, NULL) == MLA_STATUS_OK);
    case_expect_mean(&first, 0, 0, 0, 70);
    mla_plan_free(plan);
}

static void case_d7(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 6, .h_kv = 3, .page = 64}, (int32_t[]){10});
    for (int64_t t = 0; t < 10; t++) {
        for (int64_t h = 0; h < 3; h++) {
            case_fill(&p.segment[0].k, ck_offset(&p.segment[0].k, 0, t, h, 0), 576, (double)h);
        }
    }
    case_run(&p);
    for (int64_t h = 0; h < 6; h++) {
        for (int64_t c = 0; c < 512; c++) {
            expect_near("o", value_at(&p.o, 0, 0, h, c), (double)(h / 2), 0);
        }
    }
}

static void case_d9(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 4, .h_q = 2, .page = 64, .causal = true}, (int32_t[]){2});
    mla_problem ragged = p;
    for (int x = 0; x < 3; x++) { /* [1][token][head][d] is [token][head][d] */
        mla_tensor *t = x == 0 ? &ragged.q : x == 1 ? &ragged.o : &ragged.lse;
        t->ndim--;
        memmove(t->dim, t->dim + 1, 3 * sizeof(int64_t));
        memmove(t->stride, t->stride + 1, 3 * sizeof(int64_t));
    }
    ragged.q_begin = case_i32("q_begin", 2, (int32_t[]){0, 4});
    case_run(&ragged);
    case_expect(&p, 0, 0, 0, INFINITY);
    case_expect(&p, 0, 1, 0, INFINITY);
    case_expect(&p, 0, 2, 0, 0);
    case_expect(&p, 0, 3, 0.5, log(2.0));
}

static void case_d10(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){10});
    p.segment[0].visible.rule = MLA_VISIBLE_WINDOW;
    p.segment[0].visible.left = 3;
    p.segment[0].visible.right = 0;
    case_run(&p);
    case_expect_mean(&p, 0, 0, 6, 4);
}

/* ---- H: NaN, range, precision ------------------------------------------------------------------------------------ */

static void case_h1(void)
{
    ck_config nan = ck_config_plain(4, 2, 16, 576, 512, 0), zero;
    const int64_t lengths[] = {100, 1, 64, 129};
    memcpy(nan.segment[0].length, lengths, sizeof lengths);
    nan.segment[0].n_length = 4;
    nan.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
    zero = nan;
    zero.poison = CK_POISON_ZERO;
    mla_problem a, b;
    ck_make(&nan, &a);
    ck_make(&zero, &b);
    ck_execute(&a, NULL);
    ck_execute(&b, NULL);
    ck_same_bits(&a, &b, "NaN and 0 in unused pages and tails");
    ck_compare(&a, false, CK_WORK);
}

static void case_h3(void)
{
    static const mla_dtype dtypes[] = {MLA_DTYPE_F16, MLA_DTYPE_BF16, MLA_DTYPE_F32};
    for (int x = 0; x < 3; x++) {
        mla_problem p =
            case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 64, .dtype = dtypes[x]}, (int32_t[]){1});
        case_fill(&p.q, 0, 16 * 576, 16);
        case_fill(&p.segment[0].k, 0, 576, 16);
        p.softmax_scale = 1e-5f;
        case_run(&p);
        case_expect(&p, 0, 0, 16, 147456 * (double)1e-5f);
    }
}

/* Scores 1e4 and 1e4 - 1. In base 2 units 14427 is rounded by at most 2^-11, twice per score at most, which moves the
 * logarithm of the ratio of the weights by at most 4 * 2^-11 * ln 2 = 1.4e-3, and a weight by a quarter of it. */
static void case_h4(void)
{
    mla_problem p =
        case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 64, .d_k = 64, .dtype = MLA_DTYPE_F32},
                   (int32_t[]){2});
    float *k = p.segment[0].k.data;
    memset(k, 0, 2 * 64 * sizeof *k);
    k[0] = 1e4f;
    k[64] = 9999;
    k[1] = 1; /* the value that tells the two keys apart */
    for (int64_t h = 0; h < 16; h++) {
        ((float *)p.q.data)[h * 64] = 1;
    }
    p.softmax_scale = 1;
    case_run(&p);
    for (int64_t h = 0; h < 16; h++) {
        expect_near("o", value_at(&p.o, 0, 0, h, 1), exp(1) / (1 + exp(1)), 3.5e-4);
        expect_near("lse", value_at(&p.lse, 0, 0, h, 0), 1e4 + log1p(exp(-1)), 4 * 0x1p-24 * 1e4);
    }
    ck_compare(&p, false, CK_WORK);
}

/* Any finite scaled score gives the exact softmax: all equal to -1e30 is a plain mean. */
static void case_huge_equal(void)
{
    static const float scales[] = {-1e30f, 1e30f, -1e38f, 2e38f};
    for (int x = 0; x < 4; x++) {
        for (int apart = 0; apart < 2; apart++) {
            mla_problem p =
                case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 64, .d_k = 64, .dtype = MLA_DTYPE_F32},
                           (int32_t[]){200});
            float *k = p.segment[0].k.data;
            for (int t = 0; t < 200; t++) { /* the score is column 0 alone */
                k[t * 64] = apart && t >= 100 ? 0.5f : 1;
            }
            for (int64_t h = 0; h < 16; h++) {
                ((float *)p.q.data)[h * 64] = 1;
            }
            p.softmax_scale = scales[x];
            ck_context("scores of %g%s", (double)scales[x], apart ? " and half of that" : "");
            case_run(&p);
            /* apart: half of the scores are half as large, so one half of the keys has all the weight */
            double mean = !apart ? 99.5 : scales[x] > 0 ? 49.5 : 149.5;
            for (int64_t h = 0; h < 16; h++) {
                for (int64_t c = 1; c < 64; c++) {
                    expect_near("o", value_at(&p.o, 0, 0, h, c), mean, 4 * 0x1p-24 * mean);
                }
                double largest = (double)scales[x] * (apart && scales[x] < 0 ? 0.5 : 1);
                expect_near("lse", value_at(&p.lse, 0, 0, h, 0), largest, 8 * 0x1p-24 * fabs(largest));
            }
        }
    }
}

/* Scales at both ends of fp32, with scores of ordinary size. */
static void case_scale_ends(void)
{
    static const float scales[] = {0x1p-126f, 0x1p-100f, -0x1p-60f, 0x1p100f, 0x1p126f, 0x1.8p127f};
    for (int x = 0; x < 6; x++) {
        for (int64_t heads = 1; heads <= 16; heads += 15) {
            mla_problem p =
                case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = heads, .page = 64, .d_k = 64, .dtype = MLA_DTYPE_F32},
                           (int32_t[]){2});
            int exponent;
            (void)frexpf(scales[x], &exponent);
            float *k = p.segment[0].k.data; /* q k of about 1 / scale, shared between the two, and of twice that */
            memset(k, 0, 2 * 64 * sizeof *k);
            k[0] = ldexpf(1, -exponent / 2);
            k[64] = 2 * k[0];
            k[1] = 1;
            for (int64_t h = 0; h < heads; h++) {
                ((float *)p.q.data)[h * 64] = ldexpf(1, -exponent + exponent / 2);
            }
            p.softmax_scale = scales[x];
            ck_context("scale %g, %lld heads", (double)scales[x], (long long)heads);
            case_run(&p);
            ck_compare(&p, false, CK_WORK);
        }
    }
}

static void case_h6(void)
{
    for (int x = 0; x < 3; x++) {
        ck_config c = ck_config_plain(2, 2, 16, 576, 512, 200 + 300 * x);
        c.inputs = CK_LARGE_Q;
        ck_check_config(&c);
    }
}

static void case_h8(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 16}, (int32_t[]){1});
    case_fill(&p.segment[0].k, 0, 576, 7); /* rows 1 to 15 of the page are NaN */
    case_run(&p);
    case_expect(&p, 0, 0, 7, 0);
}

/* ---- I: determinism ---------------------------------------------------------------------------------------------- */

static void alone_and_in_batch(int64_t n_seq, int64_t length)
{
    ck_config c = ck_config_plain(n_seq, 1, 16, 64, 64, length), single;
    c.segment[0].n_length = n_seq < 24 ? n_seq : 24;
    for (int64_t s = 1; s < c.segment[0].n_length; s++) {
        c.segment[0].length[s] = (s * 37) % 300;
    }
    single = c;
    single.n_seq = 1;
    mla_problem batch, alone;
    ck_make(&c, &batch);
    ck_make(&single, &alone);
    ck_execute(&batch, &(ck_run){.n_thread = 3});
    ck_execute(&alone, &(ck_run){.n_thread = 2});
    batch.o.dim[0] = batch.lse.dim[0] = batch.max.dim[0] = 1;
    ck_same_bits(&alone, &batch, "row 0 alone and in a batch");
}

static void case_i1(void)
{
    alone_and_in_batch(128, 2000);
}

static void case_i2(void)
{
    alone_and_in_batch(8, 8192);
}

static void case_i5(void)
{
    static const int32_t threads[] = {3, 16};
    ck_config c = ck_config_plain(3, 1, 16, 64, 64, 5000);
    mla_problem one;
    ck_make(&c, &one);
    ck_execute(&one, NULL);
    for (int x = 0; x < 2; x++) {
        mla_problem many = ck_with_new_outputs(&one, CK_DENSE);
        ck_execute(&many, &(ck_run){.n_thread = threads[x]});
        ck_same_bits(&one, &many, "1 thread and more");
    }
}

/* ---- J: lists and sinks ------------------------------------------------------------------------------------------ */

static mla_tensor list_of(int64_t b, int64_t n, const int32_t *entry)
{
    mla_tensor t = ck_tensor("indices", MLA_DTYPE_I32, 3, (int64_t[]){b, 1, n}, CK_DENSE);
    memcpy(t.data, entry, (size_t)(b * n) * sizeof *entry);
    return t;
}

static void case_j1(void)
{
    static const mla_list_address address[] = {MLA_LIST_PHYSICAL, MLA_LIST_LOGICAL};
    for (int x = 0; x < 2; x++) {
        mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){64});
        p.segment[0].list = list_of(1, 6, (int32_t[]){INT32_MIN, -2, -1, 64, INT32_MAX, 3});
        p.segment[0].list_address = address[x];
        case_run(&p);
        case_expect(&p, 0, 0, 3, 0);
    }
}

static void case_j2(void)
{
    static const int32_t lengths[] = {0, 1, 64, 65, 128};
    mla_problem p =
        case_dense(&(case_shape){.b = 5, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){128, 128, 128, 128, 128});
    mla_segment *s = &p.segment[0];
    int32_t entry[5 * 128];
    for (int b = 0; b < 5; b++) {
        for (int j = 0; j < 128; j++) { /* behind the length: a row of NaN, and numbers that are no rows */
            entry[b * 128 + j] = j < lengths[b] ? j : j % 3 ? 129 * 64 + j : 2147480000;
        }
    }
    s->list = list_of(5, 128, entry);
    s->list_address = MLA_LIST_PHYSICAL;
    s->list_length = case_i32("topk_length", 5, lengths);
    mla_tensor small = s->k;
    s->k = ck_tensor("k_cache", MLA_DTYPE_BF16, 4, (int64_t[]){200, 64, 1, 576}, CK_DENSE);
    memcpy(s->k.data, small.data, 2 * 64 * 576 * sizeof(uint16_t));
    s->page_table = s->length = (mla_tensor){0};
    case_run(&p);
    for (int b = 0; b < 5; b++) {
        case_expect_mean(&p, b, 0, 0, lengths[b]);
    }
}

static void case_j3(void)
{
    ck_config c = ck_config_plain(4, 2, 16, 576, 512, 300);
    c.segment[0].list = CK_PHYSICAL;
    c.segment[0].n_entry = 128;
    ck_check_config(&c);
}

static void case_j4(void)
{
    static const double sinks[] = {0, -INFINITY, INFINITY};
    static const double factors[] = {2.0 / 3, 1, 0};
    for (int x = 0; x < 3; x++) {
        mla_problem p =
            case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 64, .dtype = MLA_DTYPE_F32}, (int32_t[]){2});
        case_fill(&p.segment[0].k, 0, 2 * 576, 3);
        p.sink = ck_tensor("attn_sink", MLA_DTYPE_F32, 1, (int64_t[]){16}, CK_DENSE);
        case_fill(&p.sink, 0, 16, sinks[x]);
        case_run(&p);
        case_expect(&p, 0, 0, 3 * factors[x], log(2.0));
        ck_reset_outputs(&p);
        p.lse_with_sink = true;
        case_run(&p);
        case_expect(&p, 0, 0, 3 * factors[x], x == 0 ? log(3.0) : x == 1 ? log(2.0) : INFINITY);
    }
}

/* ---- K: CPU ------------------------------------------------------------------------------------------------------ */

static void case_k2(void)
{
    ck_config c = ck_config_plain(2, 2, 16, 576, 512, 200);
    c.q_dtype = c.segment[0].dtype = c.o_dtype = MLA_DTYPE_F16;
    ck_check_config(&c);
}

const ck_test ck_case_value_tests[] = {
    {.name = "case/C2", .run = case_c2},
    {.name = "case/C7", .run = case_c7, .host = true},
    {.name = "case/C9", .run = case_c9},
    {.name = "case/C10", .run = case_c10},
    {.name = "case/D1", .run = case_d1},
    {.name = "case/D2", .run = case_d2},
    {.name = "case/D3", .run = case_d3},
    {.name = "case/D4", .run = case_d4, .host = true, .library = true},
    {.name = "case/D7", .run = case_d7},
    {.name = "case/D9", .run = case_d9},
    {.name = "case/D10", .run = case_d10},
    {.name = "case/H1", .run = case_h1},
    {.name = "case/H3", .run = case_h3},
    {.name = "case/H4", .run = case_h4},
    {.name = "case/H4_huge_equal", .run = case_huge_equal},
    {.name = "case/H4_scale_ends", .run = case_scale_ends},
    {.name = "case/H6", .run = case_h6},
    {.name = "case/H8", .run = case_h8},
    {.name = "case/I1", .run = case_i1, .host = true},
    {.name = "case/I2", .run = case_i2},
    {.name = "case/I5", .run = case_i5},
    {.name = "case/J1", .run = case_j1},
    {.name = "case/J2", .run = case_j2},
    {.name = "case/J3", .run = case_j3},
    {.name = "case/J4", .run = case_j4},
    {.name = "case/K2", .run = case_k2},
    {0},
};
