/*
 * test_plan.c - how work is shared out: every row panel of every chunk has one place, the last chunks are cut by rows where
 * workers would not be done at about the same time, and no bit of a result depends on it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "core/plan.h"
#include "mla/mla.h"

enum { KEYS = 33000, HEADS = 120, D_K = 72, D_V = 56, ROW_PANEL = 16, N_O = HEADS * D_V }; /* 58 chunks of fp32 */

/* One request of KEYS keys. */
typedef struct fixture {
    float *k, q[HEADS * D_K], sink[HEADS];
    mla_problem problem;
} fixture;

static fixture *make_fixture(void)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->k = malloc((size_t)KEYS * D_K * sizeof *f->k);
    assert_non_null(f->k);
    for (int64_t i = 0; i < (int64_t)KEYS * D_K; i++) {
        f->k[i] = sinf((float)(i % 100003) * 0.7f);
    }
    for (int64_t i = 0; i < HEADS * D_K; i++) {
        f->q[i] = cosf((float)i * 0.3f);
    }
    for (int64_t i = 0; i < HEADS; i++) {
        f->sink[i] = (float)i * 0.1f;
    }
    mla_problem *p = &f->problem;
    mla_problem_init(p);
    p->q = mla_tensor_make(f->q, MLA_DTYPE_F32, 4, (int64_t[]){1, 1, HEADS, D_K});
    p->segment[0].k = mla_tensor_make(f->k, MLA_DTYPE_F32, 4, (int64_t[]){1, KEYS, 1, D_K});
    p->sink = mla_tensor_make(f->sink, MLA_DTYPE_F32, 1, (int64_t[]){HEADS});
    p->d_v = D_V;
    p->softmax_scale = 0.2f;
    p->arithmetic = MLA_ARITHMETIC_F32;
    return f;
}

static void drop_fixture(fixture *f)
{
    free(f->k);
    free(f);
}

typedef struct outputs {
    float o[N_O], lse[HEADS], max[HEADS];
} outputs;

static void attach(mla_problem *p, outputs *out)
{
    memset(out, 0xff, sizeof *out);
    p->o = mla_tensor_make(out->o, MLA_DTYPE_F32, 4, (int64_t[]){1, 1, HEADS, D_V});
    p->lse = mla_tensor_make(out->lse, MLA_DTYPE_F32, 3, (int64_t[]){1, 1, HEADS});
    p->max = mla_tensor_make(out->max, MLA_DTYPE_F32, 3, (int64_t[]){1, 1, HEADS});
}

static mla_plan *plan_for(const mla_problem *p, int32_t n_thread)
{
    mla_plan *plan = NULL;
    mla_plan_options options = {.backend = MLA_BACKEND_CPU, .n_thread = n_thread};
    assert_int_equal(mla_plan_build(p, &options, &plan), MLA_STATUS_OK);
    return plan;
}

/* Every slot is written by one item, which computes the rows and the chunk that the fold expects there. */
static void check_places(const mla_plan *plan)
{
    const int64_t split = plan->geometry.split_keys;
    int64_t *row_of = malloc((size_t)plan->n_slot * sizeof *row_of),
            *begin_of = malloc((size_t)plan->n_slot * sizeof *begin_of);
    assert_non_null(row_of);
    assert_non_null(begin_of);
    int64_t n_slot = 0;
    for (int64_t i = 0; i < plan->n_combine; i++) {
        const mla_combine_item *combine = &plan->combine[i];
        for (int64_t x = 0; x < combine->slot_count; x++, n_slot++) {
            row_of[combine->slot_begin + x * combine->slot_stride] = combine->row_begin;
            begin_of[combine->slot_begin + x * combine->slot_stride] = x * split;
        }
    }
    assert_int_equal(n_slot, plan->n_slot);
    for (int64_t i = 0; i < plan->n_item; i++) {
        const mla_work_item *item = &plan->item[i];
        assert_true(item->row_begin < item->row_end && item->row_end <= HEADS);
        assert_int_equal(item->kv_end, item->kv_begin + split < KEYS ? item->kv_begin + split : KEYS);
        for (int64_t row = item->row_begin, slot = item->slot; row < item->row_end;
             row += ROW_PANEL, slot++, n_slot--) {
            assert_int_equal(row, row_of[slot]);
            assert_int_equal(item->kv_begin, begin_of[slot]);
            begin_of[slot] = -1; /* taken */
        }
    }
    assert_int_equal(n_slot, 0);
    free(row_of);
    free(begin_of);
}

/* What the busiest worker does when each takes the next item as soon as it is free, in parts of an equal share of rows times
 * keys alone. */
static double busiest(const mla_plan *plan)
{
    double load[64] = {0}, most = 0;
    assert_in_range(plan->n_worker, 1, 64);
    for (int64_t i = 0; i < plan->n_item; i++) {
        int first = 0;
        for (int w = 1; w < plan->n_worker; w++) {
            first = load[w] < load[first] ? w : first;
        }
        load[first] += (double)plan->item[i].cost;
        most = load[first] > most ? load[first] : most;
    }
    return most * plan->n_worker / ((double)KEYS * HEADS);
}

static void test_the_last_chunks_are_cut_by_rows(void **state)
{
    (void)state;
    fixture *f = make_fixture();
    static outputs alone, out;
    attach(&f->problem, &alone);
    assert_int_equal(mla_attention(&f->problem, &(mla_plan_options){.backend = MLA_BACKEND_CPU, .n_thread = 1}),
                     MLA_STATUS_OK);
    attach(&f->problem, &out);
    static const int32_t n_thread[] = {7, 8, 16};
    for (size_t i = 0; i < sizeof n_thread / sizeof *n_thread; i++) {
        mla_plan *plan = plan_for(&f->problem, n_thread[i]);
        assert_int_equal(plan->n_worker, n_thread[i]);
        assert_true(plan->n_slot > 0);
        check_places(plan);
        int64_t fewest = HEADS, most = 0;
        for (int64_t x = 0; x < plan->n_item; x++) {
            int64_t rows = plan->item[x].row_end - plan->item[x].row_begin;
            fewest = rows < fewest ? rows : fewest;
            most = rows > most ? rows : most;
        }
        assert_true(fewest < most);
        assert_true(busiest(plan) < 1.12); /* of whole chunks: 1.13, 1.14, 1.19 */
        memset(&out, 0xff, sizeof out);
        void *workspace = calloc(mla_plan_workspace_bytes(plan), 1);
        assert_non_null(workspace);
        assert_int_equal(mla_run(plan, &f->problem, workspace, mla_plan_workspace_bytes(plan), NULL), MLA_STATUS_OK);
        assert_memory_equal(&out, &alone, sizeof out);
        free(workspace);
        mla_plan_free(plan);
    }
    drop_fixture(f);
}

/* 96 rows as 64 and 32, 75 as 64 and 11: whole items come out even, and slots, which would be larger than the keys, are
 * not needed. */
static void test_rows_are_halved_from_the_most_a_task_may_have(void **state)
{
    (void)state;
    enum { SEQ = 4, LENGTH = 8192, D = 8 };
    static float q[SEQ * 5 * 32 * D], o[SEQ * 5 * 32 * D], k[SEQ * LENGTH * D];
    static const struct {
        int64_t n_q, group;
        int32_t n_thread;
        bool rounded;
    } cases[] = {{5, 15, 5, false}, {3, 32, 3, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mla_problem p;
        mla_problem_init(&p);
        const int64_t rows[] = {SEQ, cases[i].n_q, cases[i].group, D};
        p.q = mla_tensor_make(q, MLA_DTYPE_BF16, 4, rows);
        p.o = mla_tensor_make(o, MLA_DTYPE_BF16, 4, rows);
        p.segment[0].k = mla_tensor_make(k, MLA_DTYPE_BF16, 4, (int64_t[]){SEQ, LENGTH, 1, D});
        p.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
        p.d_v = D;
        p.softmax_scale = 0.2f;
        p.arithmetic = cases[i].rounded ? MLA_ARITHMETIC_AUTO : MLA_ARITHMETIC_F32;
        p.p_rounding = cases[i].rounded ? MLA_P_ROUND_16BIT : MLA_P_ROUND_NONE;
        p.p_tile = cases[i].rounded ? 128 : 0;
        mla_plan *plan = plan_for(&p, cases[i].n_thread);
        assert_int_equal(plan->n_worker, cases[i].n_thread);
        assert_int_equal(plan->n_slot, 0);
        mla_plan_free(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_last_chunks_are_cut_by_rows),
                                       cmocka_unit_test(test_rows_are_halved_from_the_most_a_task_may_have)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
