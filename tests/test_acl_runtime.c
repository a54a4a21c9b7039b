/*
 * test_acl_runtime.c - the acl runtime on the CPU: life, memory, streams, tensors, and what becomes of misuse.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "acl/acl.h"
#include "aclnn/acl_meta.h"

#define assert_refused(code, call, words)                      \
    do {                                                       \
        assert_int_equal(call, code);                          \
        const char *said = aclGetRecentErrMsg();               \
        if (strstr(said, words) == NULL) {                     \
            fail_msg("\"%s\" instead of \"%s\"", said, words); \
        }                                                      \
    } while (0)

static void *const FOREIGN = (void *)(uintptr_t)0x123456789a0u; /* not mapped; nobody may look */

static void test_begin_and_end(void **state)
{
    (void)state;
    assert_string_equal(aclGetRecentErrMsg(), "");
    assert_refused(ACL_ERROR_UNINITIALIZE, aclFinalize(), "without aclInit()");
    assert_int_equal(aclInit(NULL), ACL_SUCCESS);
    assert_refused(ACL_ERROR_REPEAT_INITIALIZE, aclInit("/no/such/file"), "aclInit() was called before");
    assert_string_equal(aclGetRecentErrMsg(), ""); /* asking clears it */
    void *memory = NULL;
    assert_int_equal(aclrtMalloc(&memory, 100, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    assert_int_equal(aclFinalize(), ACL_SUCCESS);
    assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
    assert_int_equal(aclInit(NULL), ACL_SUCCESS);
    assert_int_equal(aclFinalize(), ACL_SUCCESS);
}

static void test_device_and_context(void **state)
{
    (void)state;
    uint32_t count = 0;
    int32_t device = 7;
    assert_int_equal(aclrtGetDeviceCount(&count), ACL_SUCCESS);
    assert_int_equal(count, 1);
    assert_int_equal(aclrtSetDevice(0), ACL_SUCCESS);
    assert_int_equal(aclrtGetDevice(&device), ACL_SUCCESS);
    assert_int_equal(device, 0);
    assert_refused(ACL_ERROR_RT_INVALID_DEVICEID, aclrtSetDevice(1), "deviceId = 1 must be 0");
    assert_refused(ACL_ERROR_RT_INVALID_DEVICEID, aclrtResetDevice(-1), "deviceId = -1");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtGetDevice(NULL), "deviceId is NULL");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtGetDeviceCount(NULL), "count is NULL");
    aclrtContext context = FOREIGN;
    assert_refused(ACL_ERROR_RT_INVALID_DEVICEID, aclrtCreateContext(&context, 3), "deviceId = 3");
    assert_null(context);
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtCreateContext(NULL, 0), "context is NULL");
    assert_int_equal(aclrtCreateContext(&context, 0), ACL_SUCCESS);
    assert_int_equal(aclrtSetCurrentContext(context), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyContext(context), ACL_SUCCESS);
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtDestroyContext(context), "is not a context");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtSetCurrentContext(FOREIGN), "is not a context");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtSetCurrentContext(NULL), "is not a context");
    assert_int_equal(aclrtResetDevice(0), ACL_SUCCESS);
}

static void test_memory(void **state)
{
    (void)state;
    void *memory = FOREIGN, *host = NULL;
    for (size_t size = 1; size <= 1 << 20; size = size * 3 + 1) {
        assert_int_equal(aclrtMalloc(&memory, size, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t i = 0; i < size; i++) {
            assert_int_equal(((char *)memory)[i], 0);
        }
        memset(memory, 0xa5, size);
        assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
    }
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtFree(memory), "was freed before");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtFree(NULL), "devPtr");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtFree(FOREIGN), "is not from aclrtMalloc()");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtMalloc(NULL, 8, ACL_MEM_MALLOC_HUGE_FIRST), "devPtr is NULL");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtMalloc(&memory, 0, ACL_MEM_MALLOC_HUGE_FIRST), "size = 0");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtMalloc(&memory, 8, (aclrtMemMallocPolicy)6), "policy = 6");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtMallocHost(NULL, 8), "hostPtr is NULL");
    memory = FOREIGN;
    assert_refused(ACL_ERROR_RT_MEMORY_ALLOCATION, aclrtMalloc(&memory, SIZE_MAX, ACL_MEM_MALLOC_HUGE_ONLY), "size = ");
    assert_null(memory);
    const int policies = ACL_MEM_MALLOC_HUGE_FIRST_P2P | ACL_MEM_TYPE_HIGH_BAND_WIDTH;
    assert_int_equal(aclrtMalloc(&memory, 8, (aclrtMemMallocPolicy)policies), ACL_SUCCESS);
    assert_int_equal(aclrtMallocHost(&host, 8), ACL_SUCCESS);
    assert_int_equal(memcmp(host, "\0\0\0\0\0\0\0\0", 8), 0);
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtFree(host), "is not from aclrtMalloc()");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtFreeHost(memory), "is not from aclrtMallocHost()");
    assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
    assert_int_equal(aclrtFreeHost(host), ACL_SUCCESS);
}

static void test_copies(void **state)
{
    (void)state;
    char from[] = "latent", to[8] = "";
    aclrtStream stream = NULL;
    assert_int_equal(aclrtCreateStream(&stream), ACL_SUCCESS);
    for (int kind = ACL_MEMCPY_HOST_TO_HOST; kind <= ACL_MEMCPY_DEFAULT; kind++) {
        memset(to, 0, sizeof to);
        assert_int_equal(aclrtMemcpy(to, sizeof to, from, sizeof from, (aclrtMemcpyKind)kind), ACL_SUCCESS);
        assert_string_equal(to, "latent");
        memset(to, 0, sizeof to);
        assert_int_equal(aclrtMemcpyAsync(to, sizeof to, from, sizeof from, (aclrtMemcpyKind)kind, stream),
                         ACL_SUCCESS);
        assert_int_equal(aclrtSynchronizeStream(stream), ACL_SUCCESS);
        assert_string_equal(to, "latent");
    }
    assert_int_equal(aclrtMemcpy(NULL, 0, NULL, 0, ACL_MEMCPY_DEFAULT), ACL_SUCCESS);
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtMemcpy(to, 3, from, 4, ACL_MEMCPY_DEFAULT), "count = 4 exceeds");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtMemcpy(to, 8, from, 4, (aclrtMemcpyKind)5), "kind = 5");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtMemcpy(to, 8, NULL, 4, ACL_MEMCPY_DEFAULT), "src is NULL");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtMemcpy(NULL, 8, from, 4, ACL_MEMCPY_DEFAULT), "dst is NULL");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtMemcpyAsync(to, 8, from, 4, ACL_MEMCPY_DEFAULT, FOREIGN),
                   "is not a stream");
    assert_int_equal(aclrtMemset(to, sizeof to, 0x141, 3), ACL_SUCCESS);
    assert_memory_equal(to, "AAAent", 6);
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtMemset(to, 3, 0, 4), "count = 4 exceeds maxCount = 3");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtMemset(NULL, 3, 0, 3), "devPtr is NULL");
    assert_int_equal(aclrtDestroyStream(stream), ACL_SUCCESS);
}

static void test_streams(void **state)
{
    (void)state;
    aclrtStream stream = NULL, other = NULL;
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtCreateStream(NULL), "stream is NULL");
    assert_int_equal(aclrtCreateStream(&stream), ACL_SUCCESS);
    assert_int_equal(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    assert_int_equal(aclrtSynchronizeStream(NULL), ACL_SUCCESS); /* the default one */
    assert_int_equal(aclrtDestroyStream(stream), ACL_SUCCESS);
    assert_int_equal(aclrtCreateStream(&other), ACL_SUCCESS);
    assert_ptr_not_equal(stream, other); /* a late use of the first cannot mean the second */
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtSynchronizeStream(stream), "or it was destroyed");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtDestroyStream(stream), "or it was destroyed");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtDestroyStream(NULL), "is not a stream");
    assert_refused(ACL_ERROR_INVALID_PARAM, aclrtSynchronizeStream(FOREIGN), "is not a stream");
    assert_int_equal(aclrtDestroyStream(other), ACL_SUCCESS);
}

void _ZdaPv(void *memory); /* delete[], in C; free() is a different function to the address sanitizer */

static void test_tensors(void **state)
{
    (void)state;
    const int64_t dims[] = {2, 3, 4}, negative[] = {2, -1}, zero = 0;
    float data[24];
    int64_t *shape = NULL, many[26] = {0};
    uint64_t n = 0;
    aclDataType dtype;
    aclFormat format;
    aclTensor *tensor = aclCreateTensor(dims, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_NCHW, NULL, 0, data);
    assert_non_null(tensor);
    assert_int_equal(aclGetViewShape(tensor, &shape, &n), ACLNN_SUCCESS);
    assert_int_equal(n, 3);
    assert_memory_equal(shape, dims, sizeof dims);
    _ZdaPv(shape);
    assert_int_equal(aclGetDataType(tensor, &dtype), ACLNN_SUCCESS);
    assert_int_equal(dtype, ACL_FLOAT);
    assert_int_equal(aclGetFormat(tensor, &format), ACLNN_SUCCESS);
    assert_int_equal(format, ACL_FORMAT_NCHW);
    assert_refused(ACLNN_ERR_PARAM_NULLPTR, aclGetViewShape(NULL, &shape, &n), "tensor is NULL");
    assert_refused(ACLNN_ERR_PARAM_NULLPTR, aclGetViewShape(tensor, NULL, &n), "viewDims is NULL");
    assert_refused(ACLNN_ERR_PARAM_NULLPTR, aclGetViewShape(tensor, &shape, NULL), "viewDimsNum is NULL");
    assert_refused(ACLNN_ERR_PARAM_NULLPTR, aclGetDataType(tensor, NULL), "dataType is NULL");
    assert_refused(ACLNN_ERR_PARAM_NULLPTR, aclGetFormat(tensor, NULL), "format is NULL");
    assert_int_equal(aclDestroyTensor(tensor), ACLNN_SUCCESS);
    assert_refused(ACLNN_ERR_PARAM_INVALID, aclDestroyTensor(tensor), "is not a tensor");
    assert_refused(ACLNN_ERR_PARAM_INVALID, aclGetDataType(tensor, &dtype), "is not a tensor");
    assert_refused(ACLNN_ERR_PARAM_INVALID, aclGetFormat(FOREIGN, &format), "is not a tensor");
    assert_refused(ACLNN_ERR_PARAM_INVALID, aclDestroyTensor((const aclTensor *)data), "is not a tensor");
    assert_int_equal(aclDestroyTensor(NULL), ACLNN_SUCCESS);

    assert_null(aclCreateTensor(negative, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, NULL, 0, data));
    assert_non_null(strstr(aclGetRecentErrMsg(), "viewDims[1] = -1 is negative"));
    assert_null(aclCreateTensor(NULL, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, NULL, 0, data));
    assert_non_null(strstr(aclGetRecentErrMsg(), "viewDims is NULL"));
    assert_null(aclCreateTensor(many, 26, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, NULL, 0, data));
    assert_non_null(strstr(aclGetRecentErrMsg(), "viewDimsNum = 26"));
    aclTensor *scalar = aclCreateTensor(NULL, 0, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, NULL, 0, NULL);
    aclTensor *empty = aclCreateTensor(&zero, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, &zero, 1, NULL);
    aclTensor *widest = aclCreateTensor(many, 25, (aclDataType)99, many, -5, (aclFormat)99, NULL, 0, NULL);
    assert_non_null(widest);
    assert_int_equal(aclGetViewShape(scalar, &shape, &n), ACLNN_SUCCESS);
    assert_int_equal(n, 0);
    _ZdaPv(shape);
    assert_int_equal(aclDestroyTensor(scalar), ACLNN_SUCCESS);
    assert_int_equal(aclDestroyTensor(empty), ACLNN_SUCCESS);
    assert_int_equal(aclDestroyTensor(widest), ACLNN_SUCCESS);
}

static void test_data_type_sizes(void **state)
{
    (void)state;
    static const struct {
        aclDataType dtype;
        size_t size;
    } known[] = {{ACL_FLOAT, 4},     {ACL_FLOAT16, 2},       {ACL_INT8, 1},         {ACL_INT32, 4},
                 {ACL_UINT8, 1},     {ACL_INT16, 2},         {ACL_UINT16, 2},       {ACL_UINT32, 4},
                 {ACL_INT64, 8},     {ACL_UINT64, 8},        {ACL_DOUBLE, 8},       {ACL_BOOL, 1},
                 {ACL_COMPLEX64, 8}, {ACL_COMPLEX128, 16},   {ACL_BF16, 2},         {ACL_COMPLEX32, 4},
                 {ACL_HIFLOAT8, 1},  {ACL_FLOAT8_E4M3FN, 1}, {ACL_FLOAT8_E5M2, 1},  {ACL_FLOAT8_E8M0, 1},
                 {ACL_INT4, 0},      {ACL_STRING, 0},        {ACL_DT_UNDEFINED, 0}, {(aclDataType)77, 0}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_int_equal(aclDataTypeSize(known[i].dtype), known[i].size);
    }
}

/* More handles than the table starts with, made and freed by several threads in different orders. */
static void *churn(void *argument)
{
    enum { N = 2000 };
    static _Thread_local aclTensor *tensor[N];
    int step = *(int *)argument;
    const int64_t dims[] = {1};
    intptr_t failures = 0;
    for (int i = 0; i < N; i++) {
        tensor[i] = aclCreateTensor(dims, 1, ACL_INT32, NULL, 0, ACL_FORMAT_ND, NULL, 0, NULL);
        failures += tensor[i] == NULL;
    }
    for (int i = 0, at = 0; i < N; i++, at = (at + step) % N) {
        failures += aclDestroyTensor(tensor[at]) != ACLNN_SUCCESS;
    }
    return (void *)failures;
}

static void test_many_handles(void **state)
{
    (void)state;
    int step[] = {1999, 3, 7}; /* none divides 2000 */
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, churn, &step[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *failures = NULL;
        assert_int_equal(pthread_join(thread[i], &failures), 0);
        assert_null(failures);
    }
}

static void *fail_elsewhere(void *argument)
{
    (void)argument;
    (void)aclrtSetDevice(5);
    return (void *)(intptr_t)(strcmp(aclGetRecentErrMsg(), "") == 0);
}

static void test_sentences_are_per_thread(void **state)
{
    (void)state;
    pthread_t thread;
    void *missing = NULL;
    (void)aclGetRecentErrMsg();
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    assert_int_equal(pthread_join(thread, &missing), 0);
    assert_null(missing);
    assert_string_equal(aclGetRecentErrMsg(), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_begin_and_end),
        cmocka_unit_test(test_device_and_context),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_many_handles),
        cmocka_unit_test(test_data_type_sizes),
        cmocka_unit_test(test_sentences_are_per_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
