/*
 * test_aclnn_life.c - executors, streams and metadata over their lives: used twice, used late, by several threads,
 * after errors; and metadata that is fresh, stale, foreign or empty.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>

#include "aclnn_native.h"

#define assert_said(words)                                     \
    do {                                                       \
        const char *said = aclGetRecentErrMsg();               \
        if (strstr(said, words) == NULL) {                     \
            fail_msg("\"%s\" instead of \"%s\"", said, words); \
        }                                                      \
    } while (0)

static call shared;
static metadata_call shared_metadata;

static aclOpExecutor *prepare(const call *c)
{
    uint64_t size = 99;
    aclOpExecutor *executor = NULL;
    if (first_phase(c, &size, &executor) != ACLNN_SUCCESS) {
        fail_msg("%s", aclGetRecentErrMsg());
    }
    return executor;
}

static aclOpExecutor *prepare_metadata(const metadata_call *m)
{
    uint64_t size = 99;
    aclOpExecutor *executor = NULL;
    if (first_metadata_phase(m, &size, &executor) != ACLNN_SUCCESS) {
        fail_msg("%s", aclGetRecentErrMsg());
    }
    return executor;
}

static bool written(const call *c)
{
    return c->out[0] != 0xffff;
}

/* ---- executors --------------------------------------------------------------------------------------------------- */

static void test_used_once(void **state)
{
    (void)state;
    open_call(&shared, CSA, TND_PA);
    aclOpExecutor *executor = prepare(&shared), *another = prepare(&shared);
    assert_ptr_not_equal(executor, another);
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, executor, NULL), ACLNN_SUCCESS);
    assert_true(written(&shared));
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, executor, NULL), ACLNN_ERR_INNER_NULLPTR);
    assert_said("it was used before");
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, another, NULL), ACLNN_SUCCESS);
    aclOpExecutor *third = prepare(&shared); /* may lie where the first one lay, but is not taken for it */
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, executor, NULL), ACLNN_ERR_INNER_NULLPTR);
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, third, NULL), ACLNN_SUCCESS);
    assert_int_equal(aclrtSynchronizeStream(NULL), ACL_SUCCESS);
}

static void test_not_an_executor(void **state)
{
    (void)state;
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, NULL, NULL), ACLNN_ERR_INNER_NULLPTR);
    assert_said("executor is NULL");
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, (aclOpExecutor *)&shared, NULL), ACLNN_ERR_INNER_NULLPTR);
    assert_said("is not waiting to be run");
    assert_int_equal(aclnnQuantSparseFlashMlaMetadata(NULL, 0, (aclOpExecutor *)0x5a5a5a50u, NULL),
                     ACLNN_ERR_INNER_NULLPTR);
    assert_int_equal(aclnnMixedQuantSparseFlashMlaMetadata(NULL, 0, NULL, NULL), ACLNN_ERR_INNER_NULLPTR);
    open_call(&shared, CSA, TND_PA);
    open_metadata(&shared_metadata, &shared);
    aclOpExecutor *main_executor = prepare(&shared), *metadata_executor = prepare_metadata(&shared_metadata);
    assert_int_equal(aclnnQuantSparseFlashMlaMetadata(NULL, 0, main_executor, NULL), ACLNN_ERR_INNER_NULLPTR);
    assert_said("was made for aclnnQuantSparseFlashMla(), not for aclnnQuantSparseFlashMlaMetadata()");
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, metadata_executor, NULL), ACLNN_ERR_INNER_NULLPTR);
    assert_false(written(&shared));
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, main_executor, NULL), ACLNN_SUCCESS); /* both are still good */
    assert_int_equal(aclnnQuantSparseFlashMlaMetadata(NULL, 0, metadata_executor, NULL), ACLNN_SUCCESS);
}

static void test_not_a_stream(void **state)
{
    (void)state;
    open_call(&shared, CSA, TND_PA);
    aclOpExecutor *executor = prepare(&shared);
    aclrtStream stream = NULL;
    assert_int_equal(aclrtCreateStream(&stream), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyStream(stream), ACL_SUCCESS);
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, executor, stream), ACLNN_ERR_RUNTIME_ERROR);
    assert_said("is not a stream");
    assert_false(written(&shared));
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, executor, NULL), ACLNN_SUCCESS);
    assert_true(written(&shared));
}

/* The first phase looks at no memory: what lies there when the executor runs is what counts. */
static void test_memory_is_read_at_launch(void **state)
{
    (void)state;
    open_call(&shared, CSA, TND_PA);
    run_call(&shared);
    uint16_t expected[T1 * N1 * D];
    memcpy(expected, shared.out, sizeof expected);

    open_call(&shared, CSA, TND_PA);
    uint8_t q[sizeof shared.q];
    memcpy(q, shared.q, sizeof q);
    memset(shared.q, 0x80, sizeof shared.q); /* NaN */
    memset(shared.used_ori, 0x7f, sizeof shared.used_ori);
    memset(shared.cu_q, 0x7f, sizeof shared.cu_q);
    memset(shared.cmp_list, 0x7f, sizeof shared.cmp_list);
    aclOpExecutor *executor = prepare(&shared);
    assert_false(written(&shared));
    static call other; /* its numbers are copied to where the tensors of the first one point */
    open_call(&other, CSA, TND_PA);
    memcpy(shared.q, q, sizeof q);
    memcpy(shared.used_ori, other.used_ori, sizeof other.used_ori);
    memcpy(shared.cu_q, other.cu_q, sizeof other.cu_q);
    memcpy(shared.cmp_list, other.cmp_list, sizeof other.cmp_list);
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, executor, NULL), ACLNN_SUCCESS);
    assert_int_equal(aclrtSynchronizeStream(NULL), ACL_SUCCESS);
    assert_memory_equal(expected, shared.out, sizeof expected);
}

static void test_finalize_releases_executors(void **state)
{
    (void)state;
    open_call(&shared, SWA, TND_PA);
    assert_int_equal(aclInit(NULL), ACL_SUCCESS);
    aclOpExecutor *executor = prepare(&shared);
    assert_int_equal(aclFinalize(), ACL_SUCCESS);
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, executor, NULL), ACLNN_ERR_INNER_NULLPTR);
    assert_false(written(&shared));
}

static void test_foreign_tensor(void **state)
{
    (void)state;
    uint64_t size = 0;
    aclOpExecutor *executor = NULL;
    aclTensor *destroyed = aclCreateTensor((int64_t[]){1}, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, NULL, 0, &shared);
    assert_int_equal(aclDestroyTensor(destroyed), ACLNN_SUCCESS);
    const aclTensor *q[] = {destroyed, (const aclTensor *)&shared, (const aclTensor *)0x123456789aau};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(aclnnQuantSparseFlashMlaGetWorkspaceSize(q[i], NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                                                                  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                                                                  NULL, NULL, NULL, 1, 1, 1, 0, 0, -1, -1, NULL, NULL,
                                                                  1, false, NULL, NULL, &size, &executor),
                         ACLNN_ERR_PARAM_INVALID);
        assert_said("q = ");
        assert_null(executor);
    }
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static void test_errors_of_a_stream(void **state)
{
    (void)state;
    aclrtStream stream = NULL, other = NULL;
    assert_int_equal(aclrtCreateStream(&stream), ACL_SUCCESS);
    assert_int_equal(aclrtCreateStream(&other), ACL_SUCCESS);
    open_call(&shared, CSA, TND_PA);
    shared.used_ori[1] = 1000;
    aclOpExecutor *bad = prepare(&shared), *after = prepare(&shared), *elsewhere = prepare(&shared),
                  *later = prepare(&shared);
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, bad, stream), ACLNN_SUCCESS); /* the stream took it */
    assert_false(written(&shared));
    shared.used_ori[1] = 7;
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, after, stream), ACLNN_SUCCESS);
    assert_false(written(&shared)); /* work behind a failure is not run */
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, elsewhere, other), ACLNN_SUCCESS);
    assert_true(written(&shared)); /* other streams go on */
    memset(shared.out, 0xff, sizeof shared.out);
    assert_int_equal(aclrtSynchronizeStream(other), ACL_SUCCESS);
    (void)aclGetRecentErrMsg();
    assert_int_equal(aclrtSynchronizeStream(stream), ACL_ERROR_RT_AICORE_EXCEPTION);
    assert_said("seqused_ori_kv[1] = 1000 exceeds");
    assert_int_equal(aclrtSynchronizeStream(stream), ACL_SUCCESS); /* told once */
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, later, stream), ACLNN_SUCCESS);
    assert_int_equal(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    assert_true(written(&shared));
    assert_int_equal(aclrtDestroyStream(stream), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyStream(other), ACL_SUCCESS);
}

/* What the main operator meets in memory. */
static void test_bad_numbers(void **state)
{
    (void)state;
    const struct {
        call_mode mode;
        call_layout layout;
        size_t offset;
        int32_t value;
        const char *words;
    } bad[] = {
        {SWA, TND_PA, offsetof(call, ori_table[1]), 8, "ori_block_table[0][1] = 8 is not one of the 8 pages of ori_kv"},
        {SWA, BSND_PA, offsetof(call, ori_table[2]), -1, "ori_block_table[0][2] = -1"},
        {SWA, TND_PA, offsetof(call, used_ori[0]), 13, "seqused_ori_kv[0] = 13 exceeds"},
        {CSA, TND_PA, offsetof(call, used_cmp[1]), 13, "seqused_cmp_kv[1] = 13 exceeds"},
        {HCA, TND_PA, offsetof(call, cmp_table[1]), 99, "cmp_block_table[0][1] = 99"},
        {SWA, TND_TND, offsetof(call, cu_q[1]), 9, "cu_seqlens_q"},
        {SWA, TND_TND, offsetof(call, cu_ori[2]), 21, "cu_seqlens_ori_kv[2] = 21 exceeds"},
        {CSA, TND_TND, offsetof(call, cu_cmp[1]), -1, "cu_seqlens_cmp_kv[1] = -1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        open_call(&shared, bad[i].mode, bad[i].layout);
        memcpy((char *)&shared + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, prepare(&shared), NULL), ACLNN_SUCCESS);
        assert_int_equal(aclrtSynchronizeStream(NULL), ACL_ERROR_RT_AICORE_EXCEPTION);
        assert_said(bad[i].words);
        assert_false(written(&shared));
    }
}

static void test_bad_metadata_numbers(void **state)
{
    (void)state;
    const struct {
        call_mode mode;
        call_layout layout;
        size_t offset;
        int32_t value;
        const char *words;
    } bad[] = {
        {CSA, TND_PA, offsetof(call, cu_q[0]), 1, "cu_seqlens_q[0] = 1 must be 0"},
        {CSA, TND_TND, offsetof(call, cu_q[2]), 2, "cu_seqlens_q[2] = 2 must be at least the one before it"},
        {CSA, TND_TND, offsetof(call, cu_ori[1]), -1, "cu_seqlens_ori_kv[1] = -1 must be"},
        {CSA, TND_TND, offsetof(call, cu_cmp[0]), 3, "cu_seqlens_cmp_kv[0] = 3 must be 0"},
        {CSA, TND_PA, offsetof(call, used_ori[0]), -1, "seqused_ori_kv[0] = -1 must be between 0 and 12"},
        {CSA, TND_PA, offsetof(call, used_ori[1]), 13, "seqused_ori_kv[1] = 13 must be between 0 and 12"},
        {CSA, TND_PA, offsetof(call, used_cmp[1]), 7, "seqused_cmp_kv[1] = 7 must be between 0 and 6"},
        {CSA, TND_PA, offsetof(call, used_q[1]), 4, "seqused_q[1] = 4 must be between 0 and 3"},
        {CSA, TND_PA, offsetof(call, residual[0]), RATIO, "cmp_residual_kv[0] = 2 must be between 0 and cmp_ratio - 1"},
        {CSA, TND_PA, offsetof(call, residual[1]), -1, "cmp_residual_kv[1] = -1 must be"},
        {FULL_SPARSE, TND_PA, offsetof(call, ori_topk[5]), -1, "ori_topk_length[5] = -1 is negative"},
        {FULL_SPARSE, TND_PA, offsetof(call, cu_q[2]), 7, "ori_topk_length.dim[0] = 6 has no row for each of 7"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        open_call(&shared, bad[i].mode, bad[i].layout);
        set_tensor(&shared, USED_Q, ACL_INT32, shared.used_q, 1, B, 0, 0, 0);
        set_tensor(&shared, RESIDUAL, ACL_INT32, shared.residual, 1, B, 0, 0, 0);
        memcpy((char *)&shared + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        open_metadata(&shared_metadata, &shared);
        shared_metadata.mixed = i % 2 == 1;
        assert_int_equal(run_metadata(&shared_metadata), ACL_ERROR_RT_AICPU_EXCEPTION);
        assert_said(bad[i].words);
        assert_int_equal(shared.metadata[0], 0);
    }
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

typedef struct worker {
    pthread_t thread;
    call *c;
    aclrtStream stream;
    int failures;
} worker;

static void *run_often(void *argument)
{
    worker *w = argument;
    uint16_t first[64];
    for (int i = 0; i < 20; i++) {
        uint64_t size = 0;
        aclOpExecutor *executor = NULL;
        memset(w->c->out, 0xff, sizeof w->c->out);
        w->failures += first_phase(w->c, &size, &executor) != ACLNN_SUCCESS;
        w->failures += aclnnQuantSparseFlashMla(NULL, 0, executor, w->stream) != ACLNN_SUCCESS;
        w->failures += aclnnQuantSparseFlashMla(NULL, 0, executor, w->stream) != ACLNN_ERR_INNER_NULLPTR;
        w->failures += aclrtSynchronizeStream(w->stream) != ACL_SUCCESS;
        if (i == 0) {
            memcpy(first, w->c->out, sizeof first);
        }
        w->failures += memcmp(first, w->c->out, sizeof first) != 0;
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    enum { N = 4 };
    static worker w[N];
    aclrtStream stream = NULL;
    assert_int_equal(aclrtCreateStream(&stream), ACL_SUCCESS);
    for (int i = 0; i < N; i++) {
        w[i] = (worker){.c = malloc(sizeof(call)), .stream = i % 2 == 0 ? stream : NULL};
        assert_non_null(w[i].c);
        open_call(w[i].c, (call_mode)i, (call_layout)i);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_create(&w[i].thread, NULL, run_often, &w[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_join(w[i].thread, NULL), 0);
        assert_int_equal(w[i].failures, 0);
        free(w[i].c);
    }
    assert_int_equal(aclrtDestroyStream(stream), ACL_SUCCESS);
}

typedef struct racer {
    pthread_t thread;
    aclOpExecutor *executor;
    aclnnStatus status;
} racer;

static void *run_once(void *argument)
{
    racer *r = argument;
    r->status = aclnnQuantSparseFlashMla(NULL, 0, r->executor, NULL);
    return NULL;
}

static void test_one_executor_many_threads(void **state)
{
    (void)state;
    enum { N = 4 };
    open_call(&shared, SWA, BSND_BSND);
    for (int round = 0; round < 10; round++) {
        racer r[N];
        aclOpExecutor *executor = prepare(&shared);
        int wins = 0;
        for (int i = 0; i < N; i++) {
            r[i].executor = executor;
            assert_int_equal(pthread_create(&r[i].thread, NULL, run_once, &r[i]), 0);
        }
        for (int i = 0; i < N; i++) {
            assert_int_equal(pthread_join(r[i].thread, NULL), 0);
            wins += r[i].status == ACLNN_SUCCESS;
            assert_true(r[i].status == ACLNN_SUCCESS || r[i].status == ACLNN_ERR_INNER_NULLPTR);
        }
        assert_int_equal(wins, 1);
    }
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

/* What libmla says of the metadata that a call brings. */
static mla_metadata_state state_of(const call *c)
{
    mla_quant_sparse_flash_mla_args args;
    native_args(&args, c);
    mla_metadata_state state = (mla_metadata_state)99;
    if (mla_quant_sparse_flash_mla_metadata_state(&args, &state) != MLA_STATUS_OK) {
        fail_msg("%s", mla_last_error());
    }
    return state;
}

static void make_metadata(call *c, int mixed)
{
    open_metadata(&shared_metadata, c);
    shared_metadata.mixed = mixed;
    if (run_metadata(&shared_metadata) != ACL_SUCCESS) {
        fail_msg("%s", aclGetRecentErrMsg());
    }
}

static void test_fresh_in_every_mode(void **state)
{
    (void)state;
    for (int mode = SWA; mode <= HCA; mode++) {
        for (int layout = BSND_BSND; layout <= TND_PA; layout++) {
            int32_t first[1024];
            open_call(&shared, (call_mode)mode, (call_layout)layout);
            assert_int_equal(state_of(&shared), MLA_METADATA_FOREIGN); /* zeros */
            make_metadata(&shared, 0);
            assert_int_equal(state_of(&shared), MLA_METADATA_FRESH);
            memcpy(first, shared.metadata, sizeof first);
            memset(shared.metadata, 0x55, sizeof shared.metadata);
            make_metadata(&shared, 1); /* every word is written, and the Mixed operator writes the same */
            assert_memory_equal(first, shared.metadata, sizeof first);
        }
    }
}

static void test_stale(void **state)
{
    (void)state;
    for (int change = 0; change < 12; change++) {
        open_call(&shared, FULL_SPARSE, TND_PA);
        set_tensor(&shared, RESIDUAL, ACL_INT32, shared.residual, 1, B, 0, 0, 0);
        shared.ori_mask = 4;
        shared.win_left = 3;
        shared.win_right = 0;
        make_metadata(&shared, change % 2);
        switch (change) {
        case 0: shared.used_ori[1]--; break;
        case 1: shared.used_cmp[0]--; break;
        case 2: shared.cu_q[1]--; break;
        case 3: shared.residual[1] = 0; break;
        case 4: shared.ori_topk[5] = 1; break;
        case 5: shared.win_left = 4; break;
        case 6: shared.win_right = 1; break;
        case 7: shared.cmp_ratio = 3; break;
        case 8: shared.t[RESIDUAL].absent = 1; break;
        case 9: shared.t[CMP_LIST].dim[2] = K2 - 1; break;
        case 10: set_tensor(&shared, USED_Q, ACL_INT32, shared.used_q, 1, B, 0, 0, 0); break;
        default: shared.ori_mask = 3, shared.win_left = shared.win_right = -1; break;
        }
        if (state_of(&shared) != MLA_METADATA_STALE) {
            fail_msg("change %d went unnoticed", change);
        }
    }
}

/* Whatever the metadata tensor holds, the bits are the same. */
static void test_contents_do_not_matter(void **state)
{
    (void)state;
    uint16_t expected[T1 * N1 * D];
    for (int kind = 0; kind < 6; kind++) {
        open_call(&shared, CSA, TND_PA);
        if (kind == 1 || kind == 2 || kind == 5) {
            make_metadata(&shared, 0);
        }
        switch (kind) {
        case 2: shared.used_ori[0] = 9; break; /* stale */
        case 3: memset(shared.metadata, 0xff, sizeof shared.metadata); break;
        case 4:
            for (int i = 0; i < 1024; i++) { /* the vendor's: core records of small numbers */
                shared.metadata[i] = i % 9 == 0 ? 1 : i;
            }
            break;
        case 5: shared.metadata[900] ^= 1; break; /* damaged */
        default: break;
        }
        assert_int_equal(state_of(&shared), kind == 1   ? MLA_METADATA_FRESH
                                            : kind == 2 ? MLA_METADATA_STALE
                                                        : MLA_METADATA_FOREIGN);
        shared.used_ori[0] = 9;
        run_call(&shared);
        if (kind == 0) {
            memcpy(expected, shared.out, sizeof expected);
        }
        assert_memory_equal(expected, shared.out, sizeof expected);
    }
}

/* Made once, used for several layers with the same lengths and other data. */
static void test_reuse(void **state)
{
    (void)state;
    open_call(&shared, CSA, TND_PA);
    make_metadata(&shared, 0);
    for (int layer = 0; layer < 3; layer++) {
        for (size_t i = 0; i < sizeof shared.ori; i++) {
            shared.ori[i] = (uint8_t)((shared.ori[i] + 1) & 0x9f) | 8;
        }
        assert_int_equal(state_of(&shared), MLA_METADATA_FRESH);
        run_call(&shared);
    }
}

/* The order of a stream: metadata first, attention after it, without waiting between them. */
static void test_both_on_one_stream(void **state)
{
    (void)state;
    aclrtStream stream = NULL;
    assert_int_equal(aclrtCreateStream(&stream), ACL_SUCCESS);
    open_call(&shared, CSA, TND_PA);
    open_metadata(&shared_metadata, &shared);
    aclOpExecutor *metadata = prepare_metadata(&shared_metadata), *attention = prepare(&shared);
    assert_int_equal(aclnnQuantSparseFlashMlaMetadata(NULL, 0, metadata, stream), ACLNN_SUCCESS);
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, attention, stream), ACLNN_SUCCESS);
    assert_int_equal(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    assert_int_equal(state_of(&shared), MLA_METADATA_FRESH);
    assert_true(written(&shared));
    /* a failing metadata operator stops what stands behind it */
    memset(shared.out, 0xff, sizeof shared.out);
    metadata = prepare_metadata(&shared_metadata);
    attention = prepare(&shared);
    shared.cu_q[0] = 1;
    assert_int_equal(aclnnQuantSparseFlashMlaMetadata(NULL, 0, metadata, stream), ACLNN_SUCCESS);
    shared.cu_q[0] = 0;
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, attention, stream), ACLNN_SUCCESS);
    assert_false(written(&shared));
    assert_int_equal(aclrtSynchronizeStream(stream), ACL_ERROR_RT_AICPU_EXCEPTION);
    assert_said("cu_seqlens_q[0] = 1");
    assert_int_equal(aclrtDestroyStream(stream), ACL_SUCCESS);
}

static int finish(void **state)
{
    (void)state;
    return aclInit(NULL) != ACL_SUCCESS || aclFinalize() != ACL_SUCCESS;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_used_once),
        cmocka_unit_test(test_not_an_executor),
        cmocka_unit_test(test_not_a_stream),
        cmocka_unit_test(test_memory_is_read_at_launch),
        cmocka_unit_test(test_finalize_releases_executors),
        cmocka_unit_test(test_foreign_tensor),
        cmocka_unit_test(test_errors_of_a_stream),
        cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_bad_metadata_numbers),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_one_executor_many_threads),
        cmocka_unit_test(test_fresh_in_every_mode),
        cmocka_unit_test(test_stale),
        cmocka_unit_test(test_contents_do_not_matter),
        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_both_on_one_stream),
    };
    /* The others give host memory to the operator, or expect it to look into tensors before it runs. */
    const struct CMUnitTest tests_on_gpus[] = {
        cmocka_unit_test(test_fresh_in_every_mode),
        cmocka_unit_test(test_stale),
        cmocka_unit_test(test_contents_do_not_matter),
        cmocka_unit_test(test_reuse),
    };
    return on_gpu() ? cmocka_run_group_tests_name("metadata on a GPU", tests_on_gpus, NULL, finish)
                    : cmocka_run_group_tests(tests, NULL, finish);
}
