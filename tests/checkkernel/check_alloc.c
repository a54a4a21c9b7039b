/*
 * check_alloc.c - what the library does when memory runs out, and that a run needs none.
 *
 * malloc() and its kin are replaced here for the whole program, on top of the C library's own, so that the n-th call
 * can be made to fail.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checkkernel.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define CAN_REPLACE_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define CAN_REPLACE_MALLOC 0
#endif
#endif
#ifndef CAN_REPLACE_MALLOC
#define CAN_REPLACE_MALLOC 1
#endif

/* Volatile: a compiler knows malloc() and would not expect it to read these. */
static volatile int64_t n_allocation; /* calls counted, while counting */
static volatile int64_t fail_at = -1; /* this one fails, and all after it if fail_rest */
static volatile bool counting, fail_rest;

#if CAN_REPLACE_MALLOC
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);

static bool must_fail(void)
{
    if (!__atomic_load_n(&counting, __ATOMIC_RELAXED)) {
        return false;
    }
    int64_t n = __atomic_fetch_add(&n_allocation, 1, __ATOMIC_RELAXED);
    bool fails = fail_at >= 0 && (n == fail_at || (fail_rest && n > fail_at));
    if (fails) {
        errno = ENOMEM;
    }
    return fails;
}

void *malloc(size_t size)
{
    return must_fail() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return must_fail() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
    return must_fail() ? NULL : __libc_realloc(old, size);
}

void *aligned_alloc(size_t align, size_t size)
{
    return must_fail() ? NULL : __libc_memalign(align, size);
}

int posix_memalign(void **memory, size_t align, size_t size)
{
    *memory = must_fail() ? NULL : __libc_memalign(align, size);
    return *memory ? 0 : ENOMEM;
}
#endif

static void require_replaced(void)
{
    if (!CAN_REPLACE_MALLOC) {
        ck_skip("this build's malloc cannot be replaced");
    }
    /* or nothing below would mean anything */
    n_allocation = 0;
    counting = true;
    void *volatile probe = malloc(16);
    counting = false;
    free(probe);
    CK_REQUIRE(n_allocation == 1);
    /* the OpenMP run time sets itself up in the first call, with allocations of its own */
    ck_config c = ck_config_plain(1, 1, 1, 64, 64, 1);
    mla_problem p;
    ck_make(&c, &p);
    CK_REQUIRE(mla_attention(&p, NULL) == MLA_STATUS_OK);
}

static void arm(int64_t at, bool rest)
{
    n_allocation = 0;
    fail_at = at;
    fail_rest = rest;
    counting = true;
}

static void disarm(void)
{
    counting = false;
    fail_at = -1;
}

static ck_config sample(int i)
{
    ck_config c = ck_config_plain(3, 2, 16, 64, 64, 2000);
    c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
    if (i == 1) {
        c.n_segment = 2;
        c.segment[1].list = CK_LOGICAL;
        c.segment[1].n_entry = 100;
    } else if (i == 2) {
        c.n_seq = 1;
        c.segment[0].length[0] = 20000;
    }
    return c;
}

/* Every allocation of building a plan fails once: the status says so, nothing faults, and the next try works. */
static void check_plan_build(void)
{
    require_replaced();
    for (int i = 0; i < 3; i++) {
        for (int rest = 0; rest < 2; rest++) {
            size_t mark = ck_mark();
            ck_config c = sample(i);
            mla_problem p;
            ck_make(&c, &p);
            mla_plan_options options = {.backend = ck_subject_now->backend, .n_thread = 3};
            int64_t n_failed = 0;
            for (int64_t n = 0;; n++) {
                mla_plan *plan = (mla_plan *)&p; /* must be overwritten */
                arm(n, rest);
                mla_status status = mla_plan_build(&p, &options, &plan);
                int64_t made = n_allocation;
                disarm();
                ck_context("problem %d, allocation %lld", i, (long long)n);
                if (made <= n) { /* it did not get that far */
                    CK_REQUIRE(status == MLA_STATUS_OK && plan != NULL);
                    mla_plan_free(plan);
                    break;
                }
                n_failed++;
                if (status == MLA_STATUS_OK) {
                    /* the C library's qsort() does without the memory it did not get: the plan must be the same then */
                    mla_plan_info info, expected;
                    mla_plan *sound = NULL;
                    CK_REQUIRE(mla_plan_build(&p, &options, &sound) == MLA_STATUS_OK);
                    CK_REQUIRE(mla_plan_describe(plan, &info) == MLA_STATUS_OK);
                    CK_REQUIRE(mla_plan_describe(sound, &expected) == MLA_STATUS_OK);
                    CK_REQUIRE(info.n_item == expected.n_item && info.n_slot == expected.n_slot);
                    CK_REQUIRE(info.workspace_bytes == expected.workspace_bytes);
                    size_t bytes = mla_plan_workspace_bytes(plan);
                    void *workspace = malloc(bytes);
                    CK_REQUIRE(mla_run(plan, &p, workspace, bytes, NULL) == MLA_STATUS_OK);
                    ck_compare(&p, false, CK_WORK);
                    free(workspace);
                    mla_plan_free(sound);
                    mla_plan_free(plan);
                    continue;
                }
                if (status != MLA_STATUS_OUT_OF_MEMORY) {
                    ck_fail("%s, expected MLA_STATUS_OUT_OF_MEMORY", mla_status_name(status));
                }
                CK_REQUIRE(plan == NULL && strlen(mla_last_error()) > 0);
            }
            CK_REQUIRE(n_failed > 0);
            ck_release(mark);
        }
    }
}

/* A lent executor that allocates nothing, so that whatever is counted is the library's. */
static void run_in_turn(void *context, int64_t n_task, mla_task task, void *data)
{
    (void)context;
    for (int64_t i = 0; i < n_task; i++) {
        task(data, i);
    }
}

static void check_one_shot(void)
{
    require_replaced();
    for (int i = 0; i < 3; i++) {
        size_t mark = ck_mark();
        ck_config c = sample(i);
        mla_problem p;
        ck_make(&c, &p);
        mla_executor executor = {run_in_turn, NULL, 1};
        mla_plan_options options = {.backend = ck_subject_now->backend, .executor = &executor};
        int64_t n_failed = 0;
        for (int64_t n = 0;; n++) {
            arm(n, false);
            mla_status status = mla_attention(&p, &options);
            int64_t made = n_allocation;
            disarm();
            ck_context("problem %d, allocation %lld", i, (long long)n);
            if (made <= n) {
                CK_REQUIRE(status == MLA_STATUS_OK);
                break;
            }
            n_failed++;
            if (status != MLA_STATUS_OUT_OF_MEMORY) {
                ck_fail("%s, expected MLA_STATUS_OUT_OF_MEMORY", mla_status_name(status));
            }
            for (int64_t x = 0; x < p.o.dim[0] * p.o.stride[0]; x++) {
                CK_REQUIRE(ck_is_untouched(p.o.data, p.o.dtype, x));
            }
        }
        CK_REQUIRE(n_failed > 0);
        ck_context("problem %d", i);
        ck_compare(&p, false, CK_WORK);
        ck_release(mark);
    }
}

static void check_run(void)
{
    require_replaced();
    for (int i = 0; i < 3; i++) {
        for (int32_t workers = 1; workers <= 4; workers += 3) {
            size_t mark = ck_mark();
            ck_config c = sample(i);
            mla_problem p;
            ck_make(&c, &p);
            mla_executor executor = {run_in_turn, NULL, workers};
            mla_plan_options options = {.backend = ck_subject_now->backend, .executor = &executor};
            mla_plan *plan = NULL;
            CK_REQUIRE(mla_plan_build(&p, &options, &plan) == MLA_STATUS_OK);
            size_t bytes = mla_plan_workspace_bytes(plan);
            void *workspace = ck_buffer("workspace", bytes);
            arm(0, true);
            mla_status status = mla_run(plan, &p, workspace, bytes, NULL);
            int64_t made = n_allocation;
            disarm();
            if (made > 0 || status != MLA_STATUS_OK) {
                ck_fail("a run allocated %lld times: %s", (long long)made, mla_status_name(status));
            }
            ck_compare(&p, false, CK_WORK);
            mla_plan_free(plan);
            ck_release(mark);
        }
    }
}

const ck_test ck_alloc_tests[] = {
    {.name = "alloc/plan_build", .run = check_plan_build, .host = true, .once = true, .library = true},
    {.name = "alloc/one_shot", .run = check_one_shot, .host = true, .once = true, .library = true},
    {.name = "alloc/run", .run = check_run, .host = true, .library = true},
    {0},
};
