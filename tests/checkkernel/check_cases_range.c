/*
 * check_cases_range.c - numbers at the ends of what fp32 holds: scales that cancel, scores beside the largest number,
 * masks at it, factors of zero. See check_cases.c.
 */
#include <float.h>
#include <math.h>

#include "cases.h"
#include "ref/number.h"

static const int64_t few_and_many[] = {1, 3, 20}; /* rows: different ways through the library */
enum { N_WAY = 3 };

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

/* An f32 decode of one sequence whose score is q[0] k[0] alone: q [n_head][64] is `q` there, key t is k[t % 2]. */
static mla_problem one_column(int64_t n_head, int32_t n_key, float q, float k_even, float k_odd)
{
    mla_problem p =
        case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = n_head, .page = 64, .d_k = 64, .dtype = MLA_DTYPE_F32},
                   &n_key);
    p.max = ck_tensor("max", MLA_DTYPE_F32, 3, (int64_t[]){1, 1, n_head}, CK_DENSE);
    p.softmax_scale = 1;
    for (int64_t h = 0; h < n_head; h++) {
        ((float *)p.q.data)[h * 64] = q;
    }
    for (int64_t t = 0; t < n_key; t++) {
        ((float *)p.segment[0].k.data)[t * 64] = t % 2 ? k_odd : k_even;
    }
    return p;
}

static mla_tensor factors(const char *name, int64_t n, double value)
{
    mla_tensor t = ck_tensor(name, MLA_DTYPE_F32, 1, &n, CK_DENSE);
    case_fill(&t, 0, n, value);
    return t;
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

/* Descales that cancel: neither q nor k may be scaled by one of them alone. */
static void case_cancelling_descales(void)
{
    static const float q_descales[] = {1e30f, 1e-30f, 1e37f};
    for (int i = 0; i < 3; i++) {
        for (int way = 0; way < N_WAY; way++) {
            ck_config c = ck_config_plain(2, 1, few_and_many[way], 64, 64, 200);
            c.q_descale = q_descales[i];
            c.segment[0].descale = 1 / q_descales[i];
            c.segment[1].descale = 3 / q_descales[i];
            c.n_segment = 1 + way % 2; /* one softmax over keys of different descales */
            ck_check_config(&c);
        }
    }
}

/* A scale of 0 makes all scores 0, also where q.k alone is beyond fp32: a plain mean. */
static void case_zero_scale(void)
{
    for (int way = 0; way < N_WAY; way++) {
        mla_problem p = one_column(few_and_many[way], 200, 1e20f, 1e19f, -2e19f);
        p.softmax_scale = 0;
        ck_context("%lld heads", (long long)few_and_many[way]);
        case_run(&p);
        ck_compare(&p, false, CK_WORK);
        for (int64_t h = 0; h < few_and_many[way]; h++) {
            CK_REQUIRE(value_at(&p.max, 0, 0, h, 0) == 0);
        }
    }
}

/* q.k is beyond fp32, the descale brings it back. Scores of 1e37 that are equal give a mean, of unequal ones only the
 * larger count. */
static void case_descale_brings_back(void)
{
    for (int x = 0; x < 2; x++) {
        for (int way = 0; way < N_WAY; way++) {
            mla_problem p = one_column(few_and_many[way], 200, 1e20f, 1e19f, x ? 0.5e19f : 1e19f);
            p.segment[0].descale = factors("descale", 1, 1e-2);
            ck_context("%lld heads, %s scores", (long long)few_and_many[way], x ? "different" : "equal");
            case_run(&p);
            double mean = (x ? 99 : 99.5) * (double)1e-2f, score = (double)1e20f * (double)1e19f * (double)1e-2f;
            for (int64_t h = 0; h < few_and_many[way]; h++) {
                for (int64_t c = 1; c < 64; c++) { /* sums of integers are exact; division and two products are not */
                    expect_near("o", value_at(&p.o, 0, 0, h, c), mean, 6 * 0x1p-24 * mean);
                }
                expect_near("lse", value_at(&p.lse, 0, 0, h, 0), score, 8 * 0x1p-24 * score);
                expect_near("max", value_at(&p.max, 0, 0, h, 0), score, 8 * 0x1p-24 * score);
            }
        }
    }
}

/* A scale below the smallest normal number, with scores of ordinary size: q keeps all its bits on the way. */
static void case_subnormal_scale(void)
{
    enum { D = 576 };
    for (int way = 0; way < N_WAY; way++) {
        int64_t n_head = few_and_many[way];
        mla_problem p = case_dense(&(case_shape){.b = 1,
                                                 .s_q = 1,
                                                 .h_q = n_head,
                                                 .page = 64,
                                                 .d_k = D,
                                                 .d_v = 64,
                                                 .dtype = MLA_DTYPE_F32},
                                   (int32_t[]){3});
        p.softmax_scale = 0x1p-140f;
        case_fill(&p.q, 0, n_head * D, 1.0 + 1.0 / 3);
        p.segment[0].v = ck_tensor("v_cache", MLA_DTYPE_F32, 4, (int64_t[]){1, 64, 1, 64}, CK_DENSE);
        for (int64_t t = 0; t < 3; t++) {
            case_fill(&p.segment[0].v, t * 64, 64, (double)t);
            case_fill(&p.segment[0].k, t * D, D, t == 0 ? 0x1.8p127 : t == 1 ? 0x1.1p127 : 0x1p100);
        }
        ck_context("%lld heads", (long long)n_head);
        case_run(&p);
        ck_compare(&p, true, CK_WORK);
    }
}

/* ---- scores beside the largest number ---------------------------------------------------------------------------- */

/* Beyond 2e38 nothing is promised but that no NaN comes of numbers. */
static void case_largest_scores(void)
{
    static const float scores[][2] = {{3e38f, 3e38f}, {-3e38f, -3e38f}, {3e38f, 0}, {-3e38f, 0}, {3e38f, -3e38f}};
    for (int i = 0; i < 5; i++) {
        for (int32_t n_key = 1; n_key <= 201; n_key += 100) {
            for (int way = 0; way < N_WAY; way++) {
                size_t mark = ck_mark();
                mla_problem p = one_column(few_and_many[way], n_key, 1, scores[i][0], scores[i][1]);
                ck_context("%d scores of %g and %g, %lld heads", n_key, (double)scores[i][0], (double)scores[i][1],
                           (long long)few_and_many[way]);
                case_run(&p);
                for (int64_t h = 0; h < few_and_many[way]; h++) {
                    for (int64_t c = 0; c < 64; c++) {
                        CK_REQUIRE(!isnan(value_at(&p.o, 0, 0, h, c)));
                    }
                    CK_REQUIRE(!isnan(value_at(&p.lse, 0, 0, h, 0)) && !isnan(value_at(&p.max, 0, 0, h, 0)));
                }
                ck_release(mark);
            }
        }
    }
}

/* The lowest number in a mask is no -inf: keys that all have it are equal, and nothing beside keys without it. */
static void case_lowest_mask(void)
{
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_BF16};
    static const double lowest[] = {-(double)FLT_MAX, -0x1.fep127};
    for (int i = 0; i < 4; i++) {
        for (int way = 0; way < N_WAY; way++) {
            size_t mark = ck_mark();
            bool half = i >= 2; /* keys from 100 on have a mask of 0 */
            mla_problem p = one_column(few_and_many[way], 200, 1, 1, -1);
            mla_tensor mask = ck_tensor("mask", dtypes[i % 2], 3, (int64_t[]){1, 1, 200}, CK_DENSE);
            case_fill(&mask, 0, 200, lowest[i % 2]);
            if (half) {
                p.softmax_scale = 0;
                case_fill(&mask, 100, 100, 0);
            }
            p.segment[0].mask = mask;
            ck_context("%lld heads, a mask of %s, %s", (long long)few_and_many[way], mla_dtype_name(dtypes[i % 2]),
                       half ? "half of it lowest" : "lowest");
            case_run(&p);
            double mean = half ? 149.5 : 99.5;
            for (int64_t h = 0; h < few_and_many[way]; h++) {
                for (int64_t c = 1; c < 64; c++) { /* sums of integers are exact */
                    expect_near("o", value_at(&p.o, 0, 0, h, c), mean, 4 * 0x1p-24 * mean);
                }
                double lse = value_at(&p.lse, 0, 0, h, 0);
                CK_REQUIRE(half ? fabs(lse - log(100.0)) <= 8 * 0x1p-24 * log(100.0) : lse < -1e38 && lse > -INFINITY);
            }
            ck_release(mark);
        }
    }
}

/* ---- factors of zero --------------------------------------------------------------------------------------------- */

/* Where the sink takes everything, or pv_descale is 0, o is +0, whatever the values are. The oracle, which multiplies as
 * it is written, is held to it for finite values and up to the sign. */
static void case_zero_factor(void)
{
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16};
    bool cpu = ck_subject_now->backend == MLA_BACKEND_CPU;
    for (int i = 0; i < 3 * N_WAY * 2 * (cpu ? 2 : 1); i++) {
        size_t mark = ck_mark();
        int64_t n_head = few_and_many[i / 3 % N_WAY];
        bool by_sink = i / (3 * N_WAY) % 2 == 0, infinite = i >= 3 * N_WAY * 2;
        mla_problem p = one_column(n_head, 200, 1, 0, 0);
        p.o = ck_tensor("o", dtypes[i % 3], 4, (int64_t[]){1, 1, n_head, 64}, CK_DENSE);
        case_fill(&p.segment[0].k, 64, 64 * 199, -3); /* sums of these come out below 0 */
        if (infinite) {
            case_fill(&p.segment[0].k, 64 * 70 + 1, 63, INFINITY); /* not the column of the score */
            case_fill(&p.segment[0].k, 64 * 71 + 1, 20, -INFINITY);
        }
        for (int64_t h = 0; h < n_head; h++) { /* else the score of an infinite key is NaN */
            case_fill(&p.q, h * 64 + 1, 63, infinite ? 0 : 0.25);
        }
        if (infinite) { /* scores come from keys without infinities */
            p.segment[0].v = p.segment[0].k;
            p.segment[0].k = ck_tensor("k_cache", MLA_DTYPE_F32, 4, p.segment[0].v.dim, CK_DENSE);
            case_fill(&p.segment[0].k, 0, p.segment[0].k.dim[0] * p.segment[0].k.stride[0], 0.5);
        }
        if (by_sink) {
            p.sink = factors("sink", n_head, INFINITY);
        } else {
            p.pv_descale = factors("pv_descale", n_head, 0);
        }
        ck_context("o %s, %lld heads, %s, %s values", mla_dtype_name(dtypes[i % 3]), (long long)n_head,
                   by_sink ? "a sink of inf" : "pv_descale 0", infinite ? "infinite" : "finite");
        case_run(&p);
        for (int64_t h = 0; h < n_head; h++) {
            for (int64_t c = 0; c < 64; c++) {
                double got = value_at(&p.o, 0, 0, h, c);
                if (got != 0 || (cpu && signbit(got))) {
                    ck_fail("o[0][0][%lld][%lld] = %g, expected +0", (long long)h, (long long)c, got);
                }
            }
        }
        ck_release(mark);
    }
}

/* ---- not a number ------------------------------------------------------------------------------------------------ */

/* A NaN score is not hidden by any sink, not even by one that takes everything: o, lse and max are NaN, everywhere as in
 * the oracle. */
static void case_nan_beside_sink(void)
{
    static const double sinks[] = {0, -INFINITY, INFINITY};
    for (int i = 0; i < 2 * 3 * N_WAY; i++) {
        size_t mark = ck_mark();
        int64_t n_head = few_and_many[i % N_WAY];
        mla_problem p = one_column(n_head, 200, 1, 0.5f, 0.25f);
        p.sink = factors("sink", n_head, sinks[i / N_WAY % 3]);
        p.lse_with_sink = i >= 3 * N_WAY;
        case_fill(&p.segment[0].k, 64 * 150, 1, NAN);
        ck_context("%lld heads, a sink of %g, lse %s it", (long long)n_head, sinks[i / N_WAY % 3],
                   p.lse_with_sink ? "with" : "without");
        case_run(&p);
        for (int64_t h = 0; h < n_head; h++) {
            CK_REQUIRE(isnan(value_at(&p.o, 0, 0, h, 0)) && isnan(value_at(&p.o, 0, 0, h, 63)));
            CK_REQUIRE(isnan(value_at(&p.lse, 0, 0, h, 0)) && isnan(value_at(&p.max, 0, 0, h, 0)));
        }
        ck_release(mark);
    }
}

/* ---- lists of physical rows -------------------------------------------------------------------------------------- */

/* A packed pool and a list of its rows need no k_begin, whichever backend runs them. */
static void case_rows_without_begin(void)
{
    for (int way = 0; way < N_WAY; way++) {
        ck_config c = ck_config_plain(3, 2, few_and_many[way], 64, 64, 150);
        c.segment[0].addressing = MLA_ADDRESS_PACKED;
        c.segment[0].no_length = true;
        c.segment[0].list = CK_PHYSICAL;
        c.segment[0].n_entry = 90;
        mla_problem with, without, ref;
        ck_context("%lld heads", (long long)few_and_many[way]);
        ck_make(&c, &with);
        case_run(&with);
        without = ck_with_new_outputs(&with, CK_DENSE);
        without.segment[0].k_begin = without.segment[0].length = (mla_tensor){0};
        ref = ck_with_new_outputs(&without, CK_DENSE);
        case_run(&without);
        ck_same_bits(&with, &without, "with and without k_begin");
        ck_compare(&without, false, CK_WORK);
        CK_REQUIRE(mla_attention(&ref, &(mla_plan_options){.backend = MLA_BACKEND_REF, .n_thread = 1}) ==
                   MLA_STATUS_OK);
        ck_compare(&ref, false, CK_WORK);
    }
}

const ck_test ck_case_range_tests[] = {
    {.name = "case/scale_split_descales", .run = case_cancelling_descales, .library = true},
    {.name = "case/scale_split_zero", .run = case_zero_scale, .library = true},
    {.name = "case/scale_split_descale_back", .run = case_descale_brings_back, .library = true},
    {.name = "case/scale_split_subnormal", .run = case_subnormal_scale, .library = true},
    {.name = "case/largest_scores", .run = case_largest_scores, .library = true},
    {.name = "case/lowest_mask", .run = case_lowest_mask, .library = true},
    {.name = "case/zero_factor", .run = case_zero_factor, .library = true},
    {.name = "case/nan_beside_sink", .run = case_nan_beside_sink, .library = true},
    {.name = "case/rows_without_begin", .run = case_rows_without_begin, .library = true},
    {0},
};
