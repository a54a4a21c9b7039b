/*
 * test_types.c - views, names of numbers, and sentences that belong to a thread.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/status.h"
#include "mla/mla.h"

static void test_make_a_view(void **state)
{
    (void)state;
    float data[1];
    mla_tensor t = mla_tensor_make(data, MLA_DTYPE_F16, 6, (int64_t[]){2, 3, 4, 5, 6, 7});
    assert_ptr_equal(t.data, data);
    assert_int_equal(t.dtype, MLA_DTYPE_F16);
    assert_int_equal(t.device.type, MLA_DEVICE_CPU);
    assert_int_equal(t.device.id, 0);
    assert_int_equal(t.ndim, 6);
    assert_null(t.name);
    assert_memory_equal(t.dim, ((int64_t[]){2, 3, 4, 5, 6, 7}), sizeof t.dim);
    assert_memory_equal(t.stride, ((int64_t[]){2520, 840, 210, 42, 7, 1}), sizeof t.stride);
    /* an empty dim does not make the others' strides vanish */
    t = mla_tensor_make(NULL, MLA_DTYPE_I32, 3, (int64_t[]){4, 0, 8});
    assert_memory_equal(t.stride, ((int64_t[]){8, 8, 1}), 3 * sizeof *t.stride);
    /* nothing at all is an absent tensor */
    t = mla_tensor_make(NULL, MLA_DTYPE_NONE, 0, NULL);
    assert_memory_equal(&t, &(mla_tensor){0}, sizeof t);
}

/* Views that cannot be are made all the same, and refused by the check. */
static void test_impossible_views(void **state)
{
    (void)state;
    static const int64_t dims[][4] = {{INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX},
                                      {(int64_t)1 << 40, (int64_t)1 << 40, 1, 1},
                                      {1, INT64_MIN, 2, 3}};
    float data[1];
    mla_problem p;
    mla_problem_init(&p);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        p.q = mla_tensor_make(data, MLA_DTYPE_F32, 4, dims[i]);
        assert_int_equal(mla_problem_check(&p), MLA_STATUS_BAD_SHAPE);
        assert_int_equal(strncmp(mla_last_error(), "q", 1), 0);
    }
    static const int32_t ranks[] = {INT32_MIN, -1, 7, INT32_MAX};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        p.q = mla_tensor_make(data, MLA_DTYPE_F32, ranks[i], dims[0]);
        assert_int_equal(mla_problem_check(&p), MLA_STATUS_BAD_SHAPE);
        assert_non_null(strstr(mla_last_error(), "q.ndim = -1 must be between 1 and 6"));
    }
    p.q = mla_tensor_make(data, MLA_DTYPE_F32, 3, NULL);
    assert_int_equal(mla_problem_check(&p), MLA_STATUS_BAD_SHAPE);
}

static void test_dtypes(void **state)
{
    (void)state;
    static const struct {
        mla_dtype dtype;
        int number;
        size_t size;
        const char *name;
    } known[] = {
        {MLA_DTYPE_NONE, 0, 0, "none"},  {MLA_DTYPE_F32, 1, 4, "f32"},      {MLA_DTYPE_F16, 2, 2, "f16"},
        {MLA_DTYPE_BF16, 3, 2, "bf16"},  {MLA_DTYPE_I32, 4, 4, "i32"},      {MLA_DTYPE_I64, 5, 8, "i64"},
        {MLA_DTYPE_I8, 6, 1, "i8"},      {MLA_DTYPE_U8, 7, 1, "u8"},        {MLA_DTYPE_HIF8, 8, 1, "hif8"},
        {(mla_dtype)9, 9, 0, "unknown"}, {(mla_dtype)-1, -1, 0, "unknown"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_int_equal((int)known[i].dtype, known[i].number); /* numbers are pinned */
        assert_int_equal(mla_dtype_size(known[i].dtype), known[i].size);
        assert_string_equal(mla_dtype_name(known[i].dtype), known[i].name);
    }
}

static void test_statuses(void **state)
{
    (void)state;
    static const char *const names[] = {
        "MLA_STATUS_OK",
        "MLA_STATUS_NULL_POINTER",
        "MLA_STATUS_BAD_VALUE",
        "MLA_STATUS_BAD_SHAPE",
        "MLA_STATUS_BAD_STRIDE",
        "MLA_STATUS_BAD_DTYPE",
        "MLA_STATUS_BAD_DEVICE",
        "MLA_STATUS_OUT_OF_RANGE",
        "MLA_STATUS_UNSUPPORTED",
        "MLA_STATUS_STALE_PLAN",
        "MLA_STATUS_WORKSPACE_TOO_SMALL",
        "MLA_STATUS_OUT_OF_MEMORY",
        "MLA_STATUS_INTERNAL",
        "MLA_STATUS_UNKNOWN",
    };
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        assert_string_equal(mla_status_name((mla_status)i), names[i]);
    }
    assert_string_equal(mla_status_name((mla_status)-1), "MLA_STATUS_UNKNOWN");
    assert_string_equal(mla_version(), MLA_VERSION_STRING);
}

/* A fresh thread has no failure, and its own failures stay its own. */
static void *other_thread(void *data)
{
    bool *right = data;
    *right = mla_last_error()[0] == '\0';
    mla_fail(MLA_STATUS_BAD_VALUE, "theirs = %d", 2);
    *right = *right && strcmp(mla_last_error(), "theirs = 2") == 0;
    return NULL;
}

static void test_sentences(void **state)
{
    (void)state;
    assert_int_equal(mla_fail(MLA_STATUS_BAD_VALUE, "ours = %d", 1), MLA_STATUS_BAD_VALUE);
    pthread_t thread;
    bool right = false;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &right), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(right);
    assert_string_equal(mla_last_error(), "ours = 1");
    /* success does not erase the last failure */
    assert_string_equal(mla_status_name(MLA_STATUS_OK), "MLA_STATUS_OK");
    assert_string_equal(mla_last_error(), "ours = 1");
    /* a sentence may quote the one before it, and the longest one is cut, not overrun */
    mla_fail(MLA_STATUS_BAD_SHAPE, "layer 3: %s", mla_last_error());
    assert_string_equal(mla_last_error(), "layer 3: ours = 1");
    mla_fail(MLA_STATUS_BAD_SHAPE, "%02000d", 7);
    assert_int_equal(strlen(mla_last_error()), 511);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_make_a_view), cmocka_unit_test(test_impossible_views), cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_statuses),    cmocka_unit_test(test_sentences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
