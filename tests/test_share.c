/*
 * test_share.c - workers that have nothing left compute chunks of other workers' items, and no bit of the result moves.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep(), threads */
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
#include <time.h>

#include "core/plan.h"
#include "cpu/share.h"
#include "mla/mla.h"

/* ---- the taking of chunks ---------------------------------------------------------------------------------------- */

static void test_chunks_are_taken_from_both_ends(void **state)
{
    (void)state;
    mla_share share[3];
    const mla_work_item item = {.seq = 7};
    mla_share_init(share, 3);
    assert_int_equal(mla_share_take(&share[0]), -1); /* nothing is open */
    mla_share_open(&share[0], &item, 5);
    assert_ptr_equal(share[0].item, &item);
    assert_int_equal(mla_share_take(&share[0]), 4);
    assert_true(mla_share_next(&share[0], 1));
    assert_int_equal(mla_share_take(&share[0]), 3);
    assert_true(mla_share_next(&share[0], 2));
    assert_int_equal(mla_share_take(&share[0]), -1);
    assert_false(mla_share_next(&share[0], 3));
    mla_share_open(&share[0], &item, 1); /* its one chunk is the owner's */
    assert_int_equal(mla_share_take(&share[0]), -1);
    assert_false(mla_share_next(&share[0], 1));
}

static void test_spares_come_back(void **state)
{
    (void)state;
    mla_share share[3];
    mla_share_init(share, 3);
    assert_int_equal(mla_share_spare(&share[2]), 0);
    mla_share_hand_in(&share[2], 0, 0, 4);
    assert_int_equal(mla_share_spare(&share[2]), 1);
    mla_share_hand_in(&share[2], 1, 1, 4); /* the same chunk of another's item */
    assert_int_equal(mla_share_spare(&share[2]), -1);
    assert_int_equal(mla_share_wait(share, 3, 1, 4), 2 * MLA_SPARES + 1);
    assert_int_equal(mla_share_wait(share, 3, 0, 4), 2 * MLA_SPARES);
    mla_share_folded(share, 2 * MLA_SPARES);
    assert_int_equal(mla_share_spare(&share[2]), 0);
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

enum { SEQ = 2, KEYS = 20000, HEADS = 128, D = 128, NUMBERS = SEQ * HEADS * D, PAGE = 4096 };

typedef struct lent_task {
    mla_task task;
    void *data;
    int64_t index;
} lent_task;

static void *run_late(void *argument)
{
    const lent_task *lent = argument;
    nanosleep(&(struct timespec){.tv_nsec = lent->index * 4000000}, NULL);
    lent->task(lent->data, lent->index);
    return NULL;
}

/* Every task on a thread of its own, each 4 ms after the one before. */
static void one_after_the_other(void *context, int64_t n_task, mla_task task, void *data)
{
    (void)context;
    pthread_t thread[8];
    lent_task lent[8];
    assert_in_range(n_task, 1, 8);
    for (int64_t i = 0; i < n_task; i++) {
        lent[i] = (lent_task){task, data, i};
        assert_int_equal(pthread_create(&thread[i], NULL, run_late, &lent[i]), 0);
    }
    for (int64_t i = 0; i < n_task; i++) {
        pthread_join(thread[i], NULL);
    }
}

/* Chunks that the owners of items did not compute themselves; what a run leaves at the end of its workspace. */
static int64_t helped(const mla_plan *plan, const char *workspace, int64_t n_chunk)
{
    const char *end = workspace + plan->workspace_bytes;
    const mla_share *share = (const mla_share *)(const void *)(end - (size_t)plan->n_worker * sizeof(mla_share));
    int64_t others = 0;
    for (int32_t i = 0; i < plan->n_worker; i++) {
        uint64_t left = atomic_load(&share[i].left);
        others += left == 0 ? 0 : n_chunk - (int64_t)(left >> 32);
    }
    return others;
}

static void test_help_moves_no_bit(void **state)
{
    (void)state;
    static float q[NUMBERS], alone[NUMBERS], o[NUMBERS];
    uint16_t *k = malloc((size_t)SEQ * KEYS * D * sizeof *k);
    int32_t length[SEQ] = {KEYS, KEYS};
    assert_non_null(k);
    for (int64_t i = 0; i < (int64_t)SEQ * KEYS * D; i++) { /* bf16, -1 .. 1 */
        float x = sinf((float)i * 0.7f);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        k[i] = (uint16_t)(bits >> 16);
    }
    for (int64_t i = 0; i < NUMBERS; i++) {
        q[i] = cosf((float)i * 0.3f);
    }
    mla_problem p;
    mla_problem_init(&p);
    p.q = mla_tensor_make(q, MLA_DTYPE_F32, 4, (int64_t[]){SEQ, 1, HEADS, D});
    p.segment[0].k = mla_tensor_make(k, MLA_DTYPE_BF16, 4, (int64_t[]){SEQ, KEYS, 1, D});
    p.segment[0].length = mla_tensor_make(length, MLA_DTYPE_I32, 1, (int64_t[]){SEQ});
    p.d_v = D;
    p.softmax_scale = 0.1f;
    p.arithmetic = MLA_ARITHMETIC_F32;
    p.o = mla_tensor_make(alone, MLA_DTYPE_F32, 4, (int64_t[]){SEQ, 1, HEADS, D});
    assert_int_equal(mla_attention(&p, &(mla_plan_options){.backend = MLA_BACKEND_CPU, .n_thread = 1}), MLA_STATUS_OK);

    p.o = mla_tensor_make(o, MLA_DTYPE_F32, 4, (int64_t[]){SEQ, 1, HEADS, D});
    mla_executor executor = {.parallel_for = one_after_the_other, .n_worker = 2};
    mla_plan *plan;
    assert_int_equal(mla_plan_build(&p, &(mla_plan_options){.backend = MLA_BACKEND_CPU, .executor = &executor}, &plan),
                     MLA_STATUS_OK);
    assert_int_equal(plan->n_item, 2);
    assert_int_equal(plan->n_slot, 0);
    int64_t n_chunk = (KEYS + plan->geometry.split_keys - 1) / plan->geometry.split_keys, others = 0;
    size_t bytes = (mla_plan_workspace_bytes(plan) + PAGE - 1) / PAGE * PAGE;
    char *workspace = aligned_alloc(PAGE, bytes); /* the library begins at a multiple of it */
    assert_non_null(workspace);
    for (int run = 0; run < 50 && others == 0; run++) { /* once is enough, unless the machine is busy elsewhere */
        memset(o, 0xff, sizeof o);
        memset(workspace, 0xff, bytes);
        assert_int_equal(mla_run(plan, &p, workspace, bytes, NULL), MLA_STATUS_OK);
        assert_memory_equal(o, alone, sizeof o);
        others = helped(plan, workspace, n_chunk);
    }
    assert_int_not_equal(others, 0);
    free(workspace);
    mla_plan_free(plan);
    free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_are_taken_from_both_ends),
        cmocka_unit_test(test_spares_come_back),
        cmocka_unit_test(test_help_moves_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
