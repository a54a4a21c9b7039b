/*
 * check_plan.c - plans: what they say about themselves, when they are refused, and what they may be shared between.
 */
#include <pthread.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "checkkernel.h"
#include "core/parallel.h"
#include "core/plan.h"
#include "cpu/kernels.h"

static mla_plan_options options_of(int32_t n_thread)
{
    return (mla_plan_options){.backend = ck_subject_now->backend, .n_thread = n_thread};
}

static mla_plan *build(const mla_problem *p, int32_t n_thread)
{
    mla_plan *plan = NULL;
    mla_plan_options options = options_of(n_thread);
    mla_status status = mla_plan_build(p, &options, &plan);
    if (status != MLA_STATUS_OK) {
        ck_fail("the library refuses: %s", mla_last_error());
    }
    return plan;
}

static mla_plan_info describe(const mla_plan *plan)
{
    mla_plan_info info;
    CK_REQUIRE(mla_plan_describe(plan, &info) == MLA_STATUS_OK);
    return info;
}

static void require_outputs_untouched(const mla_problem *p)
{
    for (int64_t i = 0; i < p->o.dim[0] * p->o.stride[0]; i++) {
        if (!ck_is_untouched(p->o.data, p->o.dtype, i)) {
            ck_fail("a refused run wrote element %lld of o", (long long)i);
        }
    }
}

static ck_config sample(void)
{
    ck_config c = ck_config_plain(3, 2, 16, 64, 64, 0);
    c.segment[0].n_length = 3;
    c.segment[0].length[0] = 3000;
    c.segment[0].length[1] = 0;
    c.segment[0].length[2] = 97;
    c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
    return c;
}

/* Facts that hold for every plan. */
static void check_info(void)
{
    for (uint64_t i = 0; i < 60; i++) {
        size_t mark = ck_mark();
        ck_config c = ck_config_random(ck_hash(ck_seed, 1000 + i), 30000);
        mla_problem p;
        char text[200];
        ck_describe(&c, text, sizeof text);
        ck_context("%s", text);
        ck_make(&c, &p);
        static const int32_t threads[] = {1, 4, 7, 64};
        for (int x = 0; x < 4; x++) {
            int32_t n_thread = threads[x];
            mla_plan *plan = build(&p, n_thread), *again = build(&p, n_thread);
            mla_plan_info info = describe(plan), twin = describe(again);
            bool cpu = ck_subject_now->backend == MLA_BACKEND_CPU;
            CK_REQUIRE(strcmp(info.backend, cpu ? "cpu" : "ref") == 0);
            CK_REQUIRE(strcmp(info.isa, cpu ? ck_subject_now->isa : "") == 0);
            CK_REQUIRE(info.n_worker >= 1 && info.n_worker <= n_thread);
            CK_REQUIRE(info.n_item >= 0 && info.n_slot >= 0);
            CK_REQUIRE(info.n_item == 0 || info.n_worker <= info.n_item); /* no scratch for idle workers */
            CK_REQUIRE(info.workspace_bytes == mla_plan_workspace_bytes(plan));
            CK_REQUIRE(info.fingerprint == twin.fingerprint && info.n_item == twin.n_item &&
                       info.n_slot == twin.n_slot);
            mla_plan_free(plan);
            mla_plan_free(again);
        }
        ck_release(mark);
    }
    /* no more workers than there is work for, unless asked to (checkkernel's main() asks) */
    ck_config c = sample();
    mla_problem p;
    ck_make(&c, &p);
    int64_t asked = mla_plan_worker_cost;
    mla_plan *many = build(&p, 64);
    mla_plan_worker_cost = 40000; /* about a third of all there is to do */
    mla_plan *few = build(&p, 64);
    mla_plan_worker_cost = INT64_MAX;
    mla_plan *one = build(&p, 64);
    mla_plan_worker_cost = asked;
    CK_REQUIRE(ck_subject_now->backend != MLA_BACKEND_CPU ||
               (describe(many).n_worker > describe(few).n_worker && describe(few).n_worker > describe(one).n_worker &&
                describe(one).n_worker == 1));
    mla_plan_free(many);
    mla_plan_free(few);
    mla_plan_free(one);
    mla_plan_free(NULL);
    CK_REQUIRE(mla_plan_describe(NULL, &(mla_plan_info){0}) == MLA_STATUS_NULL_POINTER);
    CK_REQUIRE(mla_plan_workspace_bytes(NULL) == 0);
}

/* However many keys and workers there are, the workspace stays within reason: slots for partial results, which grow with
 * both, take 4 GiB at most, and work is then shared out by rows. A plan reads no key, so none are there. */
static void check_bounded(void)
{
    static const struct {
        int32_t n_key;
        mla_p_rounding rounding;
        bool slots;
    } cases[] = {{1000000, MLA_P_ROUND_NONE, true},
                 {2000000000, MLA_P_ROUND_NONE, false},
                 {1000000, MLA_P_ROUND_16BIT, true},
                 {2000000000, MLA_P_ROUND_16BIT, false}};
    const uintptr_t apart = (uintptr_t)1 << 42; /* addresses that are only compared */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mla_problem p;
        int32_t length = cases[i].n_key;
        mla_problem_init(&p);
        p.q = mla_tensor_make((void *)apart, MLA_DTYPE_BF16, 4, (int64_t[]){1, 1, 128, 576});
        p.segment[0].k = mla_tensor_make((void *)(2 * apart), MLA_DTYPE_BF16, 4, (int64_t[]){1, length, 1, 576});
        p.segment[0].length = mla_tensor_make(&length, MLA_DTYPE_I32, 1, (int64_t[]){1});
        p.d_v = 512;
        p.softmax_scale = 0.1f;
        p.p_rounding = cases[i].rounding;
        p.p_tile = p.p_rounding != MLA_P_ROUND_NONE ? 128 : 0;
        p.o = mla_tensor_make((void *)(3 * apart), MLA_DTYPE_BF16, 4, (int64_t[]){1, 1, 128, 512});
        ck_context("%d keys, 64 workers, p_rounding %d", (int)length, (int)p.p_rounding);
        mla_plan *plan = build(&p, 64);
        mla_plan_info info = describe(plan);
        mla_plan_free(plan);
        if (ck_subject_now->backend == MLA_BACKEND_REF) { /* which keeps a row's scores: 16 MB, 32 GB */
            CK_REQUIRE(info.n_worker == (cases[i].slots ? 64 : 1));
            continue;
        }
        CK_REQUIRE((info.n_slot > 0) == cases[i].slots && info.n_worker == (cases[i].slots ? 64 : 8));
        CK_REQUIRE(info.workspace_bytes < ((size_t)9 << 29)); /* slots, and scratch of 64 workers */
    }
}

/* One change to the problem after the plan was made: it is refused, or, where the plan need not depend on it, right. */
typedef struct change {
    const char *name;
    void (*apply)(mla_problem *p);
    bool stale;                    /* must be refused */
    void (*prepare)(ck_config *c); /* what the sample must have for it; NULL: nothing */
} change;

static void set_index_at(mla_tensor *t, int64_t i, int32_t value)
{
    ck_writable(t->data);
    ((int32_t *)t->data)[i] = value;
    ck_read_only(t->data);
}

static void change_length(mla_problem *p)
{
    set_index_at(&p->segment[0].length, 0, 2999);
}

static void change_length_to_zero(mla_problem *p)
{
    set_index_at(&p->segment[0].length, 2, 0);
}

static void change_rule(mla_problem *p)
{
    p->segment[0].visible.rule = MLA_VISIBLE_ALL;
}

static void change_window(mla_problem *p)
{
    p->segment[0].visible.rule = MLA_VISIBLE_WINDOW;
    p->segment[0].visible.left = 100;
    p->segment[0].visible.right = 0;
}

static void change_heads(mla_problem *p)
{
    p->q.dim[2] = p->o.dim[2] = p->lse.dim[2] = p->max.dim[2] = 8;
}

static void change_tokens(mla_problem *p)
{
    p->q.dim[1] = p->o.dim[1] = p->lse.dim[1] = p->max.dim[1] = 1;
}

static void change_sequences(mla_problem *p)
{
    p->q.dim[0] = p->o.dim[0] = p->lse.dim[0] = p->max.dim[0] = 2;
    p->segment[0].length.dim[0] = p->segment[0].page_table.dim[0] = 2;
}

static void change_d_v(mla_problem *p)
{
    p->d_v = p->o.dim[3] = 40;
}

static void change_d_k(mla_problem *p)
{
    p->q.dim[3] = p->segment[0].k.dim[3] = 50;
    p->d_v = p->o.dim[3] = 50;
}

static void add_q_length(mla_problem *p)
{
    p->q_length = ck_tensor("q_length", MLA_DTYPE_I32, 1, (int64_t[]){3}, CK_DENSE);
    for (int i = 0; i < 3; i++) {
        ((int32_t *)p->q_length.data)[i] = 1;
    }
}

/* A mask, values and a sink that the plan did not know of: they may need scratch that it has not counted. */
static void add_mask(mla_problem *p)
{
    p->segment[0].mask = ck_tensor("mask", MLA_DTYPE_F32, 3, (int64_t[]){3, 2, 3000}, CK_DENSE);
    memset(p->segment[0].mask.data, 0, 3 * 2 * 3000 * sizeof(float));
}

static void add_values(mla_problem *p)
{
    mla_segment *s = &p->segment[0];
    s->v = s->k; /* the same numbers */
    s->v.dim[3] = p->d_v;
}

static void add_sink(mla_problem *p)
{
    p->sink = ck_tensor("sink", MLA_DTYPE_F32, 1, (int64_t[]){16}, CK_DENSE);
    for (int i = 0; i < 16; i++) {
        ((float *)p->sink.data)[i] = 0.5f;
    }
}

static void drop_lse(mla_problem *p)
{
    p->lse = p->max = (mla_tensor){0};
}

static void change_scale(mla_problem *p)
{
    p->softmax_scale *= 2;
}

static void change_output_dtype(mla_problem *p)
{
    p->o = ck_tensor("o", MLA_DTYPE_BF16, 4, (int64_t[]){3, 2, 16, 64}, CK_DENSE);
}

/* ---- and of things that the sample has only when it is told so */

static void with_window(ck_config *c)
{
    c->segment[0].visible = (mla_visible){.rule = MLA_VISIBLE_WINDOW, .left = 500, .right = 0};
}

static void with_compressed(ck_config *c)
{
    c->segment[0].visible = (mla_visible){.rule = MLA_VISIBLE_COMPRESSED, .ratio = 4};
}

static void with_residual(ck_config *c)
{
    with_compressed(c);
    c->segment[0].has_residual = true;
}

static void with_list(ck_config *c)
{
    c->segment[0].list = CK_LOGICAL;
    c->segment[0].n_entry = 1500;
    c->segment[0].list_length = CK_PER_TOKEN;
}

static void with_q_length(ck_config *c)
{
    c->n_used = 1;
    c->used[0] = 2;
}

static void with_packed_q(ck_config *c)
{
    c->n_q = 0;
    c->n_slots = 3;
    c->slots[0] = 2;
    c->slots[1] = 3;
    c->slots[2] = 1;
}

static void with_packed_k(ck_config *c)
{
    c->segment[0].addressing = MLA_ADDRESS_PACKED;
    c->segment[0].no_length = true;
}

static void with_mask(ck_config *c)
{
    c->segment[0].mask = CK_MASK_RANDOM;
}

static void with_values(ck_config *c)
{
    c->segment[0].v_apart = true;
}

static void change_left(mla_problem *p)
{
    p->segment[0].visible.left = 600;
}

static void change_right(mla_problem *p)
{
    p->segment[0].visible.right = 1;
}

static void change_ratio(mla_problem *p)
{
    p->segment[0].visible.ratio = 8;
}

static void change_residual(mla_problem *p)
{
    int32_t *residual = p->segment[0].visible.residual.data;
    set_index_at(&p->segment[0].visible.residual, 2, residual[2] == 0 ? 3 : 0);
}

static void add_residual(mla_problem *p)
{
    p->segment[0].visible.residual = ck_tensor("residual", MLA_DTYPE_I32, 1, (int64_t[]){3}, CK_DENSE);
    memset(p->segment[0].visible.residual.data, 0, 3 * sizeof(int32_t));
    set_index_at(&p->segment[0].visible.residual, 2, 3);
}

static void change_list_length(mla_problem *p)
{
    int32_t *length = p->segment[0].list_length.data;
    set_index_at(&p->segment[0].list_length, 1, length[1] == 0 ? 1500 : length[1] - 1);
}

static void drop_list_length(mla_problem *p)
{
    p->segment[0].list_length = (mla_tensor){0};
}

static void change_list_rule(mla_problem *p)
{
    p->segment[0].list_rule = MLA_LIST_STOP;
}

static void change_entries(mla_problem *p)
{
    p->segment[0].list.dim[2] = 1400;
    p->segment[0].list_length = (mla_tensor){0};
}

static void change_q_length(mla_problem *p)
{
    set_index_at(&p->q_length, 0, 1);
}

static void change_q_begin(mla_problem *p)
{
    set_index_at(&p->q_begin, 1, 1);
}

static void change_k_begin(mla_problem *p)
{
    set_index_at(&p->segment[0].k_begin, 1, 2999);
}

static void drop_mask(mla_problem *p)
{
    p->segment[0].mask = (mla_tensor){0};
}

static void drop_values(mla_problem *p)
{
    p->segment[0].v = (mla_tensor){0};
}

static void split_rope(mla_problem *p)
{
    mla_segment *s = &p->segment[0];
    p->q_rope = p->q;
    p->q_rope.data = (uint16_t *)p->q.data + 48;
    p->q_rope.dim[3] = 16;
    p->q.dim[3] = 48;
    s->k_rope = s->k;
    s->k_rope.data = (uint16_t *)s->k.data + 48;
    s->k_rope.dim[3] = 16;
    s->k.dim[3] = 48;
}

static void check_stale(void)
{
    static const change changes[] = {
        {"a length", change_length, true, NULL},
        {"a length that becomes 0", change_length_to_zero, true, NULL},
        {"the visible rule", change_rule, true, NULL},
        {"a window", change_window, true, NULL},
        {"the number of heads", change_heads, true, NULL},
        {"the number of query tokens", change_tokens, true, NULL},
        {"the number of sequences", change_sequences, true, NULL},
        {"d_v", change_d_v, true, NULL},
        {"d_k", change_d_k, true, NULL},
        {"q_length", add_q_length, true, NULL},
        /* what a worker's scratch is laid out for */
        {"a mask", add_mask, true, NULL},
        {"no mask", drop_mask, true, with_mask},
        {"values of their own", add_values, true, NULL},
        {"no values of their own", drop_values, true, with_values},
        /* what the visible range hangs on */
        {"a window's left", change_left, true, with_window},
        {"a window's right", change_right, true, with_window},
        {"a ratio", change_ratio, true, with_compressed},
        {"a residual", change_residual, true, with_residual},
        {"residuals where there were none", add_residual, true, with_compressed},
        {"a list length", change_list_length, true, with_list},
        {"no list lengths", drop_list_length, true, with_list},
        {"the list rule", change_list_rule, true, with_list},
        {"the number of list entries", change_entries, true, with_list},
        {"a q_length", change_q_length, true, with_q_length},
        {"a q_begin", change_q_begin, true, with_packed_q},
        {"a k_begin", change_k_begin, true, with_packed_k},
        {"a sink", add_sink, false, NULL},
        {"no lse", drop_lse, false, NULL},
        {"the scale", change_scale, false, NULL},
        {"the dtype of o", change_output_dtype, false, NULL},
        {"rope apart", split_rope, false, NULL},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        for (int32_t n_thread = 1; n_thread <= 4; n_thread += 3) {
            size_t mark = ck_mark();
            ck_config c = sample();
            mla_problem p;
            if (changes[i].prepare) {
                changes[i].prepare(&c);
            }
            ck_make(&c, &p);
            mla_plan *plan = build(&p, n_thread);
            size_t bytes = mla_plan_workspace_bytes(plan);
            void *workspace = ck_buffer("workspace", bytes);
            changes[i].apply(&p);
            ck_context("after a change of %s", changes[i].name);
            CK_REQUIRE(mla_problem_check(&p) == MLA_STATUS_OK);
            mla_status status = mla_run(plan, &p, workspace, bytes, NULL);
            if (status == MLA_STATUS_STALE_PLAN) {
                require_outputs_untouched(&p);
            } else if (status != MLA_STATUS_OK || changes[i].stale) {
                ck_fail("the plan was run: %s", mla_status_name(status));
            } else {
                ck_compare(&p, false, CK_WORK);
            }
            mla_plan_free(plan);
            ck_release(mark);
        }
    }
}

static mla_arithmetic chosen(const mla_problem *p)
{
    mla_plan *plan = build(p, 2);
    mla_plan_info info;
    CK_REQUIRE(mla_plan_describe(plan, &info) == MLA_STATUS_OK);
    mla_plan_free(plan);
    return info.arithmetic;
}

/* What is computed in: bf16 where there is a unit for it and all operands are bf16, when it is asked for; in two parts when
 * nothing is asked for, o is bf16 too, and the unit is the faster way. A plan made for another o or arithmetic does not serve. */
static void check_arithmetic(void)
{
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16};
    if (ck_subject_now->backend != MLA_BACKEND_CPU) {
        ck_skip("only the CPU backend has a choice");
    }
    const mla_bf16_kernels *unit = &mla_cpu_kernels_of(ck_subject_now->isa)->bf16;
    for (int i = 0; i < 27; i++) {
        size_t mark = ck_mark();
        ck_config c = ck_config_plain(2, 1, 20, 64, 64, 100);
        c.o_dtype = dtypes[i % 3];
        c.q_dtype = dtypes[i / 3 % 3];
        c.segment[0].dtype = dtypes[i / 9];
        mla_problem p;
        ck_make(&c, &p);
        bool suits = unit->qk && c.q_dtype == MLA_DTYPE_BF16 && c.segment[0].dtype == MLA_DTYPE_BF16;
        p.arithmetic = MLA_ARITHMETIC_F32;
        CK_REQUIRE(chosen(&p) == MLA_ARITHMETIC_F32);
        p.arithmetic = MLA_ARITHMETIC_BF16;
        CK_REQUIRE(chosen(&p) == (suits ? MLA_ARITHMETIC_BF16 : MLA_ARITHMETIC_F32));
        p.arithmetic = MLA_ARITHMETIC_BF16X2;
        CK_REQUIRE(chosen(&p) == (suits ? MLA_ARITHMETIC_BF16X2 : MLA_ARITHMETIC_F32));
        p.arithmetic = MLA_ARITHMETIC_AUTO;
        bool by_itself = suits && unit->faster && c.o_dtype == MLA_DTYPE_BF16;
        CK_REQUIRE(chosen(&p) == (by_itself ? MLA_ARITHMETIC_BF16X2 : MLA_ARITHMETIC_F32));
        ck_release(mark);
    }
    ck_config c = ck_config_plain(1, 1, 20, 64, 64, 100);
    mla_problem p;
    ck_make(&c, &p);
    mla_plan *plan = build(&p, 1);
    void *workspace = ck_buffer("workspace", mla_plan_workspace_bytes(plan));
    p.arithmetic = MLA_ARITHMETIC_BF16;
    CK_REQUIRE(mla_run(plan, &p, workspace, mla_plan_workspace_bytes(plan), NULL) == MLA_STATUS_STALE_PLAN);
    p.arithmetic = MLA_ARITHMETIC_AUTO;
    p.o.dtype = MLA_DTYPE_BF16;
    CK_REQUIRE(mla_run(plan, &p, workspace, mla_plan_workspace_bytes(plan), NULL) == MLA_STATUS_STALE_PLAN);
    mla_plan_free(plan);
}

/* A plan made for one arithmetic has another one's scratch: it does not run it. */
static void check_other_arithmetic(void)
{
    ck_config c = sample();
    mla_problem p;
    ck_make(&c, &p);
    mla_plan *plan = build(&p, 2);
    size_t bytes = mla_plan_workspace_bytes(plan);
    void *workspace = ck_buffer("workspace", bytes);
    p.arithmetic = MLA_ARITHMETIC_INT16;
    CK_REQUIRE(mla_problem_check(&p) == MLA_STATUS_OK);
    CK_REQUIRE(mla_run(plan, &p, workspace, bytes, NULL) == MLA_STATUS_STALE_PLAN);
    require_outputs_untouched(&p);
    mla_plan_free(plan);
}

/* Inside a parallel region of the caller's every thread is one worker already, and calls of all of them work. */
static void check_parallel_region(void)
{
    enum { N = 4 };
    ck_config c = sample();
    mla_problem p, in_region[N];
    mla_status status[N];
    int32_t n_worker[N];
    ck_make(&c, &p);
    ck_execute(&p, NULL);
    for (int i = 0; i < N; i++) {
        in_region[i] = ck_with_new_outputs(&p, CK_DENSE);
        status[i] = MLA_STATUS_INTERNAL;
        n_worker[i] = -1;
    }
    mla_plan_options options = options_of(0);
#ifdef _OPENMP
    omp_set_num_threads(N);
    CK_REQUIRE(mla_default_threads() == N || omp_get_num_procs() == N); /* as many as CPUs: a quota may lower it */
#pragma omp parallel for num_threads(N) schedule(static, 1)
#endif
    for (int i = 0; i < N; i++) {
        n_worker[i] = mla_default_threads();
        status[i] = mla_attention(&in_region[i], &options);
    }
    for (int i = 0; i < N; i++) {
        CK_REQUIRE(n_worker[i] == 1);
        CK_REQUIRE(status[i] == MLA_STATUS_OK);
        ck_same_bits(&p, &in_region[i], "alone and inside a parallel region");
    }
}

/* The same plan for other data at other addresses, as a decoding engine would have it. */
static void check_reuse(void)
{
    ck_config c = sample(), other = sample();
    other.seed++;
    other.layout_seed++;
    mla_problem first, second;
    ck_make(&c, &first);
    ck_make(&other, &second);
    mla_plan *plan = build(&first, 2);
    size_t bytes = mla_plan_workspace_bytes(plan);
    void *workspace = ck_buffer("workspace", bytes);
    CK_REQUIRE(mla_run(plan, &second, workspace, bytes, NULL) == MLA_STATUS_OK);
    ck_compare(&second, false, CK_WORK);
    CK_REQUIRE(mla_run(plan, &first, workspace, bytes, NULL) == MLA_STATUS_OK); /* whatever the first run left there */
    ck_compare(&first, false, CK_WORK);
    mla_plan_free(plan);
}

/* Too small, missing, at any address; exactly what was asked for is enough, and its contents do not matter. */
static void check_workspace(void)
{
    ck_config c = sample();
    mla_problem p, again;
    ck_make(&c, &p);
    mla_plan *plan = build(&p, 4);
    size_t bytes = mla_plan_workspace_bytes(plan);
    CK_REQUIRE(bytes > 0 && (describe(plan).n_slot > 0 || ck_subject_now->backend == MLA_BACKEND_REF));
    void *workspace = ck_buffer("workspace", bytes);
    CK_REQUIRE(mla_run(plan, &p, workspace, bytes - 1, NULL) == MLA_STATUS_WORKSPACE_TOO_SMALL);
    CK_REQUIRE(mla_run(plan, &p, workspace, 0, NULL) == MLA_STATUS_WORKSPACE_TOO_SMALL);
    CK_REQUIRE(mla_run(plan, &p, NULL, bytes, NULL) == MLA_STATUS_NULL_POINTER);
    CK_REQUIRE(mla_run(NULL, &p, workspace, bytes, NULL) == MLA_STATUS_NULL_POINTER);
    require_outputs_untouched(&p);
    memset(workspace, 0, bytes);
    CK_REQUIRE(mla_run(plan, &p, workspace, bytes, NULL) == MLA_STATUS_OK);
    ck_compare(&p, false, CK_WORK);
    for (size_t shift = 1; shift < 5000; shift = shift * 3 + 1) {
        size_t mark = ck_mark();
        again = ck_with_new_outputs(&p, CK_DENSE);
        char *memory = ck_buffer("workspace", bytes + shift); /* NaN all over, and not aligned to anything */
        CK_REQUIRE(mla_run(plan, &again, memory, bytes, NULL) == MLA_STATUS_OK);
        ck_same_bits(&p, &again, "workspaces at different addresses");
        for (size_t i = bytes; i < bytes + shift; i++) { /* what lies behind it is the caller's */
            unsigned char want = (bytes + shift - 1 - i) % 2 ? 0xa5 : 0xff;
            CK_REQUIRE((unsigned char)memory[i] == want);
        }
        ck_release(mark);
    }
    mla_plan_free(plan);
}

/* mla_attention() is plan, allocate, run and release. */
static void check_one_shot(void)
{
    ck_config c = sample();
    mla_problem planned, at_once;
    ck_make(&c, &planned);
    ck_execute(&planned, NULL);
    at_once = ck_with_new_outputs(&planned, CK_DENSE);
    mla_plan_options options = options_of(3);
    CK_REQUIRE(mla_attention(&at_once, &options) == MLA_STATUS_OK);
    ck_same_bits(&planned, &at_once, "planned and at once");
    at_once = ck_with_new_outputs(&planned, CK_DENSE);
    CK_REQUIRE(mla_attention(&at_once, NULL) == MLA_STATUS_OK); /* the CPU's best level */
    ck_compare(&at_once, false, CK_WORK);
    CK_REQUIRE(mla_attention(NULL, NULL) != MLA_STATUS_OK);
}

/* Several threads run one plan at the same time, each with a workspace and outputs of its own. */
typedef struct runner {
    const mla_plan *plan;
    mla_problem problem;
    void *workspace;
    size_t bytes;
    mla_status status;
} runner;

static void *run_plan(void *data)
{
    runner *r = data;
    for (int i = 0; i < 5 && r->status == MLA_STATUS_OK; i++) {
        r->status = mla_run(r->plan, &r->problem, r->workspace, r->bytes, NULL);
    }
    return NULL;
}

static void check_shared(void)
{
    enum { N = 4 };
    ck_config c = sample();
    mla_problem p;
    ck_make(&c, &p);
    mla_plan *plan = build(&p, 2);
    size_t bytes = mla_plan_workspace_bytes(plan);
    ck_execute(&p, NULL);
    runner runners[N];
    pthread_t threads[N];
    for (int i = 0; i < N; i++) {
        runners[i] =
            (runner){plan, ck_with_new_outputs(&p, CK_DENSE), ck_buffer("workspace", bytes), bytes, MLA_STATUS_OK};
    }
    for (int i = 0; i < N; i++) {
        CK_REQUIRE(pthread_create(&threads[i], NULL, run_plan, &runners[i]) == 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        CK_REQUIRE(runners[i].status == MLA_STATUS_OK);
        ck_same_bits(&p, &runners[i].problem, "alone and by four threads at once");
    }
    mla_plan_free(plan);
}

/* A plan keeps the kernels of the level that was chosen when it was made. */
static void check_isa(void)
{
    ck_config c = sample();
    mla_problem p, later;
    ck_make(&c, &p);
    mla_plan *plan = build(&p, 1);
    size_t bytes = mla_plan_workspace_bytes(plan);
    void *workspace = ck_buffer("workspace", bytes);
    CK_REQUIRE(mla_run(plan, &p, workspace, bytes, NULL) == MLA_STATUS_OK);
    later = ck_with_new_outputs(&p, CK_DENSE);
    CK_REQUIRE(mla_set_isa("scalar") == MLA_STATUS_OK);
    CK_REQUIRE(mla_run(plan, &later, workspace, bytes, NULL) == MLA_STATUS_OK);
    ck_same_bits(&p, &later, "before and after mla_set_isa()");
    CK_REQUIRE(mla_set_isa("pentium") == MLA_STATUS_BAD_VALUE);
    CK_REQUIRE(mla_set_isa(NULL) == MLA_STATUS_OK);
    mla_plan_free(plan);
}

const ck_test ck_plan_tests[] = {
    {.name = "plan/info", .run = check_info, .host = true, .library = true},
    {.name = "plan/bounded", .run = check_bounded, .host = true, .library = true},
    {.name = "plan/stale", .run = check_stale, .host = true, .library = true},
    {.name = "plan/arithmetic", .run = check_arithmetic, .host = true, .library = true},
    {.name = "plan/other_arithmetic", .run = check_other_arithmetic, .host = true, .library = true},
    {.name = "plan/parallel_region", .run = check_parallel_region, .host = true, .once = true, .library = true},
    {.name = "plan/reuse", .run = check_reuse, .host = true, .library = true},
    {.name = "plan/workspace", .run = check_workspace, .host = true, .library = true},
    {.name = "plan/one_shot", .run = check_one_shot, .host = true, .once = true, .library = true},
    {.name = "plan/shared", .run = check_shared, .host = true, .once = true, .library = true},
    {.name = "plan/isa", .run = check_isa, .host = true, .library = true},
    {0},
};
