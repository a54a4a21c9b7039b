/*
 * test_merge_states.c - partial results become one: against the formula in extended precision, and against attention over
 * all keys at once.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mla/mla.h"
#include "ref/number.h"

#define DIMS(...)                                                              \
    (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) \
    {                                                                          \
        __VA_ARGS__                                                            \
    }

enum { TOKENS = 3, HEADS = 4, D = 261, ROWS = TOKENS * HEADS, MOST_PARTS = 5 }; /* more columns than one buffer holds */

static uint32_t seed;

static uint32_t random_bits(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed ^ seed >> 15;
}

static double uniform(double low, double high)
{
    return low + (high - low) * (double)random_bits() / 4294967296.0;
}

/* ---- a case ------------------------------------------------------------------------------------------------------ */

/* Memory of everything, elements of 4 bytes whatever the dtype. o [head][token][D] and lse [head][token] in memory, seen
 * as [token][head]. */
typedef struct merge_case {
    int n_part;
    mla_lse_base base;
    mla_lse_empty empty;
    float o_memory[MOST_PARTS + 1][ROWS * D], lse_memory[MOST_PARTS + 1][ROWS];
    mla_tensor o_part[MOST_PARTS], lse_part[MOST_PARTS], o, lse;
} merge_case;

static void make_views(merge_case *c, const mla_dtype *o_dtype, const mla_dtype *lse_dtype)
{
    for (int i = 0; i <= c->n_part; i++) {
        mla_tensor *o = i < c->n_part ? &c->o_part[i] : &c->o, *lse = i < c->n_part ? &c->lse_part[i] : &c->lse;
        *o = (mla_tensor){.data = c->o_memory[i],
                          .dtype = o_dtype[i],
                          .ndim = 3,
                          .dim = {TOKENS, HEADS, D},
                          .stride = {D, TOKENS * D, 1}};
        *lse = (mla_tensor){.data = c->lse_memory[i],
                            .dtype = lse_dtype[i],
                            .ndim = 2,
                            .dim = {TOKENS, HEADS},
                            .stride = {1, TOKENS}};
    }
}

static double marker(mla_lse_empty empty)
{
    return empty == MLA_LSE_EMPTY_POS_INF ? INFINITY : empty == MLA_LSE_EMPTY_NEG_INF ? -INFINITY : 0;
}

/* Values of every part, lse around `level`, a fifth of the rows of a part empty with NaN where their o would be. */
static void fill(merge_case *c, double level, double spread, double size)
{
    for (int i = 0; i < c->n_part; i++) {
        for (int64_t r = 0; r < ROWS; r++) {
            bool empty = random_bits() % 5 == 0;
            double infinity = random_bits() % 2 ? INFINITY : -INFINITY; /* whatever the rule is, both mean empty */
            double lse =
                empty ? (random_bits() % 2 ? infinity : marker(c->empty)) : uniform(level - spread, level + spread);
            mla_ref_store(c->lse_memory[i], c->lse_part[i].dtype, r, lse);
            for (int64_t k = 0; k < D; k++) {
                mla_ref_store(c->o_memory[i], c->o_part[i].dtype, r * D + k,
                              empty ? (double)NAN : uniform(-size, size));
            }
        }
    }
}

static bool is_empty(const merge_case *c, double lse)
{
    return isinf(lse) || (lse == 0 && c->empty == MLA_LSE_EMPTY_ZERO);
}

static long double power(const merge_case *c, long double x)
{
    return c->base == MLA_LSE_BASE2 ? exp2l(x) : expl(x);
}

/* The stored number is x rounded once, where x is known up to +-slack: rounding is monotone. */
static void check_rounded(const mla_tensor *t, int64_t at, long double x, long double slack, const char *what)
{
    double got = mla_ref_load(t->data, t->dtype, at);
    double low = mla_ref_decode(t->dtype, mla_ref_encode(t->dtype, (double)(x - slack)));
    double high = mla_ref_decode(t->dtype, mla_ref_encode(t->dtype, (double)(x + slack)));
    if (!(got >= low && got <= high)) {
        fail_msg("%s[%d] = %a is not %a", what, (int)at, got, (double)x);
    }
}

/*
 * Slack: the difference of two fp32 lse is exact in fp64 up to 2^-53 of itself; where a weight is not zero it is below
 * 745, so the weight is right up to 745 * 2^-53, the rest of the few operations is far less: 2^-42 in all.
 */
static void check_result(const merge_case *c)
{
    for (int64_t r = 0; r < ROWS; r++) {
        long double top = -INFINITY, sum = 0, weight[MOST_PARTS];
        for (int i = 0; i < c->n_part; i++) {
            double lse = mla_ref_load(c->lse_memory[i], c->lse_part[i].dtype, r);
            top = !is_empty(c, lse) && lse > top ? lse : top;
        }
        for (int i = 0; i < c->n_part; i++) {
            double lse = mla_ref_load(c->lse_memory[i], c->lse_part[i].dtype, r);
            weight[i] = is_empty(c, lse) ? 0 : power(c, lse - top);
            sum += weight[i];
        }
        for (int64_t k = 0; k < D; k++) {
            long double value = 0, size = 0;
            for (int i = 0; i < c->n_part; i++) {
                if (weight[i] != 0) {
                    long double term = weight[i] / sum * mla_ref_load(c->o_memory[i], c->o_part[i].dtype, r * D + k);
                    value += term;
                    size += fabsl(term);
                }
            }
            check_rounded(&c->o, r * D + k, value, size * 0x1p-42L, "o");
            assert_false(sum == 0 && signbit(mla_ref_load(c->o.data, c->o.dtype, r * D + k)));
        }
        double lse = mla_ref_load(c->lse.data, c->lse.dtype, r);
        if (sum == 0) {
            assert_true(lse == marker(c->empty));
        } else {
            long double exact = top + (c->base == MLA_LSE_BASE2 ? log2l(sum) : logl(sum));
            check_rounded(&c->lse, r, exact, fabsl(exact) * 0x1p-50L + 0x1p-42L, "lse");
        }
    }
}

static mla_status run(const merge_case *c)
{
    return mla_merge_states(c->o_part, c->lse_part, c->n_part, c->base, c->empty, &c->o, &c->lse);
}

/* ---- against the formula ----------------------------------------------------------------------------------------- */

static void test_all_kinds(void **state)
{
    (void)state;
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16};
    static merge_case c;
    seed = 1;
    for (int n_part = 1; n_part <= MOST_PARTS; n_part++) {
        for (int kind = 0; kind < 6; kind++) {
            for (int d = 0; d < 9; d++) {
                mla_dtype o_dtype[MOST_PARTS + 1], lse_dtype[MOST_PARTS + 1];
                for (int i = 0; i <= MOST_PARTS; i++) { /* every other time the parts' dtypes differ too */
                    o_dtype[i] = dtypes[(d + (kind % 2 ? i : 0)) % 3];
                    lse_dtype[i] = dtypes[(d / 3 + (kind % 2 ? i : 0)) % 3];
                }
                c.n_part = n_part;
                c.base = kind < 3 ? MLA_LSE_NATURAL : MLA_LSE_BASE2;
                c.empty = (mla_lse_empty)(kind % 3);
                make_views(&c, o_dtype, lse_dtype);
                fill(&c, 3, 4, 2);
                assert_int_equal(run(&c), MLA_STATUS_OK);
                check_result(&c);
            }
        }
    }
}

/* lse of any size, apart by nothing or by more than any weight can show; values at both ends of fp32. */
static void test_magnitudes(void **state)
{
    (void)state;
    static const double levels[] = {0, 1e-30, -1e-30, 700, -700, 1e5, -1e5, 1e30, -1e30, 3e38, -3e38};
    static const double spreads[] = {0, 1e-3, 50, 1000, 3e37};
    static const double sizes[] = {1, 3e38, 1e-38, 1e-44};
    static const mla_dtype f32[MOST_PARTS + 1] = {MLA_DTYPE_F32, MLA_DTYPE_F32, MLA_DTYPE_F32,
                                                  MLA_DTYPE_F32, MLA_DTYPE_F32, MLA_DTYPE_F32};
    static merge_case c;
    seed = 2;
    c.n_part = 4;
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        for (size_t s = 0; s < sizeof spreads / sizeof *spreads; s++) {
            c.base = (mla_lse_base)(l % 2);
            c.empty = MLA_LSE_EMPTY_NEG_INF;
            make_views(&c, f32, f32);
            fill(&c, levels[l], spreads[s], sizes[(l + s) % 4]);
            assert_int_equal(run(&c), MLA_STATUS_OK);
            check_result(&c);
        }
    }
}

/* A part alone comes out bit for bit, -0 and infinities too, whatever stands beside it; twice is the same as once. */
static void test_single_part_is_kept(void **state)
{
    (void)state;
    float part[2][4] = {{1.1f, -0.0f, INFINITY, 1e-45f}, {NAN, NAN, NAN, NAN}}, lse[2] = {-123.456f, INFINITY};
    float o[4], merged;
    mla_tensor o_part[2], lse_part[2];
    for (int i = 0; i < 2; i++) {
        o_part[i] = mla_tensor_make(part[i], MLA_DTYPE_F32, DIMS(1, 4));
        lse_part[i] = mla_tensor_make(&lse[i], MLA_DTYPE_F32, DIMS(1));
    }
    mla_tensor out = mla_tensor_make(o, MLA_DTYPE_F32, DIMS(1, 4)),
               out_lse = mla_tensor_make(&merged, MLA_DTYPE_F32, DIMS(1));
    for (int64_t n_part = 1; n_part <= 2; n_part++) {
        memset(o, 0xff, sizeof o);
        assert_int_equal(mla_merge_states(o_part, lse_part, n_part, MLA_LSE_NATURAL, MLA_LSE_EMPTY_POS_INF, &out,
                                          &out_lse),
                         MLA_STATUS_OK);
        assert_memory_equal(o, part[0], sizeof o);
        assert_true(merged == lse[0]);
    }
    /* lse not wanted */
    assert_int_equal(mla_merge_states(o_part, lse_part, 2, MLA_LSE_NATURAL, MLA_LSE_EMPTY_POS_INF, &out, NULL),
                     MLA_STATUS_OK);
    assert_memory_equal(o, part[0], sizeof o);
    /* 0 is an lse like any other unless it is the marker */
    lse[1] = 0;
    lse[0] = 0;
    memset(part[1], 0, sizeof part[1]);
    assert_int_equal(mla_merge_states(o_part, lse_part, 2, MLA_LSE_BASE2, MLA_LSE_EMPTY_POS_INF, &out, &out_lse),
                     MLA_STATUS_OK);
    assert_true(merged == 1 && o[0] == 0.5f * part[0][0]);
    assert_int_equal(mla_merge_states(o_part, lse_part, 2, MLA_LSE_BASE2, MLA_LSE_EMPTY_ZERO, &out, &out_lse),
                     MLA_STATUS_OK);
    assert_true(merged == 0 && o[0] == 0 && !signbit(o[1]));
}

/* What is not empty spreads: a NaN in lse, a NaN or infinity in o. */
static void test_nan_of_keys(void **state)
{
    (void)state;
    float part[2][2] = {{1, 2}, {3, NAN}}, lse[2] = {1, 1}, o[2], merged;
    mla_tensor o_part[2], lse_part[2];
    for (int i = 0; i < 2; i++) {
        o_part[i] = mla_tensor_make(part[i], MLA_DTYPE_F32, DIMS(1, 2));
        lse_part[i] = mla_tensor_make(&lse[i], MLA_DTYPE_F32, DIMS(1));
    }
    mla_tensor out = mla_tensor_make(o, MLA_DTYPE_F32, DIMS(1, 2)),
               out_lse = mla_tensor_make(&merged, MLA_DTYPE_F32, DIMS(1));
    for (int where = -1; where < 2; where++) {
        lse[0] = lse[1] = 1;
        if (where >= 0) {
            lse[where] = NAN;
        }
        assert_int_equal(mla_merge_states(o_part, lse_part, 2, MLA_LSE_NATURAL, MLA_LSE_EMPTY_POS_INF, &out, &out_lse),
                         MLA_STATUS_OK);
        assert_true(isnan(o[1]) && isnan(merged) == (where >= 0));
        assert_true(where >= 0 ? isnan(o[0]) : o[0] == 2);
    }
}

static void test_in_place(void **state)
{
    (void)state;
    static const mla_dtype f32[3] = {MLA_DTYPE_F32, MLA_DTYPE_F32, MLA_DTYPE_F32};
    static merge_case c;
    for (int where = 0; where < 2; where++) {
        seed = 5;
        c.n_part = 2;
        c.base = MLA_LSE_NATURAL;
        c.empty = MLA_LSE_EMPTY_POS_INF;
        make_views(&c, f32, f32);
        fill(&c, 0, 3, 1);
        assert_int_equal(run(&c), MLA_STATUS_OK);
        assert_int_equal(mla_merge_states(c.o_part, c.lse_part, 2, c.base, c.empty, &c.o_part[where],
                                          &c.lse_part[where]),
                         MLA_STATUS_OK);
        assert_memory_equal(c.o.data, c.o_part[where].data, sizeof(float) * ROWS * D);
        assert_memory_equal(c.lse.data, c.lse_part[where].data, sizeof(float) * ROWS);
    }
}

/* ---- against attention over all keys ----------------------------------------------------------------------------- */

/* One sequence's keys in three shards, one of them empty. The backend is the oracle, so what is left are the roundings of
 * shards and merge to fp32: below 2^-22 of values of at most 1. */
static void test_equals_the_whole(void **state)
{
    (void)state;
    enum { KEYS = 50, N_HEAD = 3, D_K = 8, D_V = 5 };
    static const int64_t begin[] = {0, 13, 13, 50};
    float q[N_HEAD][D_K], k[KEYS][D_K], o[5][N_HEAD][D_V], lse[5][N_HEAD];
    seed = 9;
    for (int i = 0; i < N_HEAD * D_K; i++) {
        (&q[0][0])[i] = (float)uniform(-2, 2);
    }
    for (int i = 0; i < KEYS * D_K; i++) {
        (&k[0][0])[i] = (float)uniform(-1, 1);
    }
    for (int base = 0; base < 2; base++) {
        for (int empty = 0; empty < 2; empty++) { /* not ZERO: an lse of 0 might happen */
            mla_tensor o_part[5], lse_part[5];
            for (int i = 0; i < 5; i++) { /* three shards, the whole, and the merged one */
                int64_t first = i < 3 ? begin[i] : 0, end = i < 3 ? begin[i + 1] : KEYS;
                mla_problem p;
                mla_problem_init(&p);
                p.q = mla_tensor_make(q, MLA_DTYPE_F32, DIMS(1, 1, N_HEAD, D_K));
                p.segment[0].k = mla_tensor_make(k[first], MLA_DTYPE_F32, DIMS(1, end - first, 1, D_K));
                p.d_v = D_V;
                p.softmax_scale = 1;
                p.lse_base = (mla_lse_base)base;
                p.lse_empty = (mla_lse_empty)empty;
                p.o = o_part[i] = mla_tensor_make(o[i], MLA_DTYPE_F32, DIMS(1, 1, N_HEAD, D_V));
                p.lse = lse_part[i] = mla_tensor_make(lse[i], MLA_DTYPE_F32, DIMS(1, 1, N_HEAD));
                assert_int_equal(i == 4 ? MLA_STATUS_OK
                                        : mla_attention(&p, &(mla_plan_options){.backend = MLA_BACKEND_REF}),
                                 MLA_STATUS_OK);
            }
            assert_int_equal(mla_merge_states(o_part, lse_part, 3, (mla_lse_base)base, (mla_lse_empty)empty, &o_part[4],
                                              &lse_part[4]),
                             MLA_STATUS_OK);
            for (int h = 0; h < N_HEAD; h++) {
                assert_true(fabsf(lse[4][h] - lse[3][h]) <= 0x1p-20f);
                for (int c = 0; c < D_V; c++) {
                    assert_true(fabsf(o[4][h][c] - o[3][h][c]) <= 0x1p-21f);
                }
            }
        }
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

#define assert_refused(call, status, text)                           \
    do {                                                             \
        assert_int_equal((call), (status));                          \
        if (!strstr(mla_last_error(), (text))) {                     \
            fail_msg("\"%s\" lacks \"%s\"", mla_last_error(), text); \
        }                                                            \
    } while (0)

static void test_refusals(void **state)
{
    (void)state;
    static const mla_dtype f32[3] = {MLA_DTYPE_F32, MLA_DTYPE_F32, MLA_DTYPE_F32};
    static merge_case good, c;
    good.n_part = 2;
    make_views(&good, f32, f32);
    assert_int_equal(run(&good), MLA_STATUS_OK);
    assert_refused(mla_merge_states(NULL, good.lse_part, 2, 0, 0, &good.o, NULL), MLA_STATUS_NULL_POINTER,
                   "o_part is NULL");
    assert_refused(mla_merge_states(good.o_part, NULL, 2, 0, 0, &good.o, NULL), MLA_STATUS_NULL_POINTER,
                   "lse_part is NULL");
    assert_refused(mla_merge_states(good.o_part, good.lse_part, 2, 0, 0, NULL, NULL), MLA_STATUS_NULL_POINTER,
                   "o is NULL");
    assert_refused(mla_merge_states(good.o_part, good.lse_part, 0, 0, 0, &good.o, NULL), MLA_STATUS_BAD_VALUE,
                   "n_part = 0");
    assert_refused(mla_merge_states(good.o_part, good.lse_part, 2, (mla_lse_base)2, 0, &good.o, NULL),
                   MLA_STATUS_BAD_VALUE, "lse_base = 2");
    assert_refused(mla_merge_states(good.o_part, good.lse_part, 2, 0, (mla_lse_empty)3, &good.o, NULL),
                   MLA_STATUS_BAD_VALUE, "lse_empty = 3");
#define BREAK(change, status, text)            \
    do {                                       \
        memcpy(&c, &good, sizeof c);           \
        change;                                \
        assert_refused(run(&c), status, text); \
    } while (0)
    BREAK(c.o.dtype = MLA_DTYPE_I32, MLA_STATUS_BAD_DTYPE, "o.dtype = i32");
    BREAK(c.lse_part[1].dtype = MLA_DTYPE_U8, MLA_STATUS_BAD_DTYPE, "lse_part[1].dtype = u8");
    BREAK(c.o_part[1].dim[1] = 3, MLA_STATUS_BAD_SHAPE, "o_part[1].dim[1] = 3 differs from o.dim[1] = 4");
    BREAK(c.o_part[0].ndim = 2, MLA_STATUS_BAD_SHAPE, "o_part[0].ndim = 2 must be 3");
    BREAK(c.lse_part[0].dim[0] = 2, MLA_STATUS_BAD_SHAPE, "lse_part[0].dim[0] = 2 differs from o.dim[0] = 3");
    BREAK(c.lse.ndim = 1, MLA_STATUS_BAD_SHAPE, "lse.ndim = 1 must be 2");
    BREAK(c.o.ndim = 1, MLA_STATUS_BAD_SHAPE, "o.ndim = 1 must be at least 2");
    BREAK(c.o.stride[1] = 0, MLA_STATUS_BAD_STRIDE, "o.stride[1] = 0");
    BREAK(c.lse.stride[0] = -1, MLA_STATUS_BAD_STRIDE, "lse.stride[0] = -1");
    BREAK(c.o_part[1].data = NULL, MLA_STATUS_NULL_POINTER, "o_part[1].data is NULL");
    BREAK(c.o.device.type = MLA_DEVICE_CUDA, MLA_STATUS_BAD_DEVICE, "o is on device 1:0");
    BREAK(c.o.data = (float *)c.o_part[1].data + 1, MLA_STATUS_BAD_VALUE, "overlaps o_part[1]");
    BREAK(c.o.data = c.o_part[1].data; c.o.dtype = MLA_DTYPE_F16, MLA_STATUS_BAD_VALUE, "overlaps o_part[1]");
    BREAK(c.lse.data = c.o_part[0].data, MLA_STATUS_BAD_VALUE, "overlaps o_part[0]");
    BREAK(c.lse_part[0].data = c.o.data, MLA_STATUS_BAD_VALUE, "overlaps lse_part[0]");
    BREAK(c.lse.data = c.o.data, MLA_STATUS_BAD_VALUE, "overlaps o:");
    BREAK(c.o_part[1].name = "shard"; c.o_part[1].dtype = MLA_DTYPE_I8, MLA_STATUS_BAD_DTYPE, "shard.dtype = i8");
    /* broadcast inputs are fine, so is nothing at all */
    memcpy(&c, &good, sizeof c);
    c.o_part[1].stride[0] = 0;
    c.lse_part[0].stride[1] = 0;
    assert_int_equal(run(&c), MLA_STATUS_OK);
    mla_tensor o = mla_tensor_make(NULL, MLA_DTYPE_F32, DIMS(0, 4)),
               lse = mla_tensor_make(NULL, MLA_DTYPE_F32, DIMS(0));
    assert_int_equal(mla_merge_states(&o, &lse, 1, 0, 0, &o, &lse), MLA_STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_kinds),
        cmocka_unit_test(test_magnitudes),
        cmocka_unit_test(test_single_part_is_kept),
        cmocka_unit_test(test_nan_of_keys),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_equals_the_whole),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
