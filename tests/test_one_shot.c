/*
 * test_one_shot.c - mla_attention() keeps its workspace for the next call: calls of all sizes, one after the other and from
 * many threads at once, give the bits of mla_run() in a workspace of its own.
 */
#define _POSIX_C_SOURCE 200809L /* threads, fork() */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mla/mla.h"

enum { N_SIZE = 5, N_CALLER = 6, N_CALL = 60, HEADS = 32, D = 64, NUMBERS = HEADS * D, LONGEST = 4000 };

static const int64_t n_key[N_SIZE] = {1, LONGEST, 100, 577, 1153}; /* with 1 to 3 threads: workspaces of many sizes */
static float q[NUMBERS], k[LONGEST * D], wanted[N_SIZE][NUMBERS];

static mla_problem problem_of(int size, float *o)
{
    mla_problem p;
    mla_problem_init(&p);
    p.q = mla_tensor_make(q, MLA_DTYPE_F32, 4, (int64_t[]){1, 1, HEADS, D});
    p.segment[0].k = mla_tensor_make(k, MLA_DTYPE_F32, 4, (int64_t[]){1, n_key[size], 1, D});
    p.d_v = D;
    p.softmax_scale = 0.2f;
    p.o = mla_tensor_make(o, MLA_DTYPE_F32, 4, (int64_t[]){1, 1, HEADS, D});
    return p;
}

static int make_problems(void **state)
{
    (void)state;
    for (int64_t i = 0; i < LONGEST * D; i++) {
        k[i] = sinf((float)i * 0.7f);
        q[i % NUMBERS] = cosf((float)i * 0.3f);
    }
    for (int size = 0; size < N_SIZE; size++) {
        mla_problem p = problem_of(size, wanted[size]);
        mla_plan *plan;
        if (mla_plan_build(&p, &(mla_plan_options){.n_thread = 1}, &plan) != MLA_STATUS_OK) {
            return -1;
        }
        size_t bytes = mla_plan_workspace_bytes(plan);
        void *workspace = malloc(bytes);
        bool good = workspace != NULL && mla_run(plan, &p, workspace, bytes, NULL) == MLA_STATUS_OK;
        free(workspace);
        mla_plan_free(plan);
        if (!good) {
            return -1;
        }
    }
    return 0;
}

/* Calls of sizes in an order of the caller's own; how many went wrong. cmocka's assertions are for the main thread. */
static intptr_t call_often(intptr_t caller, int n_thread)
{
    intptr_t bad = 0;
    uint32_t random = (uint32_t)caller;
    for (int i = 0; i < N_CALL; i++) {
        float o[NUMBERS];
        random = random * 1664525u + 1013904223u;
        int size = (int)((random >> 16) % N_SIZE);
        mla_problem p = problem_of(size, o);
        memset(o, 0xff, sizeof o);
        bad +=
            mla_attention(&p, &(mla_plan_options){.n_thread = n_thread > 0 ? n_thread : 1 + i % 3}) != MLA_STATUS_OK ||
            memcmp(o, wanted[size], sizeof o) != 0;
    }
    return bad;
}

static void test_one_call_after_the_other(void **state)
{
    (void)state;
    assert_int_equal(call_often(1, 0), 0);
}

static void *caller(void *number)
{
    return (void *)call_often((intptr_t)number, 1);
}

static void test_callers_at_once(void **state)
{
    (void)state;
    pthread_t thread[N_CALLER];
    for (intptr_t i = 0; i < N_CALLER; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, caller, (void *)(i + 2)), 0);
    }
    for (int i = 0; i < N_CALLER; i++) {
        void *bad;
        assert_int_equal(pthread_join(thread[i], &bad), 0);
        assert_int_equal((intptr_t)bad, 0);
    }
}

/* A child has a copy of what its parent keeps. */
static void test_child_of_a_caller(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(call_often(9, 0) != 0);
    }
    assert_int_equal(call_often(10, 1), 0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_call_after_the_other),
        cmocka_unit_test(test_callers_at_once),
        cmocka_unit_test(test_child_of_a_caller),
    };
    return cmocka_run_group_tests(tests, make_problems, NULL);
}
