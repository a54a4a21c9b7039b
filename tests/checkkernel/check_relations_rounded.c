/*
 * check_relations_rounded.c - rounded probabilities depend on all keys before them, and yet their bits on nothing but the
 * row: not on threads, on how keys and rows are shared out, on pages or on other sequences.
 */
#include <stdio.h>

#include "checkkernel.h"
#include "core/plan.h"

enum { N_VARIED = 6 };

static void set_lengths(ck_segment *s, int64_t n, const int64_t *length)
{
    s->n_length = n;
    for (int64_t i = 0; i < n; i++) {
        s->length[i] = length[i];
    }
}

/* Long enough for several chunks a row, in every rounding. */
static ck_config varied(int i)
{
    ck_config c = ck_config_plain(1, 1, 16, 64, 64, 5000);
    ck_segment *s = c.segment;
    c.inputs = CK_RISING; /* the maximum changes from tile to tile, from chunk to chunk */
    switch (i) {
    case 0: /* one long sequence */
        c.p_rounding = MLA_P_ROUND_HIF8;
        c.p_tile = 128;
        c.q_dtype = s->dtype = MLA_DTYPE_HIF8;
        c.sink = CK_SINK_RANDOM;
        break;
    case 1: /* a window and compressed rows, their first keys in the middle of blocks and pages */
        c = ck_config_plain(3, 2, 20, 64, 48, 0);
        c.n_segment = 2;
        set_lengths(&c.segment[0], 3, (int64_t[]){900, 0, 77});
        set_lengths(&c.segment[1], 3, (int64_t[]){2500, 1300, 0});
        s->visible.rule = MLA_VISIBLE_WINDOW;
        s->visible.left = 300;
        s->visible.right = 0;
        c.segment[1].visible.rule = MLA_VISIBLE_COMPRESSED;
        c.segment[1].visible.ratio = 4;
        c.p_rounding = MLA_P_ROUND_HIF8;
        c.p_tile = 100;
        c.q_dtype = s->dtype = c.segment[1].dtype = MLA_DTYPE_HIF8;
        c.sink = CK_SINK_MIXED;
        break;
    case 2: /* lists with entries that name nothing: chunks are counted without them */
        c = ck_config_plain(2, 2, 9, 64, 64, 3000);
        s->list = CK_LOGICAL;
        s->n_entry = 2000;
        s->list_length = CK_PER_TOKEN;
        c.p_rounding = MLA_P_ROUND_16BIT;
        c.p_tile = 128;
        break;
    case 3: /* integers, tiles of several blocks, more rows than a task */
        c = ck_config_plain(2, 1, 140, 64, 64, 0);
        set_lengths(s, 2, (int64_t[]){2600, 513});
        c.d_rope = 32;
        c.qk_descale = c.pv_descale = true;
        c.q_dtype = s->dtype = MLA_DTYPE_I8;
        c.p_rounding = MLA_P_ROUND_INT8;
        c.p_tile = 512;
        break;
    case 4: /* a prefill, whose tokens share tasks: all begin at the first key */
        c = ck_config_plain(2, 40, 2, 64, 64, 0);
        set_lengths(s, 2, (int64_t[]){1300, 600});
        s->visible.rule = MLA_VISIBLE_CAUSAL;
        c.p_rounding = MLA_P_ROUND_16BIT;
        c.p_tile = 37;
        break;
    default: /* a mask, values of their own, few rows */
        c = ck_config_plain(3, 2, 3, 64, 40, 0);
        set_lengths(s, 3, (int64_t[]){1800, 70, 700});
        s->mask = CK_MASK_HOLES;
        s->v_apart = true;
        c.p_rounding = MLA_P_ROUND_16BIT;
        c.p_tile = 200;
        break;
    }
    return c;
}

/* A lent executor that runs tasks one by one, from the last to the first. */
static void run_backwards(void *context, int64_t n_task, mla_task task, void *data)
{
    (void)context;
    while (n_task-- > 0) {
        task(data, n_task);
    }
}

static int64_t slots_of(const mla_problem *problem, int32_t n_thread)
{
    mla_plan *plan;
    mla_plan_info info;
    CK_REQUIRE(mla_plan_build(problem, &(mla_plan_options){.n_thread = n_thread}, &plan) == MLA_STATUS_OK);
    CK_REQUIRE(mla_plan_describe(plan, &info) == MLA_STATUS_OK);
    mla_plan_free(plan);
    return info.n_slot;
}

/* One worker computes whole rows; many share out chunks, and then heads too. */
static void check_split(void)
{
    static const int32_t threads[] = {2, 3, 5, 7, 16, 64};
    for (int i = 0; i < N_VARIED; i++) {
        size_t mark = ck_mark();
        ck_config c = varied(i);
        mla_problem whole;
        ck_context("problem %d", i);
        ck_make(&c, &whole);
        CK_REQUIRE(slots_of(&whole, 1) == 0);
        ck_execute(&whole, NULL);
        ck_compare(&whole, ck_inputs_structured(c.inputs), CK_WORK);
        int64_t worker_cost = mla_plan_worker_cost, most_slots = 0;
        for (int t = 0; t < 12; t++) {
            mla_plan_worker_cost = t < 6 ? worker_cost : 1; /* as it is, and cut as finely as can be */
            int32_t n_thread = threads[t % 6];
            mla_executor executor = {run_backwards, NULL, n_thread};
            int64_t n_slot = slots_of(&whole, n_thread);
            most_slots = n_slot > most_slots ? n_slot : most_slots;
            mla_problem shared = ck_with_new_outputs(&whole, CK_DENSE), lent = ck_with_new_outputs(&whole, CK_DENSE);
            ck_execute(&shared, &(ck_run){.n_thread = n_thread});
            ck_execute(&lent, &(ck_run){.executor = &executor});
            char what[64];
            snprintf(what, sizeof what, "1 and %d threads", (int)n_thread);
            ck_same_bits(&whole, &shared, what);
            ck_same_bits(&whole, &lent, "an executor that runs backwards");
        }
        mla_plan_worker_cost = worker_cost;
        CK_REQUIRE(most_slots > 0); /* rows were cut between their keys */
        ck_release(mark);
    }
}

static void check_pages(void)
{
    static const int64_t pages[] = {1, 7, 64, 100, 1024};
    for (int i = 0; i < N_VARIED; i++) {
        size_t mark = ck_mark();
        ck_config c = varied(i);
        mla_problem first;
        ck_context("problem %d", i);
        ck_make(&c, &first);
        ck_execute(&first, &(ck_run){.n_thread = 2});
        for (int x = 0; x < 5; x++) {
            c.segment[0].page_size = c.segment[1].page_size = pages[x];
            mla_problem other;
            ck_make(&c, &other);
            ck_execute(&other, &(ck_run){.n_thread = 2});
            ck_same_bits(&first, &other, "pages of another size");
        }
        ck_release(mark);
    }
}

/* A sequence in a batch of many, where nothing is split, and alone, where everything is. */
static void check_alone(void)
{
    for (int i = 0; i < N_VARIED; i++) {
        size_t mark = ck_mark();
        ck_config c = varied(i);
        mla_problem batch;
        ck_context("problem %d", i);
        c.n_seq = 10;
        ck_make(&c, &batch);
        ck_execute(&batch, NULL);
        for (int64_t s = 0; s < 4; s++) {
            ck_config single = c;
            single.n_seq = 1;
            single.has_id = true;
            single.id[0] = s;
            mla_problem alone, in_batch = batch;
            ck_make(&single, &alone);
            ck_execute(&alone, &(ck_run){.n_thread = 16});
            mla_tensor *outputs[] = {&in_batch.o, &in_batch.lse, &in_batch.max};
            for (int x = 0; x < 3; x++) {
                outputs[x]->data =
                    (char *)outputs[x]->data + s * outputs[x]->stride[0] * (int64_t)mla_dtype_size(outputs[x]->dtype);
                outputs[x]->dim[0] = 1;
            }
            ck_same_bits(&alone, &in_batch, "a sequence alone and in the batch");
        }
        ck_release(mark);
    }
}

const ck_test ck_rounded_relation_tests[] = {
    {.name = "relations/rounded_split", .run = check_split, .library = true},
    {.name = "relations/rounded_pages", .run = check_pages, .library = true},
    {.name = "relations/rounded_alone", .run = check_alone, .library = true},
    {0},
};
