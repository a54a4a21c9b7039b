/*
 * check_fixed.c - fixed point (MLA_ARITHMETIC_INT16): every rule of visibility within the bound of compare_fixed.c,
 * what accuracy is promised, when rows go by fp32, and that a row's bits depend on nothing but the row. `checkkernel
 * --arith int16` runs all other tests in fixed point too; here there are rows enough for it. Levels without it compute
 * in fp32.
 */
#include <math.h>
#include <string.h>

#include "checkkernel.h"
#include "cpu/kernels.h"
#include "ref/number.h"
#include "ref/ref.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static ck_config plain(int64_t n_seq, int64_t n_q, int64_t n_head, int64_t d_k, int64_t d_v, int64_t length)
{
    ck_config c = ck_config_plain(n_seq, n_q, n_head, d_k, d_v, length);
    c.arithmetic = MLA_ARITHMETIC_INT16;
    return c;
}

static void set_lengths(ck_segment *s, int64_t n, const int64_t *length)
{
    s->n_length = n;
    memcpy(s->length, length, (size_t)n * sizeof *length);
}

/* For a test that would say nothing without it. */
static void require_level(void)
{
    if (!ck_fixed_level()) {
        ck_skip("%s has no fixed point", ck_subject_now->name);
    }
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

static void check_dims(void)
{
    require_level();
    static const int64_t dims[][2] = {{576, 512}, {512, 512}, {320, 256}, {288, 256}, {192, 128}, {65, 64},
                                      {64, 63},   {33, 33},   {9, 8},     {7, 1},     {1, 1},     {96, 25}};
    static const int64_t lengths[] = {700, 16, 15, 97, 1, 601, 577, 96, 95, 592};
    for (int64_t i = 0; i < COUNT(dims); i++) {
        ck_config c = plain(2, 1, 17 + 13 * (i % 4), dims[i][0], dims[i][1], 0);
        set_lengths(&c.segment[0], 2, (int64_t[]){lengths[i % 10], lengths[(i * 3 + 1) % 10]});
        ck_check_config(&c);
    }
}

static void check_formats(void)
{
    require_level();
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16, MLA_DTYPE_HIF8, MLA_DTYPE_I8};
    for (int64_t i = 0; i < 5 * 4; i++) {
        ck_config c = plain(2, 1, 40, 72, 64, 150);
        c.segment[0].dtype = dtypes[i % 5];
        c.q_dtype = dtypes[(i + i / 5) % 3];
        c.segment[0].addressing = (mla_addressing)(i % 3);
        if (i / 5 % 2) { /* a rope part of its own, into which values may reach */
            c.d_nope = 48;
            c.d_rope = 24;
        } else if (i % 3 != MLA_ADDRESS_PACKED) {
            c.segment[0].piece = i % 2 ? 12 : 32;
        }
        c.segment[0].piece = c.d_nope % 32 && c.segment[0].piece == 32 ? 0 : c.segment[0].piece;
        c.segment[0].descale = i % 2 ? 0.3f : 0;
        c.q_descale = i % 3 ? 0 : 1.7f;
        c.pv_descale = i % 4 == 1;
        c.qk_descale = i % 4 == 2;
        c.layout = i % 2 ? CK_PADDED : CK_DENSE;
        ck_check_config(&c);
    }
}

static void check_rules(void)
{
    require_level();
    static const int64_t left[] = {0, 10, 127, 600, -1};
    for (int64_t i = 0; i < 5 * 4; i++) {
        ck_config c = plain(3, 1 + i % 4, 17 + i, 40, 32, 0);
        ck_segment *s = &c.segment[0];
        set_lengths(s, 3, (int64_t[]){1190, 580 + i, 19});
        s->addressing = (mla_addressing)(i % 3);
        s->visible =
            (mla_visible){.rule = (mla_visible_rule)(i % 4), .left = left[i % 5], .right = i / 4 % 3 - 1, .ratio = 3};
        s->has_residual = s->visible.rule == MLA_VISIBLE_COMPRESSED && i % 2;
        c.sink = (ck_sink)(i % 5);
        c.lse_with_sink = i % 2;
        c.lse_base = i % 3 ? MLA_LSE_NATURAL : MLA_LSE_BASE2;
        ck_check_config(&c);
        s->mask = (ck_mask)(1 + i % 4);
        s->mask_dtype = i % 2 ? MLA_DTYPE_BF16 : MLA_DTYPE_F32;
        c.poison_masked = i % 2;
        ck_check_config(&c);
    }
}

static void check_lists(void)
{
    require_level();
    for (int64_t i = 0; i < 12; i++) {
        ck_config c = plain(2, 1 + i % 2, 20 + i, 64, 48, 900);
        ck_segment *s = &c.segment[0];
        s->list = i % 2 ? CK_PHYSICAL : CK_LOGICAL;
        s->list_rule = i / 2 % 2 ? MLA_LIST_STOP : MLA_LIST_SKIP;
        s->n_entry = i < 8 ? 700 : 17;
        s->list_length = (ck_per)(i % 3);
        if (i >= 6) { /* and a second segment beside it, with a range */
            c.n_segment = 2;
            c.segment[1].dtype = MLA_DTYPE_F16;
            c.segment[1].visible = (mla_visible){.rule = MLA_VISIBLE_WINDOW, .left = 300, .right = 0};
            c.segment[1].descale = i % 2 ? 2.5f : 0;
            set_lengths(&c.segment[1], 2, (int64_t[]){650, 1300});
        }
        ck_check_config(&c);
    }
    /* keys that are named again and again: their errors are the same each time, and do not cancel */
    for (int64_t length = 1; length <= 4; length++) {
        ck_config c = plain(2, 1, 32, 320, 256, length);
        c.segment[0].list = length % 2 ? CK_LOGICAL : CK_PHYSICAL;
        c.segment[0].n_entry = 500;
        ck_check_config(&c);
    }
}

static void check_inputs(void)
{
    require_level();
    for (int inputs = 0; inputs < CK_INPUTS_COUNT; inputs++) {
        for (int64_t i = 0; i < 3; i++) {
            ck_config c = plain(1, 1 + i, 24, i == 1 ? 576 : 90, i == 1 ? 512 : 64, i == 2 ? 1300 : 210);
            c.inputs = (ck_inputs)inputs;
            c.segment[0].dtype = c.q_dtype = inputs == CK_CODES_Q || inputs == CK_CODES_K ? MLA_DTYPE_HIF8
                                             : i == 0                                     ? MLA_DTYPE_F16
                                             : i == 1                                     ? MLA_DTYPE_BF16
                                                                                          : MLA_DTYPE_F32;
            c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
            ck_context("%s", ck_inputs_name((ck_inputs)inputs));
            ck_check_config(&c);
        }
    }
}

/* ---- accuracy ---------------------------------------------------------------------------------------------------- */

/* ||o - exact|| / ||exact|| over all rows. */
static double normwise(const mla_problem *problem)
{
    mla_shape shape;
    CK_REQUIRE(mla_problem_resolve(problem, &shape) == MLA_STATUS_OK);
    void *scratch = ck_buffer("scratch", mla_ref_scratch_bytes(problem, &shape));
    double error = 0, norm = 0, o[512];
    for (int64_t h = 0; h < shape.n_head; h++) {
        mla_ref_row_result row;
        mla_ref_row(problem, &shape, 0, 0, h, scratch, o, &row);
        for (int64_t d = 0; d < 512; d++) {
            double got = mla_ref_load(problem->o.data, problem->o.dtype, ck_offset(&problem->o, 0, 0, h, d));
            error += (got - o[d]) * (got - o[d]);
            norm += o[d] * o[d];
        }
    }
    return sqrt(error / norm);
}

/*
 * What is promised of 576/512: 8e-4 on normal data, 1.6e-3, which is what rounding to bf16 costs, where columns of the
 * keys are 8 to 60 times as large as others. With a mask, even one that changes nothing, columns are not folded: that
 * must cost something, or folding is not at work. (Of columns 60 times as large most blocks go by fp32, unfolded all of
 * them.)
 */
static void check_accuracy(void)
{
    static const struct {
        ck_inputs inputs;
        double limit, folding;
    } sets[] = {{CK_NORMAL, 8e-4, 0}, {CK_OUTLIERS, 1.6e-3, 1.05}, {CK_FAR_OUTLIERS, 1.6e-3, 0}};
    for (int64_t i = 0; i < COUNT(sets) * 2; i++) {
        size_t mark = ck_mark();
        ck_config c = plain(1, 1, 20, 576, 512, i < COUNT(sets) ? 1024 : 3000);
        c.inputs = sets[i % 3].inputs;
        c.scale = (float)(1 / sqrt(192));
        ck_context("%s", ck_inputs_name(c.inputs));
        mla_problem folded, masked;
        ck_make(&c, &folded);
        ck_execute(&folded, NULL);
        double error = normwise(&folded);
        if (!(error <= sets[i % 3].limit)) {
            ck_fail("norm-wise error %.3g exceeds %.2g", error, sets[i % 3].limit);
        }
        ck_worst_ratio = fmax(ck_worst_ratio, error / sets[i % 3].limit);
        c.segment[0].mask = CK_MASK_SHARED;
        ck_make(&c, &masked);
        ck_writable(masked.segment[0].mask.data);
        for (int64_t k = 0; k < masked.segment[0].mask.dim[2]; k++) {
            ((float *)masked.segment[0].mask.data)[k] = 0;
        }
        ck_execute(&masked, NULL);
        double without = normwise(&masked);
        if (ck_fixed_level() && without < sets[i % 3].folding * error) {
            ck_fail("norm-wise error %.3g, without folding %.3g", error, without);
        }
        ck_release(mark);
    }
}

/* ---- who goes which way ------------------------------------------------------------------------------------------ */

static mla_problem run_as(const mla_problem *problem, mla_arithmetic arithmetic)
{
    mla_problem p = ck_with_new_outputs(problem, CK_DENSE);
    p.arithmetic = arithmetic;
    ck_execute(&p, NULL);
    return p;
}

static bool rows_differ(const mla_problem *a, const mla_problem *b, int64_t token)
{
    for (int64_t h = 0; h < a->o.dim[2]; h++) {
        const char *x = (const char *)a->o.data + ck_offset(&a->o, 0, token, h, 0) * 4;
        const char *y = (const char *)b->o.data + ck_offset(&b->o, 0, token, h, 0) * 4;
        if (memcmp(x, y, (size_t)a->o.dim[3] * 4) != 0) {
            return true;
        }
    }
    return false;
}

/* Writes one number into column `column` of the key at `position` of the only sequence. */
static void plant(const mla_problem *p, int64_t position, int64_t column, double value)
{
    const mla_tensor *k = &p->segment[0].k;
    ck_writable(k->data);
    mla_ref_store(k->data, k->dtype, ck_offset(k, 0, position, 0, column), value);
}

static mla_problem batched(int64_t n_q, int64_t n_head, int64_t length, mla_dtype dtype)
{
    ck_config c = plain(1, n_q, n_head, 72, 64, length);
    c.segment[0].addressing = MLA_ADDRESS_BATCHED;
    c.segment[0].dtype = dtype;
    c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
    mla_problem p;
    ck_make(&c, &p);
    return p;
}

/* Fixed point is at work where it should be, and fp32, bit for bit, where it should not. */
static void check_choice(void)
{
    static const struct {
        const char *what;
        int64_t n_head, length;
        double value; /* planted in each block of keys; 0: none */
        int64_t column;
        bool fixed;
    } cases[] = {
        {"17 rows", 17, 96, 0, 0, true},
        {"16 rows", 16, 96, 0, 0, false},
        {"fewer keys than the sample", 17, 15, 0, 0, false},
        {"as many keys as the sample", 17, 16, 0, 0, true},
        {"a key that is not finite", 17, 380, INFINITY, 3, false},
        {"a key out of range", 17, 380, 0x1p45, 3, false},
        {"scores too large for the bound", 17, 380, 3000, 3, false},
        {"a value too small beside the rest of its key", 17, 380, 900, 70, false},
        {"a number somewhat larger than others", 17, 380, 8, 3, true},
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        size_t mark = ck_mark();
        mla_problem p = batched(1, cases[i].n_head, cases[i].length, MLA_DTYPE_F32);
        for (int64_t k = 20; cases[i].value != 0 && k < cases[i].length; k += MLA_KEY_BLOCK) {
            plant(&p, k, cases[i].column, cases[i].value);
        }
        ck_context("%s", cases[i].what);
        mla_problem fixed = run_as(&p, MLA_ARITHMETIC_INT16), f32 = run_as(&p, MLA_ARITHMETIC_F32);
        bool differs = rows_differ(&fixed, &f32, 0);
        if (differs != (cases[i].fixed && ck_fixed_level())) {
            ck_fail("fixed point was %sused", differs ? "" : "not ");
        }
        if (cases[i].fixed) {
            ck_compare(&fixed, false, CK_WORK);
        }
        ck_release(mark);
    }
}

/* The newest key cannot be an integer, and only the newest token sees it: that token goes by fp32 in its block, the
 * others' bits do not change. The same with one head whose query is too large. */
static void check_mixed(void)
{
    require_level();
    static const double values[] = {NAN, INFINITY, 0x1p60, 3000};
    static const int64_t lengths[] = {30, 97, 130, 640};
    for (int64_t i = 0; i < 4 * 4 * 2; i++) {
        size_t mark = ck_mark();
        int64_t n_q = 2 + i / 16 * 3, n_head = i % 3 ? 20 : 40, length = lengths[i / 4 % 4];
        mla_problem p = batched(n_q, n_head, length, MLA_DTYPE_F32);
        mla_problem before = run_as(&p, MLA_ARITHMETIC_INT16);
        plant(&p, length - 1, 2, values[i % 4]);
        mla_problem after = run_as(&p, MLA_ARITHMETIC_INT16);
        ck_context("%lld tokens, %lld heads, %lld keys, %g in the last one", (long long)n_q, (long long)n_head,
                   (long long)length, values[i % 4]);
        for (int64_t token = 0; token < n_q - 1; token++) {
            CK_REQUIRE(!rows_differ(&before, &after, token));
        }
        CK_REQUIRE(rows_differ(&before, &after, n_q - 1));
        if (isfinite(values[i % 4])) {
            ck_compare(&after, false, CK_WORK);
        }
        ck_release(mark);
    }
    for (int64_t i = 0; i < 6; i++) {
        size_t mark = ck_mark();
        mla_problem p = batched(1, 40, 700, MLA_DTYPE_BF16);
        mla_problem before = run_as(&p, MLA_ARITHMETIC_INT16);
        int64_t head = i * 7, at = ck_offset(&p.q, 0, 0, head, 5);
        ck_writable(p.q.data);
        mla_ref_store(p.q.data, p.q.dtype, at, i % 3 == 0 ? NAN : i % 3 == 1 ? 0x1p50 : 20000);
        mla_problem after = run_as(&p, MLA_ARITHMETIC_INT16), f32 = run_as(&p, MLA_ARITHMETIC_F32);
        ck_context("the query of head %lld is out of range", (long long)head);
        for (int64_t h = 0; h < 40; h++) {
            const mla_problem *want = h == head ? &f32 : &before;
            int64_t offset = ck_offset(&p.o, 0, 0, h, 0) * 4;
            const char *x = (const char *)want->o.data + offset, *y = (const char *)after.o.data + offset;
            if (memcmp(x, y, 64 * sizeof(float)) != 0) {
                ck_fail("head %lld has other bits than %s", (long long)h, h == head ? "in fp32" : "before");
            }
        }
        ck_release(mark);
    }
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

/* Threads, pages, strides and how tokens are grouped change no bit, the choice of each row and block included: keys
 * that cannot be integers lie here and there. */
static void check_bits(void)
{
    require_level();
    static const int64_t heads[] = {17, 40, 128};
    for (int64_t i = 0; i < 9; i++) {
        size_t mark = ck_mark();
        ck_config c = plain(i % 2 ? 3 : 1, 1 + i % 3, heads[i / 3], 64, 48, 0);
        ck_segment *s = &c.segment[0];
        set_lengths(s, 3, (int64_t[]){3100 - 7 * i, 40, 590 + i});
        s->visible =
            (mla_visible){.rule = i % 3 == 1 ? MLA_VISIBLE_WINDOW : MLA_VISIBLE_CAUSAL, .left = 1500, .right = 0};
        c.inputs = i % 3 == 2 ? CK_OUTLIERS : i % 3 == 1 ? CK_WIDE : CK_NORMAL;
        c.scale = 0.03f;
        s->addressing = MLA_ADDRESS_PACKED;
        s->mask = i == 6 ? CK_MASK_HOLES : CK_NO_MASK;
        mla_problem one, paged;
        ck_context("problem %lld", (long long)i);
        ck_make(&c, &one);
        ck_execute(&one, NULL);
        ck_compare(&one, false, CK_WORK);
        for (int32_t n_thread = 2; n_thread < 18; n_thread = n_thread * 2 + 1) {
            mla_problem many = ck_with_new_outputs(&one, CK_DENSE);
            ck_execute(&many, &(ck_run){.n_thread = n_thread});
            ck_same_bits(&one, &many, "1 and more threads");
        }
        s->addressing = MLA_ADDRESS_PAGED;
        s->page_size = 61;
        c.layout = CK_PADDED;
        c.layout_seed++;
        ck_make(&c, &paged);
        ck_execute(&paged, &(ck_run){.n_thread = 2});
        ck_same_bits(&one, &paged, "packed and paged keys");
        ck_release(mark);
    }
}

/* The plan tells what a problem is computed in. */
static void check_plan_says_so(void)
{
    size_t mark = ck_mark();
    mla_problem p = batched(1, 20, 100, MLA_DTYPE_BF16);
    for (int i = 0; i < 3; i++) {
        mla_plan *plan = NULL;
        mla_plan_info info;
        p.arithmetic = i ? MLA_ARITHMETIC_INT16 : MLA_ARITHMETIC_F32;
        if (i == 2) { /* values of their own */
            p.segment[0].v = p.segment[0].k;
            p.d_v = p.segment[0].v.dim[3];
            p.o = ck_tensor("o", MLA_DTYPE_F32, 4, (int64_t[]){1, 1, 20, p.d_v}, CK_DENSE);
        }
        CK_REQUIRE(mla_plan_build(&p, NULL, &plan) == MLA_STATUS_OK);
        CK_REQUIRE(mla_plan_describe(plan, &info) == MLA_STATUS_OK);
        bool fixed = i == 1 && ck_fixed_level();
        CK_REQUIRE(info.arithmetic == (fixed ? MLA_ARITHMETIC_INT16 : MLA_ARITHMETIC_F32));
        mla_plan_free(plan);
    }
    ck_release(mark);
}

const ck_test ck_fixed_tests[] = {
    {.name = "fixed/dims", .run = check_dims, .host = true},
    {.name = "fixed/formats", .run = check_formats, .host = true},
    {.name = "fixed/rules", .run = check_rules, .host = true},
    {.name = "fixed/lists", .run = check_lists, .host = true},
    {.name = "fixed/inputs", .run = check_inputs, .host = true},
    {.name = "fixed/accuracy", .run = check_accuracy, .host = true},
    {.name = "fixed/choice", .run = check_choice, .host = true},
    {.name = "fixed/mixed", .run = check_mixed, .host = true},
    {.name = "fixed/bits", .run = check_bits, .host = true},
    {.name = "fixed/plan", .run = check_plan_says_so, .host = true, .library = true},
    {0},
};
