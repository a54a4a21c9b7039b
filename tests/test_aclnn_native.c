/*
 * test_aclnn_native.c - libmla's own door to the operator: the same bits as through aclnn, its own options, the 16-bit
 * sibling, and its pieces (check, lower, plan, run).
 */
#include <math.h>

#include "aclnn_native.h"

static call shared;
static mla_quant_sparse_flash_mla_args args;
static uint16_t expected[T1 * N1 * D];

#define assert_refused(status, call, words)                                \
    do {                                                                   \
        assert_int_equal(call, status);                                    \
        if (strncmp(mla_last_error(), words, strlen(words)) != 0) {        \
            fail_msg("\"%s\" instead of \"%s\"", mla_last_error(), words); \
        }                                                                  \
    } while (0)

static void run(const mla_plan_options *options)
{
    memset(shared.out, 0xff, sizeof shared.out);
    if (mla_quant_sparse_flash_mla(&args, options) != MLA_STATUS_OK) {
        fail_msg("%s", mla_last_error());
    }
}

static double bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Relative distance of two bf16 results as vectors. */
static double distance(const uint16_t *a, const uint16_t *b, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (bf16(a[i]) - bf16(b[i])) * (bf16(a[i]) - bf16(b[i]));
        size += bf16(b[i]) * bf16(b[i]);
    }
    return sqrt(difference / size);
}

static void test_same_bits_as_aclnn(void **state)
{
    (void)state;
    for (int mode = SWA; mode <= HCA; mode++) {
        for (int layout = BSND_BSND; layout <= TND_PA; layout++) {
            open_call(&shared, (call_mode)mode, (call_layout)layout);
            run_call(&shared);
            memcpy(expected, shared.out, sizeof expected);
            native_args(&args, &shared);
            run(NULL);
            assert_memory_equal(expected, shared.out, sizeof expected);
        }
    }
}

static void test_pieces(void **state)
{
    (void)state;
    open_call(&shared, FULL_SPARSE, TND_PA);
    shared.t[USED_CMP].absent = 1; /* derived */
    shared.ori_topk[0] = K1 + 9;   /* clipped */
    native_args(&args, &shared);
    run(NULL);
    memcpy(expected, shared.out, sizeof expected);
    memset(shared.out, 0xff, sizeof shared.out);

    int32_t scratch[64];
    int64_t n = mla_quant_sparse_flash_mla_scratch(&args);
    assert_int_equal(n, B + T1); /* cmp lengths, and room for clipped list lengths */
    mla_problem problem;
    assert_refused(MLA_STATUS_WORKSPACE_TOO_SMALL, mla_quant_sparse_flash_mla_lower(&args, scratch, B - 1, &problem),
                   "n_scratch");
    assert_refused(MLA_STATUS_WORKSPACE_TOO_SMALL, mla_quant_sparse_flash_mla_lower(&args, NULL, 64, &problem),
                   "n_scratch");
    assert_refused(MLA_STATUS_NULL_POINTER, mla_quant_sparse_flash_mla_lower(&args, scratch, n, NULL), "problem");
    assert_int_equal(mla_quant_sparse_flash_mla_lower(&args, scratch, n, &problem), MLA_STATUS_OK);
    assert_int_equal(problem.n_segment, 2);
    mla_plan *plan = NULL;
    assert_int_equal(mla_plan_build(&problem, NULL, &plan), MLA_STATUS_OK);
    size_t bytes = mla_plan_workspace_bytes(plan);
    void *workspace = malloc(bytes + 1);
    assert_non_null(workspace);
    assert_int_equal(mla_run(plan, &problem, workspace, bytes, NULL), MLA_STATUS_OK);
    assert_memory_equal(expected, shared.out, sizeof expected);
    shared.used_ori[0]--; /* the plan is another problem's then, and says so */
    assert_int_equal(mla_quant_sparse_flash_mla_lower(&args, scratch, n, &problem), MLA_STATUS_OK);
    assert_int_equal(mla_run(plan, &problem, workspace, bytes, NULL), MLA_STATUS_STALE_PLAN);
    mla_plan_free(plan);
    free(workspace);

    open_call(&shared, SWA, BSND_BSND);
    native_args(&args, &shared);
    assert_int_equal(mla_quant_sparse_flash_mla_scratch(&args), 0);
    assert_int_equal(mla_quant_sparse_flash_mla_lower(&args, NULL, 0, &problem), MLA_STATUS_OK);
    assert_int_equal(problem.n_segment, 1);
}

/* The oracle and the kernels agree through this door. */
static void test_backends(void **state)
{
    (void)state;
    for (int mode = SWA; mode <= HCA; mode++) {
        open_call(&shared, (call_mode)mode, TND_PA);
        native_args(&args, &shared);
        run(&(mla_plan_options){.backend = MLA_BACKEND_REF});
        memcpy(expected, shared.out, sizeof expected);
        run(&(mla_plan_options){.backend = MLA_BACKEND_CPU});
        double apart = distance(shared.out, expected, T1 * N1 * D);
        if (!(apart < 2e-3)) { /* half a unit of bf16 is 2e-3 of a number; a step of P would be more */
            fail_msg("mode %d: %g apart", mode, apart);
        }
    }
}

/* Several tiles on both sides, shared out over workers: the bits do not depend on how. */
static void test_splits(void **state)
{
    (void)state;
    enum { KEYS = 1500, COMPRESSED = 700, HEADS = 8, LIST = 512 };
    uint8_t *q = malloc(HEADS * D), *ori = malloc(KEYS * D), *cmp = malloc(COMPRESSED * D);
    uint16_t *out = malloc(2 * HEADS * D * sizeof *out);
    int32_t *list = malloc(LIST * sizeof *list);
    assert_true(q && ori && cmp && out && list);
    uint32_t random = 7;
    for (int i = 0; i < (HEADS + KEYS + COMPRESSED) * D; i++) {
        random = random * 1664525 + 1013904223;
        uint8_t code = (uint8_t)((random >> 24 & 0xbf) | 0x08);
        *(i < HEADS * D ? &q[i] : i < (HEADS + KEYS) * D ? &ori[i - HEADS * D] : &cmp[i - (HEADS + KEYS) * D]) = code;
    }
    for (int i = 0; i < LIST; i++) {
        list[i] = (i * 37 + 11) % COMPRESSED;
    }
    float descale = 0.25f, cmp_descale = 0.5f, sinks[HEADS] = {0, 1, -1, 2, -2, 3, -3, 4}, lse[2][HEADS];
    for (int hca = 0; hca <= 1; hca++) {
        mla_quant_sparse_flash_mla_init(&args);
        args.options = MLA_SPARSE_FLASH_MLA_RELAXED;
        args.q = mla_tensor_make(q, MLA_DTYPE_HIF8, 4, (int64_t[]){1, 1, HEADS, D});
        args.ori_kv = mla_tensor_make(ori, MLA_DTYPE_HIF8, 4, (int64_t[]){1, KEYS, 1, D});
        args.cmp_kv = mla_tensor_make(cmp, MLA_DTYPE_HIF8, 4, (int64_t[]){1, COMPRESSED, 1, D});
        args.q_descale = args.ori_kv_descale = mla_tensor_make(&descale, MLA_DTYPE_F32, 1, (int64_t[]){1});
        args.cmp_kv_descale = mla_tensor_make(&cmp_descale, MLA_DTYPE_F32, 1, (int64_t[]){1});
        if (!hca) {
            args.cmp_sparse_indices = mla_tensor_make(list, MLA_DTYPE_I32, 4, (int64_t[]){1, 1, 1, LIST});
        }
        args.sinks = mla_tensor_make(sinks, MLA_DTYPE_F32, 1, (int64_t[]){HEADS});
        args.softmax_scale = 0.04;
        args.cmp_ratio = 4;
        args.ori_mask_mode = args.cmp_mask_mode = 3;
        args.return_softmax_lse = true;
        for (int threads = 0; threads <= 3; threads++) { /* 0: the oracle */
            int at = threads < 2 ? 0 : 1;
            args.attn_out = mla_tensor_make(out + at * HEADS * D, MLA_DTYPE_BF16, 4, (int64_t[]){1, 1, HEADS, D});
            args.softmax_lse = mla_tensor_make(lse[at], MLA_DTYPE_F32, 4, (int64_t[]){1, 1, 1, HEADS});
            memset(lse[at], 0xff, sizeof lse[at]);
            mla_plan_options options = {.backend = threads == 0 ? MLA_BACKEND_REF : MLA_BACKEND_CPU,
                                        .n_thread = threads};
            if (mla_quant_sparse_flash_mla(&args, &options) != MLA_STATUS_OK) {
                fail_msg("%s", mla_last_error());
            }
            if (threads == 0) {
                memcpy(out + HEADS * D, out, HEADS * D * sizeof *out);
                memcpy(lse[1], lse[0], sizeof lse[0]);
            } else if (threads == 1) {
                /* a P on the other side of a tie moves a row a little; another order of tiles moves it by percents */
                assert_true(distance(out, out + HEADS * D, HEADS * D) < 4e-3);
                for (int h = 0; h < HEADS; h++) {
                    assert_true(fabs(lse[0][h] - lse[1][h]) < 1e-4);
                }
            } else {
                assert_memory_equal(out, out + HEADS * D, HEADS * D * sizeof *out);
                assert_memory_equal(lse[0], lse[1], sizeof lse[0]);
            }
        }
    }
    free(q);
    free(ori);
    free(cmp);
    free(out);
    free(list);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static void test_own_arguments(void **state)
{
    (void)state;
    assert_refused(MLA_STATUS_NULL_POINTER, mla_quant_sparse_flash_mla_check(NULL), "args is NULL");
    open_call(&shared, CSA, TND_PA);
    native_args(&args, &shared);
    assert_int_equal(mla_quant_sparse_flash_mla_check(&args), MLA_STATUS_OK);
    args.struct_size--;
    assert_refused(MLA_STATUS_BAD_VALUE, mla_quant_sparse_flash_mla_check(&args), "args.struct_size");
    mla_quant_sparse_flash_mla_init_sized(&args, 64); /* as a caller with an older header does */
    assert_refused(MLA_STATUS_BAD_VALUE, mla_quant_sparse_flash_mla_check(&args), "args.struct_size = 64");
    native_args(&args, &shared);
    args.options = 8;
    assert_refused(MLA_STATUS_BAD_VALUE, mla_quant_sparse_flash_mla_check(&args), "options = 0x8");
    args.options = 0;
    args.format = (mla_sparse_flash_mla_format)2;
    assert_refused(MLA_STATUS_BAD_VALUE, mla_quant_sparse_flash_mla_check(&args), "format = 2");
    native_args(&args, &shared);
    args.softmax_lse = args.attn_out; /* wrong type, before it overlaps */
    assert_refused(MLA_STATUS_BAD_DTYPE, mla_quant_sparse_flash_mla(&args, NULL), "softmax_lse.dtype");
    native_args(&args, &shared);
    args.softmax_lse.data = shared.sinks; /* an output on an input */
    assert_refused(MLA_STATUS_BAD_VALUE, mla_quant_sparse_flash_mla(&args, NULL), "softmax_lse.data");
    native_args(&args, &shared);
    assert_refused(MLA_STATUS_BAD_VALUE,
                   mla_quant_sparse_flash_mla(&args, &(mla_plan_options){.backend = (mla_backend)77}),
                   "options.backend");

    mla_metadata_state fresh;
    native_args(&args, &shared);
    assert_refused(MLA_STATUS_NULL_POINTER, mla_quant_sparse_flash_mla_metadata_state(&args, NULL), "state");
    args.q = (mla_tensor){0};
    assert_refused(MLA_STATUS_NULL_POINTER, mla_quant_sparse_flash_mla_metadata_state(&args, &fresh), "q is missing");
    assert_refused(MLA_STATUS_NULL_POINTER, mla_quant_sparse_flash_mla_metadata_check(NULL), "args is NULL");
    mla_quant_sparse_flash_mla_metadata_args metadata;
    mla_quant_sparse_flash_mla_metadata_init_sized(&metadata, 16);
    assert_refused(MLA_STATUS_BAD_VALUE, mla_quant_sparse_flash_mla_metadata(&metadata), "args.struct_size = 16");
}

static void test_relaxed(void **state)
{
    (void)state;
    open_call(&shared, CSA, TND_PA);
    for (int h = 0; h < N1; h++) {
        shared.sinks[h] = -INFINITY; /* no sink */
    }
    native_args(&args, &shared);
    run(NULL);
    memcpy(expected, shared.out, sizeof expected);
    args.sinks = args.metadata = (mla_tensor){0};
    assert_refused(MLA_STATUS_NULL_POINTER, mla_quant_sparse_flash_mla(&args, NULL), "sinks is missing");
    args.options = MLA_SPARSE_FLASH_MLA_RELAXED;
    run(NULL);
    assert_memory_equal(expected, shared.out, sizeof expected);
    args.q_descale = (mla_tensor){0}; /* this one stays mandatory */
    assert_refused(MLA_STATUS_NULL_POINTER, mla_quant_sparse_flash_mla(&args, NULL), "q_descale is missing");
}

/* A sink so large that one unit of fp32 in it is more than exp2() can take: attention is 0, whatever is rounded where. */
static void test_huge_sinks(void **state)
{
    (void)state;
    for (int i = 0; i < 400; i++) {
        open_call(&shared, SWA, TND_PA);
        for (int h = 0; h < N1; h++) {
            shared.sinks[h] = (float)(1e9 * pow(10, (double)(i * N1 + h) * 29.3 / (400 * N1)));
        }
        native_args(&args, &shared);
        run(NULL);
        for (int row = 0; row < T1 * N1; row++) {
            assert_true(fabsf(shared.lse_data[row] - shared.sinks[row % N1]) <= 1e-5f * shared.sinks[row % N1]);
            for (int d = 0; d < D; d++) {
                assert_int_equal(shared.out[row * D + d] & 0x7fff, 0);
            }
        }
    }
}

static void test_strict_residual(void **state)
{
    (void)state;
    open_call(&shared, CSA, TND_PA);
    native_args(&args, &shared);
    args.options = MLA_SPARSE_FLASH_MLA_STRICT_RESIDUAL;
    assert_refused(MLA_STATUS_BAD_VALUE, mla_quant_sparse_flash_mla_check(&args), "cmp_residual_kv is missing");
    args.cmp_residual_kv = mla_tensor_make(shared.residual, MLA_DTYPE_I32, 1, (int64_t[]){B});
    assert_int_equal(mla_quant_sparse_flash_mla_check(&args), MLA_STATUS_OK);
    args.cmp_ratio = 1;
    assert_refused(MLA_STATUS_BAD_VALUE, mla_quant_sparse_flash_mla_check(&args),
                   "cmp_residual_kv must be absent: cmp_ratio is 1");
    args.cmp_ratio = RATIO;
    args.cmp_mask_mode = 0;
    args.cmp_topk_length = mla_tensor_make(shared.cmp_topk, MLA_DTYPE_I32, 2, (int64_t[]){T1, 1});
    assert_refused(MLA_STATUS_BAD_VALUE, mla_quant_sparse_flash_mla_check(&args),
                   "cmp_residual_kv must be absent: cmp_mask_mode is 0");
    args.options = 0;
    assert_int_equal(mla_quant_sparse_flash_mla_check(&args), MLA_STATUS_OK);
}

/* P as it is: near the result with rounded P, and not the same. */
static void test_exact_p(void **state)
{
    (void)state;
    open_call(&shared, CSA, TND_PA);
    native_args(&args, &shared);
    run(NULL);
    memcpy(expected, shared.out, sizeof expected);
    args.options = MLA_SPARSE_FLASH_MLA_EXACT_P;
    run(NULL);
    double apart = distance(expected, shared.out, T1 * N1 * D);
    assert_true(apart > 1e-5);
    assert_true(apart < 0.04);
}

/* ---- the 16-bit sibling ------------------------------------------------------------------------------------------ */

static uint16_t wide_q[T1 * N1 * D], wide_ori[PAGES * BLOCK * D], wide_cmp[PAGES * BLOCK * D];

/* sign, 1.0 to 1.9375 (bf16) and 1.0 to 1.234 (f16) */
static void widen(uint16_t *to, const uint8_t *from, size_t n, mla_dtype dtype)
{
    uint16_t one = dtype == MLA_DTYPE_BF16 ? 0x3f80 : 0x3c00;
    for (size_t i = 0; i < n; i++) {
        to[i] = (uint16_t)((from[i] & 0x80) << 8 | one | (from[i] & 0x0f) << 3);
    }
}

static void open_16bit(mla_dtype dtype, call_mode mode)
{
    open_call(&shared, mode, TND_PA);
    native_args(&args, &shared);
    args.format = MLA_SPARSE_FLASH_MLA_16BIT;
    args.quant_mode = 0;
    args.q_descale = args.ori_kv_descale = args.cmp_kv_descale = (mla_tensor){0};
    widen(wide_q, shared.q, T1 * N1 * D, dtype);
    widen(wide_ori, shared.ori, PAGES * BLOCK * D, dtype);
    widen(wide_cmp, shared.cmp, PAGES * BLOCK * D, dtype);
    args.q.data = wide_q;
    args.ori_kv.data = wide_ori;
    args.q.dtype = args.ori_kv.dtype = args.attn_out.dtype = dtype;
    if (!shared.t[CMP_KV].absent) {
        args.cmp_kv.data = wide_cmp;
        args.cmp_kv.dtype = dtype;
    }
}

static void test_16bit(void **state)
{
    (void)state;
    static const mla_dtype dtypes[] = {MLA_DTYPE_BF16, MLA_DTYPE_F16};
    for (int i = 0; i < 2; i++) {
        for (int mode = SWA; mode <= HCA; mode++) {
            open_16bit(dtypes[i], (call_mode)mode);
            run(&(mla_plan_options){.backend = MLA_BACKEND_REF});
            memcpy(expected, shared.out, sizeof expected);
            run(NULL);
            int64_t different = 0;
            for (size_t x = 0; x < T1 * N1 * D; x++) { /* codes of neighbours are neighbours, except around 0 */
                int apart = abs((int)(shared.out[x] & 0x7fff) - (int)(expected[x] & 0x7fff));
                different += apart > 1;
            }
            assert_true(different <= T1 * N1 * D / 200);
            int32_t scratch[64];
            mla_problem problem;
            assert_int_equal(mla_quant_sparse_flash_mla_lower(&args, scratch, 64, &problem), MLA_STATUS_OK);
            assert_int_equal(problem.p_rounding, MLA_P_ROUND_16BIT);
            args.options = MLA_SPARSE_FLASH_MLA_EXACT_P;
            assert_int_equal(mla_quant_sparse_flash_mla_lower(&args, scratch, 64, &problem), MLA_STATUS_OK);
            assert_int_equal(problem.p_rounding, MLA_P_ROUND_NONE);
        }
    }
    open_16bit(MLA_DTYPE_BF16, CSA);
    args.sinks = (mla_tensor){0};
    run(NULL);
    args.metadata = (mla_tensor){0};
    assert_refused(MLA_STATUS_NULL_POINTER, mla_quant_sparse_flash_mla_check(&args), "metadata is missing");
    open_16bit(MLA_DTYPE_BF16, CSA);
    args.cmp_kv.dtype = MLA_DTYPE_F16;
    assert_refused(MLA_STATUS_BAD_DTYPE, mla_quant_sparse_flash_mla_check(&args), "cmp_kv.dtype = f16 must be bf16");
    open_16bit(MLA_DTYPE_F16, CSA);
    args.attn_out.dtype = MLA_DTYPE_BF16;
    assert_refused(MLA_STATUS_BAD_DTYPE, mla_quant_sparse_flash_mla_check(&args), "attn_out.dtype = bf16 must be f16");
    open_16bit(MLA_DTYPE_BF16, SWA);
    args.q.dtype = MLA_DTYPE_HIF8;
    assert_refused(MLA_STATUS_BAD_DTYPE, mla_quant_sparse_flash_mla_check(&args), "q.dtype = hif8 must be f16 or bf16");
    for (int i = 0; i < 3; i++) {
        open_16bit(MLA_DTYPE_BF16, CSA);
        mla_tensor *const descale[] = {&args.q_descale, &args.ori_kv_descale, &args.cmp_kv_descale};
        static const char *const words[] = {"q_descale must be absent", "ori_kv_descale must be absent",
                                            "cmp_kv_descale must be absent"};
        *descale[i] = mla_tensor_make(shared.one, MLA_DTYPE_F32, 1, (int64_t[]){1});
        assert_refused(MLA_STATUS_BAD_VALUE, mla_quant_sparse_flash_mla_check(&args), words[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_as_aclnn),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_backends),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_own_arguments),
        cmocka_unit_test(test_relaxed),
        cmocka_unit_test(test_huge_sinks),
        cmocka_unit_test(test_strict_residual),
        cmocka_unit_test(test_exact_p),
        cmocka_unit_test(test_16bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
