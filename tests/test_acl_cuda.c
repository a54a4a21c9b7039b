/*
 * test_acl_cuda.c - the acl runtime with MLA_DEVICE=cuda: memory, copies, streams, devices, and the sentences for what a
 * machine may lack. Each test is a process of its own, because the runtime looks at its environment once.
 *
 * On the emulated driver (tests/emulated_cuda), whose device memory no host can touch, everything runs; what only an
 * emulation can play is skipped on a GPU.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aclnn_native.h"
#include "mla/atb_mla.h"
#include "mla/mla.h"
#include "mla/mla_gpu.h"

/* ---- a process per test ------------------------------------------------------------------------------------------ */

/* What a child says: "" for all well. */
static char said[600];

#define REQUIRE(condition)                                                                                          \
    do {                                                                                                            \
        if (!(condition)) {                                                                                         \
            snprintf(said, sizeof said, "line %d: %s (%.200s; %.200s)", __LINE__, #condition, aclGetRecentErrMsg(), \
                     mla_last_error());                                                                             \
            return;                                                                                                 \
        }                                                                                                           \
    } while (0)

#define REFUSED(code, call, words) REQUIRE((call) == (code) && strstr(aclGetRecentErrMsg(), words) != NULL)

/* Runs body in a child whose environment has `setting`, "NAME=value ..." . */
static void in_process(const char *setting, void (*body)(void))
{
    int pipe_ends[2];
    assert_int_equal(pipe(pipe_ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char copy[200];
        snprintf(copy, sizeof copy, "%s", setting);
        for (char *at = copy, *word; (word = strtok_r(at, " ", &at)) != NULL;) {
            char *equals = strchr(word, '=');
            *equals = '\0';
            setenv(word, equals + 1, 1);
        }
        said[0] = '\0';
        body();
        ssize_t written = write(pipe_ends[1], said, sizeof said);
        _exit(written == (ssize_t)sizeof said ? 0 : 1);
    }
    close(pipe_ends[1]);
    memset(said, 0, sizeof said);
    size_t got = 0;
    for (ssize_t n; got < sizeof said && (n = read(pipe_ends[0], said + got, sizeof said - got)) > 0;) {
        got += (size_t)n;
    }
    close(pipe_ends[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (got != sizeof said || status != 0) {
        fail_msg("with %s the process ended with status 0x%x", setting, (unsigned)status);
    }
    if (said[0] != '\0') {
        fail_msg("with %s: %s", setting, said);
    }
}

/* Kernels for one generation are named on that one alone. */
static void variants(void)
{
    mla_gpu_info info;
    REQUIRE(mla_gpu_list(&info, 1) == 1);
    REQUIRE(strstr(info.variants, "generic") != NULL);
    REQUIRE((strstr(info.variants, "_sm90") != NULL) == (info.compute_capability == 90));
}

/* What is there? Asked in a child, because fork() and a driver do not mix. */
static void describe(void)
{
    mla_gpu_info info;
    if (mla_gpu_list(&info, 1) == 0) {
        snprintf(said, sizeof said, "%s", mla_last_error());
    } else if (strcmp(info.name, "emulated GPU") != 0) {
        snprintf(said, sizeof said, "a GPU");
    }
}

static void need(bool emulated)
{
    int pipe_ends[2];
    assert_int_equal(pipe(pipe_ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        describe();
        _exit(write(pipe_ends[1], said, sizeof said) == (ssize_t)sizeof said ? 0 : 1);
    }
    assert_int_equal(read(pipe_ends[0], said, sizeof said), (ssize_t)sizeof said);
    waitpid(child, NULL, 0);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    bool real = strcmp(said, "a GPU") == 0;
    if (real && emulated) {
        printf("# what only an emulated driver can play\n");
        skip();
    }
    if (said[0] != '\0' && !real) {
        printf("# %s\n", said);
        skip();
    }
}

/* ---- one operator call on a stream ------------------------------------------------------------------------------- */

/* Runs the aclnn operator; the stream's error, or ACL_SUCCESS once the results are those of the CPU. */
static aclError attend(aclrtStream stream, bool judge)
{
    static call c;
    tensor_data twin[N_TENSOR];
    uint64_t size;
    aclOpExecutor *executor = NULL;
    mla_plan_options on_cpu = {.n_thread = 1};
    mla_quant_sparse_flash_mla_args args;
    open_call(&c, SWA, BSND_BSND);
    for (int i = 0; i < N_TENSOR; i++) {
        size_t bytes = c.t[i].absent ? 0 : span_of(&c.t[i]);
        twin[i] = c.t[i];
        if (bytes > 0 && (aclrtMalloc(&twin[i].data, bytes, ACL_MEM_MALLOC_HUGE_FIRST) != ACL_SUCCESS ||
                          aclrtMemcpyAsync(twin[i].data, bytes, c.t[i].data, bytes, ACL_MEMCPY_HOST_TO_DEVICE,
                                           stream) != ACL_SUCCESS)) {
            return -1;
        }
    }
    if (first_phase_of(&c, twin, &size, &executor) != ACLNN_SUCCESS ||
        aclnnQuantSparseFlashMla(NULL, 0, executor, stream) != ACLNN_SUCCESS) {
        return -2;
    }
    aclError error = aclrtSynchronizeStream(stream);
    if (error != ACL_SUCCESS || !judge) {
        return error;
    }
    static uint16_t got[T1 * N1 * D];
    if (aclrtMemcpy(got, sizeof got, twin[OUT].data, sizeof got, ACL_MEMCPY_DEVICE_TO_HOST) != ACL_SUCCESS) {
        return -3;
    }
    native_args(&args, &c);
    if (mla_quant_sparse_flash_mla(&args, &on_cpu) != MLA_STATUS_OK) {
        return -4;
    }
    int differing = 0;
    for (int i = 0; i < T1 * N1 * D; i++) { /* a step of HiFloat8's rounding may fall elsewhere */
        differing += abs((int)got[i] - (int)c.out[i]) > 1;
    }
    return differing < T1 * N1 * D / 100 ? ACL_SUCCESS : -5;
}

/* ---- words and machines ------------------------------------------------------------------------------------------ */

static void unknown_word(void)
{
    uint32_t count = 7;
    void *memory = &count;
    aclrtStream stream = NULL;
    const char *words = "MLA_DEVICE = \"tpu\" must be cpu or cuda";
    REFUSED(ACL_ERROR_INVALID_PARAM, aclInit(NULL), words);
    REFUSED(ACL_ERROR_INVALID_PARAM, aclrtGetDeviceCount(&count), words);
    REFUSED(ACL_ERROR_INVALID_PARAM, aclrtSetDevice(0), words);
    REFUSED(ACL_ERROR_INVALID_PARAM, aclrtCreateStream(&stream), words);
    REFUSED(ACL_ERROR_INVALID_PARAM, aclrtSynchronizeStream(NULL), words);
    REFUSED(ACL_ERROR_INVALID_PARAM, aclrtSynchronizeDevice(), words);
    REFUSED(ACL_ERROR_INVALID_PARAM, aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST), words);
    REQUIRE(memory == NULL && stream == NULL && count == 0);
}

#define LETTERS_60 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01234567"

/* One that begins like a known word and is too long to be kept is not that word, and the sentence is whole. */
static void long_word(void)
{
    REFUSED(ACL_ERROR_INVALID_PARAM, aclInit(NULL), "MLA_DEVICE = \"" LETTERS_60 "...\" must be cpu or cuda");
}

static void cpu_by_name(void)
{
    uint32_t count = 0;
    REQUIRE(aclrtGetDeviceCount(&count) == ACL_SUCCESS && count == 1);
    REQUIRE(attend(NULL, true) == ACL_SUCCESS);
}

static void test_words(void **state)
{
    (void)state;
    in_process("MLA_DEVICE=tpu", unknown_word);
    in_process("MLA_DEVICE=" LETTERS_60 LETTERS_60, long_word);
    in_process("MLA_DEVICE=cpu", cpu_by_name);
    in_process("MLA_DEVICE=", cpu_by_name);
}

static void no_gpu(void)
{
    void *memory = NULL;
    aclrtStream stream = NULL;
    uint32_t count = 7;
    const char *words = "CUDA needs an NVIDIA GPU, and the driver finds none";
    REQUIRE(aclInit(NULL) == ACL_SUCCESS); /* it is told when it wants something of the device */
    REFUSED(ACL_ERROR_FAILURE, aclrtGetDeviceCount(&count), words);
    REQUIRE(count == 0);
    REFUSED(ACL_ERROR_FAILURE, aclrtSetDevice(0), words);
    REFUSED(ACL_ERROR_FAILURE, aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST), words);
    REFUSED(ACL_ERROR_FAILURE, aclrtMallocHost(&memory, 8), words);
    REFUSED(ACL_ERROR_FAILURE, aclrtCreateStream(&stream), words);
    REFUSED(ACL_ERROR_FAILURE, aclrtSynchronizeDevice(), words);
}

static void old_driver(void)
{
    REQUIRE(aclrtSetDevice(0) == ACL_SUCCESS);
    REFUSED(ACL_ERROR_RT_AICORE_EXCEPTION, attend(NULL, false),
            "the NVIDIA driver is too old: it speaks CUDA 12.8, and the kernels are built with CUDA 13.");
}

static void old_gpu(void)
{
    REFUSED(ACL_ERROR_RT_AICORE_EXCEPTION, attend(NULL, false),
            "GPU 0 (emulated GPU, compute capability 6.1) cannot run the kernels");
}

static void attends(void)
{
    REQUIRE(attend(NULL, true) == ACL_SUCCESS);
}

static void test_machines(void **state)
{
    (void)state;
    need(true);
    in_process("MLA_DEVICE=cuda EMULATED_GPUS=0", no_gpu);
    in_process("MLA_DEVICE=cuda EMULATED_DRIVER=12080", old_driver);
    in_process("MLA_DEVICE=cuda EMULATED_CAPABILITY=61", old_gpu);
    static const int capabilities[] = {75, 80, 86, 89, 90, 100, 120}; /* by PTX, but for the code for 90 */
    for (size_t i = 0; i < sizeof capabilities / sizeof capabilities[0]; i++) {
        char setting[60];
        snprintf(setting, sizeof setting, "MLA_DEVICE=cuda EMULATED_CAPABILITY=%d", capabilities[i]);
        in_process(setting, attends);
        in_process(setting, variants);
    }
}

/* ---- memory and copies ------------------------------------------------------------------------------------------- */

static void memory_and_copies(void)
{
    enum { N = 100000 };
    unsigned char *host = malloc(N), *pinned = NULL;
    void *a = NULL, *b = NULL;
    aclrtStream stream = NULL;
    REQUIRE(host != NULL && aclrtCreateStream(&stream) == ACL_SUCCESS);
    REQUIRE(aclrtMalloc(&a, N, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS);
    REQUIRE(aclrtMalloc(&b, N, ACL_MEM_MALLOC_NORMAL_ONLY) == ACL_SUCCESS);
    REQUIRE(aclrtMallocHost((void **)&pinned, N) == ACL_SUCCESS);
    REQUIRE((uintptr_t)a % 16 == 0 && mla_gpu_owns(a) && mla_gpu_owns((char *)b + N - 1));
    REQUIRE(!mla_gpu_owns(host) && !mla_gpu_owns(pinned) && !mla_gpu_owns(NULL));
    memset(host, 1, N);
    REQUIRE(aclrtMemcpy(host, N, a, N, ACL_MEMCPY_DEVICE_TO_HOST) == ACL_SUCCESS);
    for (int i = 0; i < N; i++) { /* both kinds begin as zeros */
        REQUIRE(host[i] == 0 && pinned[i] == 0);
        host[i] = (unsigned char)(i * 7);
    }
    /* there, across and back, sync and async, through pinned and other memory */
    REQUIRE(aclrtMemcpy(a, N, host, N, ACL_MEMCPY_HOST_TO_DEVICE) == ACL_SUCCESS);
    REQUIRE(aclrtMemcpyAsync(b, N, a, N, ACL_MEMCPY_DEVICE_TO_DEVICE, stream) == ACL_SUCCESS);
    REQUIRE(aclrtMemcpyAsync(pinned, N, b, N, ACL_MEMCPY_DEVICE_TO_HOST, stream) == ACL_SUCCESS);
    REQUIRE(aclrtSynchronizeStream(stream) == ACL_SUCCESS);
    REQUIRE(memcmp(host, pinned, N) == 0);
    REQUIRE(aclrtMemset(a, N, 0x141, N - 1) == ACL_SUCCESS);
    REQUIRE(aclrtMemcpy(pinned, N, a, N, ACL_MEMCPY_DEFAULT) == ACL_SUCCESS);
    REQUIRE(pinned[0] == 'A' && pinned[N - 2] == 'A' && pinned[N - 1] == host[N - 1]);
    REQUIRE(aclrtMemcpyAsync((char *)a + 3, N - 3, host, 5, ACL_MEMCPY_HOST_TO_DEVICE, stream) == ACL_SUCCESS);
    memset(host, 9, 5); /* memory that is not pinned is free again at once */
    REQUIRE(aclrtSynchronizeDevice() == ACL_SUCCESS);
    REQUIRE(aclrtMemcpy(pinned, 10, a, 10, ACL_MEMCPY_DEVICE_TO_HOST) == ACL_SUCCESS);
    for (int i = 0; i < 10; i++) {
        REQUIRE(pinned[i] == (i < 3 || i > 7 ? 'A' : (i - 3) * 7));
    }
    REQUIRE(aclrtMemcpy(pinned + 20, N - 20, pinned, 10, ACL_MEMCPY_HOST_TO_HOST) == ACL_SUCCESS);
    REQUIRE(memcmp(pinned, pinned + 20, 10) == 0);
    REQUIRE(aclrtMemcpy(NULL, 0, NULL, 0, ACL_MEMCPY_DEFAULT) == ACL_SUCCESS);
    REQUIRE(aclrtFreeHost(a) == ACL_ERROR_INVALID_PARAM && aclrtFree(pinned) == ACL_ERROR_INVALID_PARAM);
    REQUIRE(aclrtFree(a) == ACL_SUCCESS && aclrtFree(b) == ACL_SUCCESS && aclrtFreeHost(pinned) == ACL_SUCCESS);
    REQUIRE(aclrtFree(a) == ACL_ERROR_INVALID_PARAM);
    REQUIRE(aclrtMalloc(&a, (size_t)1 << 60, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_ERROR_RT_MEMORY_ALLOCATION && a == NULL);
    REQUIRE(aclrtDestroyStream(stream) == ACL_SUCCESS);
    free(host);
}

static void test_memory(void **state)
{
    (void)state;
    need(false);
    in_process("MLA_DEVICE=cuda", memory_and_copies);
}

/* ---- streams and devices ----------------------------------------------------------------------------------------- */

static void streams(void)
{
    aclrtStream stream[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        REQUIRE(aclrtCreateStream(&stream[i]) == ACL_SUCCESS);
        REQUIRE(attend(stream[i], true) == ACL_SUCCESS);
    }
    REQUIRE(attend(NULL, true) == ACL_SUCCESS);
    REQUIRE(aclrtDestroyStream(stream[0]) == ACL_SUCCESS);
    REQUIRE(aclrtSynchronizeStream(stream[0]) == ACL_ERROR_INVALID_PARAM);
    REQUIRE(attend(stream[1], true) == ACL_SUCCESS);
    REQUIRE(aclrtDestroyStream(stream[1]) == ACL_SUCCESS);
}

static void two_devices(void)
{
    uint32_t count = 0;
    int32_t device = -1;
    aclrtContext context[2];
    aclrtStream stream = NULL;
    REQUIRE(aclrtGetDeviceCount(&count) == ACL_SUCCESS && count == 2);
    REFUSED(ACL_ERROR_RT_INVALID_DEVICEID, aclrtSetDevice(2), "deviceId = 2 must be between 0 and 1");
    REFUSED(ACL_ERROR_RT_INVALID_DEVICEID, aclrtSetDevice(-1), "deviceId = -1 must be between 0 and 1");
    REQUIRE(aclrtSetDevice(1) == ACL_SUCCESS && aclrtGetDevice(&device) == ACL_SUCCESS && device == 1);
    REQUIRE(aclrtCreateStream(&stream) == ACL_SUCCESS);
    REQUIRE(attend(stream, true) == ACL_SUCCESS && attend(NULL, true) == ACL_SUCCESS);
    REQUIRE(aclrtSetDevice(0) == ACL_SUCCESS);
    REQUIRE(attend(NULL, true) == ACL_SUCCESS);
    /* tensors of device 0 on a stream of device 1: the stream's error, and gone once it was reported */
    REFUSED(ACL_ERROR_FAILURE, attend(stream, false), "invalid resource handle");
    REQUIRE(aclrtSynchronizeStream(stream) == ACL_SUCCESS);
    REQUIRE(aclrtCreateContext(&context[1], 1) == ACL_SUCCESS && aclrtCreateContext(&context[0], 0) == ACL_SUCCESS);
    REQUIRE(aclrtGetDevice(&device) == ACL_SUCCESS && device == 0);
    REQUIRE(aclrtSetCurrentContext(context[1]) == ACL_SUCCESS);
    REQUIRE(aclrtGetDevice(&device) == ACL_SUCCESS && device == 1);
    REQUIRE(attend(stream, true) == ACL_SUCCESS);
}

static void test_streams(void **state)
{
    (void)state;
    need(false);
    in_process("MLA_DEVICE=cuda", streams);
}

static void test_two_devices(void **state)
{
    (void)state;
    need(true);
    in_process("MLA_DEVICE=cuda EMULATED_GPUS=2", two_devices);
}

/* ---- lengths that ATB reads before anything runs ----------------------------------------------------------------- */

static void lengths_on_the_gpu(void)
{
    void *memory = NULL;
    int32_t lens = 3;
    REQUIRE(mla_gpu_allocate(0, 1 << 20, &memory) == MLA_STATUS_OK);
    mla_atb_tensor t[7];
    static const int64_t dims[7][4] = {{1, 8, 512}, {1, 8, 64}, {1, 128, 1, 512}, {1, 128, 1, 64},
                                       {1, 1},      {1},        {1, 8, 512}};
    static const int32_t rank[7] = {3, 3, 4, 4, 2, 1, 3};
    for (int i = 0; i < 7; i++) {
        t[i] = mla_atb_tensor_make(memory, i == 4 || i == 5 ? MLA_ATB_INT32 : MLA_ATB_FLOAT16, MLA_ATB_FORMAT_ND,
                                   rank[i], dims[i]);
        t[i].device.type = MLA_DEVICE_CUDA;
    }
    t[6].data = (char *)memory + (512 << 10);
    mla_atb_decode_args args = {.struct_size = sizeof args,
                                .q_nope = &t[0],
                                .q_rope = &t[1],
                                .ct_kv = &t[2],
                                .k_rope = &t[3],
                                .block_tables = &t[4],
                                .context_lens = &t[5],
                                .atten_out = &t[6]};
    mla_atb_param_init(&args.param);
    args.param.head_num = 8;
    args.param.kv_head_num = 1;
    args.param.cache_mode = 1;
    mla_atb_op *op = NULL;
    uint64_t bytes = 0;
    REQUIRE(mla_atb_decode_setup(&op, &args, &bytes) == MLA_ATB_ERROR_INVALID_PARAM);
    REQUIRE(strstr(mla_last_error(), "contextLens is in device memory and must be in host memory") != NULL);
    t[5].data = &lens;
    REQUIRE(mla_atb_decode_setup(&op, &args, &bytes) == MLA_ATB_NO_ERROR && bytes % 512 == 0);
    mla_atb_op_destroy(op);
    REQUIRE(mla_gpu_free(0, memory) == MLA_STATUS_OK);
}

static void test_lengths_on_the_gpu(void **state)
{
    (void)state;
    need(false);
    in_process("MLA_DEVICE=cuda", lengths_on_the_gpu);
}

/* ---- MLA_DEBUG=1 ------------------------------------------------------------------------------------------------- */

enum { BAD_LENGTH, BAD_PAGE, BAD_BEGIN, BAD_ENTRY, LONG_LIST, N_BAD };

/* The operator with one bad number in device memory; ACL_SUCCESS or the stream's error. */
static aclError attend_with(int bad)
{
    static call c;
    tensor_data twin[N_TENSOR];
    uint64_t size;
    aclOpExecutor *executor = NULL;
    open_call(&c, FULL_SPARSE, TND_PA);
    switch (bad) {
    case BAD_LENGTH: c.used_ori[1] = 13; break;
    case BAD_PAGE: c.cmp_table[1] = 8; break;
    case BAD_BEGIN: c.cu_q[1] = 7; break;
    case BAD_ENTRY: c.ori_list[K1] = 12; break;
    case LONG_LIST: c.ori_topk[0] = 99; break; /* counts as all entries: legal */
    default: break;
    }
    place(c.t, twin, N_TENSOR);
    if (first_phase_of(&c, twin, &size, &executor) != ACLNN_SUCCESS ||
        aclnnQuantSparseFlashMla(NULL, 0, executor, NULL) != ACLNN_SUCCESS) {
        return -1;
    }
    return aclrtSynchronizeStream(NULL);
}

static void debugging(void)
{
    static const char *const words[N_BAD] = {
        [BAD_LENGTH] = "seqused_ori_kv[1] = 13 exceeds the page table's 3 pages * 4 tokens",
        [BAD_PAGE] = "cmp_block_table[0][1] = 8 is not one of the 8 pages of cmp_kv",
        [BAD_BEGIN] = "cu_seqlens_q[1] = 7 exceeds the 6 tokens of q",
        [BAD_ENTRY] = "ori_sparse_indices entry 0 of query token 1 of sequence 0 = 12 is not one of the 12 keys",
    };
    for (int bad = 0; bad < N_BAD; bad++) {
        if (words[bad] != NULL) {
            REFUSED(ACL_ERROR_RT_AICORE_EXCEPTION, attend_with(bad), words[bad]);
        } else {
            REQUIRE(attend_with(bad) == ACL_SUCCESS);
        }
    }
    REQUIRE(attend(NULL, true) == ACL_SUCCESS);
}

static void not_debugging(void)
{
    for (int bad = 0; bad < N_BAD; bad++) {
        REQUIRE(attend_with(bad) == ACL_SUCCESS); /* keys behind bad numbers are invisible */
    }
}

static void debugging_by_another_word(void)
{
    REFUSED(ACL_ERROR_RT_AICORE_EXCEPTION, attend_with(N_BAD), "MLA_DEBUG = \"off\" must be 0 or 1");
}

static void test_debug(void **state)
{
    (void)state;
    need(false);
    in_process("MLA_DEVICE=cuda MLA_DEBUG=1", debugging);
    in_process("MLA_DEVICE=cuda MLA_DEBUG=0", not_debugging);
    in_process("MLA_DEVICE=cuda MLA_DEBUG=off", debugging_by_another_word);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),   cmocka_unit_test(test_machines),    cmocka_unit_test(test_memory),
        cmocka_unit_test(test_streams), cmocka_unit_test(test_two_devices), cmocka_unit_test(test_lengths_on_the_gpu),
        cmocka_unit_test(test_debug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
