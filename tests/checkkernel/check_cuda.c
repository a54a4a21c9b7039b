/*
 * check_cuda.c - what only a GPU can get wrong: index tensors that nobody has checked, graphs, streams, far offsets.
 */
#include <math.h>
#include <string.h>

#include "cases.h"
#include "mla/flash_mla.h"
#include "subject_cuda.h"

static const mla_cuda_driver *driver(void)
{
    return ck_cuda_enter()->driver;
}

static cuda_stream make_stream(void)
{
    cuda_stream stream;
    ck_cuda_require(driver()->cuStreamCreate(&stream, 1), "making a stream"); /* not in step with the default one */
    return stream;
}

/* The twin of a tensor of the host problem. */
static ck_cuda_twin *twin_of(ck_cuda_problem *c, const mla_tensor *host)
{
    for (int i = 0; i < c->n_twin; i++) {
        if (c->twin[i].host == (char *)host->data) {
            return &c->twin[i];
        }
    }
    ck_fail("checkkernel itself: a tensor without a twin");
}

static void run_on(const mla_plan *plan, const ck_cuda_problem *c, cuda_address workspace, size_t bytes,
                   cuda_stream stream)
{
    if (mla_run(plan, &c->problem, (void *)(uintptr_t)workspace, bytes, stream) != MLA_STATUS_OK) {
        ck_fail("mla_run refuses: %s", mla_last_error());
    }
}

static mla_plan *make_plan(const mla_problem *problem)
{
    mla_plan *plan;
    if (mla_plan_build(problem, NULL, &plan) != MLA_STATUS_OK) {
        ck_fail("mla_plan_build refuses: %s", mla_last_error());
    }
    return plan;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static void check_every_head_count(void)
{
    for (int64_t h = 1; h <= 130; h++) {
        ck_config c = ck_config_plain(1, 1, h, 40, 33, 70);
        ck_check_config(&c);
    }
    for (int64_t h = 1; h <= 130; h += 43) { /* in parts */
        ck_config c = ck_config_plain(1, 1, h, 576, 512, 1100);
        c.o_dtype = MLA_DTYPE_BF16;
        ck_check_config(&c);
    }
}

static void check_wide(void)
{
    static const int64_t dims[][2] = {{520, 513}, {1100, 1025}, {2000, 600}, {64, 64}};
    for (int i = 0; i < 4; i++) {
        ck_config c = ck_config_plain(2, 2, 20, dims[i][0], dims[i][1], 150);
        ck_check_config(&c);
        c.segment[0].n_length = 1;
        c.segment[0].length[0] = 900; /* in parts */
        c.n_seq = 1;
        ck_check_config(&c);
    }
}

/* ---- values that nobody has checked ------------------------------------------------------------------------------ */

/* case_dense() with a change of its index tensors that only the device sees. */
static void expect_with(const case_shape *shape, int32_t length, const mla_tensor *(*change)(mla_problem *),
                        int64_t first, int64_t n, const char *what)
{
    size_t mark = ck_mark();
    ck_context("%s", what);
    mla_problem p = case_dense(shape, &length);
    ck_cuda_problem c;
    ck_cuda_make(&c, &p);
    ck_cuda_upload(twin_of(&c, change(&p)));
    mla_plan *plan = make_plan(&c.problem);
    size_t bytes;
    cuda_address workspace = ck_cuda_workspace(plan, &bytes);
    run_on(plan, &c, workspace, bytes, NULL);
    ck_cuda_fetch(&c);
    for (int64_t i = 0; i < shape->s_q; i++) {
        case_expect_mean(&p, 0, i, first, n);
    }
    mla_plan_free(plan);
    if (workspace) {
        driver()->cuMemFree_v2(workspace);
    }
    ck_cuda_end(&c);
    ck_release(mark);
    ck_context("%s", "");
}

static int32_t bad_page;

static const mla_tensor *break_first_pages(mla_problem *p)
{
    int32_t *table = p->segment[0].page_table.data;
    table[0] = table[1] = bad_page;
    return &p->segment[0].page_table;
}

static const mla_tensor *lengthen(mla_problem *p)
{
    *(int32_t *)p->segment[0].length.data = INT32_MAX;
    return &p->segment[0].length;
}

static const mla_tensor *negate(mla_problem *p)
{
    *(int32_t *)p->segment[0].length.data = INT32_MIN;
    return &p->segment[0].length;
}

static void check_bad_values(void)
{
    static const int32_t pages[] = {-1, INT32_MIN, INT32_MAX, 2147480000, 20};
    case_shape shape = {.b = 1, .s_q = 1, .h_q = 16, .page = 16, .d_k = 64};
    for (int i = 0; i < 5; i++) {
        bad_page = pages[i];
        expect_with(&shape, 320, break_first_pages, 32, 288, "two bad pages");
        shape.h_q = 3;
        expect_with(&shape, 320, break_first_pages, 32, 288, "two bad pages, few heads");
        shape.h_q = 70;
    }
    expect_with(&shape, 320, lengthen, 0, 320, "a length beyond the table");
    expect_with(&shape, 320, negate, 0, 0, "a negative length");
    shape.s_q = 3;
    expect_with(&shape, 320, lengthen, 0, 320, "a length beyond the table, three tokens");
}

/* Numbers of any kind in every index tensor: nothing faults, nothing is written where it does not belong, and it
 * ends. */
static void check_garbage(void)
{
    static const int32_t zoo[] = {INT32_MIN, -1, 0, 1, 7, 100, 100000, INT32_MAX, 2147480000, -100000};
    for (uint64_t seed = 0; seed < 60; seed++) {
        size_t mark = ck_mark();
        ck_config config = ck_config_random(ck_hash(ck_seed, 900 + seed), 20000);
        mla_problem p;
        ck_random r = {ck_hash(ck_seed, seed)};
        char text[200];
        ck_describe(&config, text, sizeof text);
        ck_context("garbage: %s", text);
        ck_make(&config, &p);
        ck_cuda_problem c;
        ck_cuda_make(&c, &p);
        mla_plan *plan;
        if (mla_plan_build(&c.problem, NULL, &plan) == MLA_STATUS_OK) {
            for (int i = 0; i < c.n_twin; i++) {
                const char *name = c.twin[i].name;
                if (strcmp(name, "page_table") == 0 || strcmp(name, "length") == 0 || strcmp(name, "list") == 0 ||
                    strcmp(name, "list_length") == 0 || strcmp(name, "k_begin") == 0 || strcmp(name, "q_begin") == 0 ||
                    strcmp(name, "q_length") == 0 || strcmp(name, "residual") == 0) {
                    ck_writable(c.twin[i].host);
                    for (int64_t x = 0; x + 4 <= c.twin[i].bytes; x += 4) {
                        if (ck_chance(&r, 0.3)) {
                            memcpy(c.twin[i].host + x, &zoo[ck_below(&r, 10)], 4);
                        }
                    }
                    ck_cuda_upload(&c.twin[i]);
                }
            }
            size_t bytes;
            cuda_address workspace = ck_cuda_workspace(plan, &bytes);
            run_on(plan, &c, workspace, bytes, NULL);
            ck_cuda_fetch(&c); /* a fault would show here */
            ck_require_gaps_untouched(&p.o);
            mla_plan_free(plan);
            if (workspace) {
                driver()->cuMemFree_v2(workspace);
            }
        }
        ck_cuda_end(&c);
        ck_release(mark);
    }
    ck_context("%s", "");
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* Other lengths, list lengths and numbers of query tokens, none larger than before. */
static void shrink(const mla_problem *p, ck_random *r)
{
    const mla_tensor *changed[] = {&p->segment[0].length, &p->segment[0].list_length, &p->q_length};
    for (int i = 0; i < 3; i++) {
        const mla_tensor *t = changed[i];
        for (int64_t x = 0; mla_tensor_present(t) && t->ndim == 1 && x < t->dim[0]; x++) {
            int32_t *value = (int32_t *)t->data + x;
            *value = (int32_t)ck_between(r, -1, *value > 0 ? *value : 0);
        }
    }
}

static void replay(const ck_config *config)
{
    size_t mark = ck_mark(), bytes;
    mla_problem p;
    ck_cuda_problem c;
    ck_random r = {ck_hash(ck_seed, 3)};
    ck_make(config, &p);
    ck_cuda_make(&c, &p);
    mla_plan *plan = make_plan(&c.problem);
    cuda_address workspace = ck_cuda_workspace(plan, &bytes);
    cuda_stream stream = make_stream();
    cuda_graph graph;
    cuda_graph_exec exec;
    ck_cuda_require(driver()->cuStreamBeginCapture_v2(stream, 0), "beginning a capture");
    run_on(plan, &c, workspace, bytes, stream);
    ck_cuda_require(driver()->cuStreamEndCapture(stream, &graph), "ending a capture");
    ck_cuda_require(driver()->cuGraphInstantiateWithFlags(&exec, graph, 0), "making a graph");
    for (int i = 0; i < 4; i++) {
        if (i > 0) {
            for (int x = 0; x < c.n_twin; x++) {
                ck_writable(c.twin[x].host);
            }
            shrink(&p, &r);
        }
        ck_reset_outputs(&p);
        for (int x = 0; x < c.n_twin; x++) {
            ck_cuda_upload(&c.twin[x]);
        }
        ck_cuda_require(driver()->cuGraphLaunch(exec, stream), "replaying a graph");
        ck_cuda_require(driver()->cuStreamSynchronize(stream), "a replayed graph");
        ck_cuda_fetch(&c);
        ck_context("replay %d", i);
        ck_compare(&p, false, CK_WORK / 4);
    }
    ck_context("%s", "");
    driver()->cuGraphExecDestroy(exec);
    driver()->cuGraphDestroy(graph);
    driver()->cuStreamDestroy_v2(stream);
    mla_plan_free(plan);
    if (workspace) {
        driver()->cuMemFree_v2(workspace);
    }
    ck_cuda_end(&c);
    ck_release(mark);
}

static void check_graph(void)
{
    ck_config c = ck_config_plain(3, 2, 16, 576, 512, 0);
    c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
    c.segment[0].n_length = 3;
    memcpy(c.segment[0].length, (int64_t[]){1500, 64, 700}, 3 * sizeof(int64_t));
    replay(&c);
    c.n_head = 65;
    c.q_dtype = c.segment[0].dtype = MLA_DTYPE_F16;
    replay(&c);
    c = ck_config_plain(2, 3, 5, 64, 48, 600);
    c.n_used = 2;
    c.used[0] = 3;
    c.used[1] = 2;
    replay(&c);
    c.segment[0].list = CK_LOGICAL;
    c.segment[0].n_entry = 500;
    c.segment[0].list_length = CK_PER_SEQUENCE;
    replay(&c);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* The same two problems one after the other, and at once on two streams with a workspace each: the same bits. */
static void check_streams(void)
{
    enum { N = 2, ROUNDS = 20 };
    mla_problem p[N], first[N];
    ck_cuda_problem c[N];
    mla_plan *plan[N];
    cuda_address workspace[N];
    cuda_stream stream[N];
    size_t bytes[N];
    for (int i = 0; i < N; i++) {
        ck_config config = ck_config_plain(1, 1, 16 + 48 * i, 576, 512, 2000);
        config.seed += (uint64_t)i;
        ck_make(&config, &p[i]);
        ck_cuda_make(&c[i], &p[i]);
        plan[i] = make_plan(&c[i].problem);
        workspace[i] = ck_cuda_workspace(plan[i], &bytes[i]);
        stream[i] = make_stream();
        run_on(plan[i], &c[i], workspace[i], bytes[i], NULL);
        ck_cuda_fetch(&c[i]);
        ck_compare(&p[i], false, CK_WORK);
        first[i] = ck_with_new_outputs(&p[i], CK_DENSE);
        memcpy(first[i].o.data, p[i].o.data, sizeof(float) * (size_t)(p[i].o.dim[2] * 512));
        memcpy(first[i].lse.data, p[i].lse.data, sizeof(float) * (size_t)p[i].o.dim[2]);
        memcpy(first[i].max.data, p[i].max.data, sizeof(float) * (size_t)p[i].o.dim[2]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) {
            run_on(plan[i], &c[i], workspace[i], bytes[i], stream[i]);
        }
    }
    for (int i = 0; i < N; i++) {
        ck_cuda_require(driver()->cuStreamSynchronize(stream[i]), "two streams");
        ck_cuda_fetch(&c[i]);
        ck_same_bits(&first[i], &p[i], "alone and beside another stream");
    }
}

/* ---- far offsets ------------------------------------------------------------------------------------------------- */

/* One sequence whose pages lie anywhere in a pool of more than 2^31 elements. */
static void check_far(void)
{
    enum { PAGE = 64, D = 576, N = 5 };
    static const int32_t page[N] = {58254, 58255, 58256, 0, 60000}; /* around 2^31 elements, and the ends */
    case_shape shape = {.b = 1, .s_q = 1, .h_q = 16, .page = PAGE};
    mla_problem p = case_dense(&shape, (int32_t[]){N * PAGE});
    ck_cuda_problem c;
    ck_cuda_make(&c, &p);
    cuda_address pool;
    int64_t page_bytes = PAGE * D * 2;
    if (driver()->cuMemAlloc_v2(&pool, (size_t)(60001 * page_bytes)) != CUDA_RESULT_OK) {
        ck_skip("the device gives no %lld bytes", (long long)(60001 * page_bytes));
    }
    for (int i = 0; i < N; i++) {
        ck_cuda_require(driver()->cuMemcpyHtoDAsync_v2(pool + (cuda_address)(page[i] * page_bytes),
                                                       (char *)p.segment[0].k.data + i * page_bytes, (size_t)page_bytes,
                                                       NULL),
                        "filling a far page");
    }
    memcpy(p.segment[0].page_table.data, page, sizeof page);
    ck_cuda_upload(twin_of(&c, &p.segment[0].page_table));
    c.problem.segment[0].k.data = (void *)(uintptr_t)pool;
    c.problem.segment[0].k.dim[0] = 60001;
    mla_plan *plan = make_plan(&c.problem);
    size_t bytes;
    cuda_address workspace = ck_cuda_workspace(plan, &bytes);
    run_on(plan, &c, workspace, bytes, NULL);
    ck_cuda_fetch(&c);
    case_expect_mean(&p, 0, 0, 0, N * PAGE);
    mla_plan_free(plan);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static cuda_address lent;
static int n_lent, n_returned;

static void *lend(void *context, size_t bytes, void *stream)
{
    (void)context;
    (void)stream;
    n_lent++;
    return driver()->cuMemAlloc_v2(&lent, bytes) == CUDA_RESULT_OK ? (void *)(uintptr_t)lent : NULL;
}

static void take_back(void *context, void *memory, void *stream)
{
    (void)context;
    (void)stream;
    (void)memory;
    n_returned++;
}

static void check_calls(void)
{
    ck_config config = ck_config_plain(1, 1, 16, 576, 512, 3000);
    mla_problem p, again;
    ck_cuda_problem c;
    ck_make(&config, &p);
    again = ck_with_new_outputs(&p, CK_DENSE);
    ck_cuda_make(&c, &p);
    cuda_stream stream = make_stream();
    CK_REQUIRE(mla_attention(&c.problem, &(mla_plan_options){.stream = stream}) == MLA_STATUS_OK);
    ck_cuda_require(driver()->cuStreamSynchronize(stream), "mla_attention");
    ck_cuda_fetch(&c);
    ck_compare(&p, false, CK_WORK);
    memcpy(again.o.data, p.o.data, sizeof(float) * 16 * 512);
    memcpy(again.lse.data, p.lse.data, sizeof(float) * 16);
    memcpy(again.max.data, p.max.data, sizeof(float) * 16);
    mla_allocator allocator = {.allocate = lend, .release = take_back};
    mla_plan_options lender = {.stream = stream, .allocator = &allocator};
    CK_REQUIRE(mla_attention(&c.problem, &lender) == MLA_STATUS_OK);
    ck_cuda_require(driver()->cuStreamSynchronize(stream), "mla_attention");
    CK_REQUIRE(n_lent == 1 && n_returned == 1);
    ck_cuda_fetch(&c);
    ck_same_bits(&again, &p, "workspace of our own and the library's");

    mla_plan *plan = make_plan(&c.problem);
    size_t bytes;
    cuda_address workspace = ck_cuda_workspace(plan, &bytes);
    mla_plan_info info;
    CK_REQUIRE(mla_plan_describe(plan, &info) == MLA_STATUS_OK && strcmp(info.backend, "cuda") == 0);
    CK_REQUIRE(bytes > 0 && mla_run(plan, &c.problem, (void *)(uintptr_t)workspace, bytes - 1, stream) ==
                                MLA_STATUS_WORKSPACE_TOO_SMALL);
    mla_problem other = c.problem;
    other.softmax_scale *= 2; /* no part of the plan */
    CK_REQUIRE(mla_run(plan, &other, (void *)(uintptr_t)workspace, bytes, stream) == MLA_STATUS_OK);
    other.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
    CK_REQUIRE(mla_run(plan, &other, (void *)(uintptr_t)workspace, bytes, stream) == MLA_STATUS_STALE_PLAN);
    CK_REQUIRE(mla_run(plan, &p, (void *)(uintptr_t)workspace, bytes, NULL) == MLA_STATUS_STALE_PLAN);
    CK_REQUIRE(mla_attention(&c.problem, &(mla_plan_options){.backend = MLA_BACKEND_CPU}) == MLA_STATUS_BAD_DEVICE);
    CK_REQUIRE(mla_attention(&p, &(mla_plan_options){.backend = MLA_BACKEND_CUDA}) == MLA_STATUS_BAD_DEVICE);
    CK_REQUIRE(mla_attention(&p, &(mla_plan_options){.stream = stream}) == MLA_STATUS_BAD_VALUE);
    ck_cuda_require(driver()->cuStreamSynchronize(stream), "the last run");
    mla_plan_free(plan);
}

/* ---- batch invariance -------------------------------------------------------------------------------------------- */

static void run_invariant(const mla_problem *p)
{
    ck_cuda_problem c;
    mla_plan *plan;
    size_t bytes;
    ck_cuda_make(&c, p);
    if (mla_plan_build(&c.problem, &(mla_plan_options){.batch_invariant = true}, &plan) != MLA_STATUS_OK) {
        ck_fail("mla_plan_build refuses: %s", mla_last_error());
    }
    cuda_address workspace = ck_cuda_workspace(plan, &bytes);
    run_on(plan, &c, workspace, bytes, NULL);
    ck_cuda_fetch(&c);
    mla_plan_free(plan);
    if (workspace) {
        driver()->cuMemFree_v2(workspace);
    }
    ck_cuda_end(&c);
}

/* The f32 rows of one token of one sequence, all heads: the same bits? */
static bool same_rows(const mla_problem *a, int64_t seq_a, int64_t token_a, const mla_problem *b, int64_t seq_b,
                      int64_t token_b)
{
    const mla_tensor *x = &a->o, *y = &b->o, *l = &a->lse, *m = &b->lse;
    for (int64_t h = 0; h < x->dim[2]; h++) {
        for (int64_t d = 0; d < x->dim[3]; d++) {
            const int64_t at = seq_a * x->stride[0] + token_a * x->stride[1] + h * x->stride[2] + d * x->stride[3];
            const int64_t to = seq_b * y->stride[0] + token_b * y->stride[1] + h * y->stride[2] + d * y->stride[3];
            if (memcmp((float *)x->data + at, (float *)y->data + to, sizeof(float)) != 0) {
                return false;
            }
        }
        const int64_t at = seq_a * l->stride[0] + token_a * l->stride[1] + h * l->stride[2];
        const int64_t to = seq_b * m->stride[0] + token_b * m->stride[1] + h * m->stride[2];
        if (memcmp((float *)l->data + at, (float *)m->data + to, sizeof(float)) != 0) {
            return false;
        }
    }
    return true;
}

/* Each sequence of a batch alone, on other pages, and its tokens one at a time. */
static void expect_invariant(ck_config config, bool token_by_token)
{
    char text[200];
    mla_problem all;
    size_t mark = ck_mark();
    config.o_dtype = MLA_DTYPE_F32;
    config.has_id = true;
    for (int64_t s = 0; s < config.n_seq; s++) {
        config.id[s] = s;
    }
    ck_describe(&config, text, sizeof text);
    ck_context("%s", text);
    ck_make(&config, &all);
    run_invariant(&all);
    ck_compare(&all, false, CK_WORK);
    for (int64_t s = 0; s < config.n_seq; s++) {
        ck_config one = config;
        mla_problem alone;
        one.n_seq = 1;
        one.id[0] = s;
        one.layout_seed++;
        ck_make(&one, &alone);
        run_invariant(&alone);
        for (int64_t i = 0; i < config.n_q; i++) {
            if (!same_rows(&all, s, i, &alone, 0, i)) {
                ck_fail("sequence %lld, token %lld: other bits alone than in the batch", (long long)s, (long long)i);
            }
        }
        for (int64_t i = 0; token_by_token && i < config.n_q; i++) {
            const mla_tensor *q = &alone.q;
            mla_problem single = ck_with_new_outputs(&alone, CK_DENSE);
            const int64_t behind = config.n_q - 1 - i, length = ((int32_t *)alone.segment[0].length.data)[0] - behind;
            single.q.data = (char *)q->data + i * q->stride[1] * (int64_t)mla_dtype_size(q->dtype);
            single.q.dim[1] = single.o.dim[1] = single.lse.dim[1] = 1;
            single.max = (mla_tensor){0};
            single.segment[0].length = ck_tensor("length", MLA_DTYPE_I32, 1, (int64_t[]){1}, CK_DENSE);
            *(int32_t *)single.segment[0].length.data = (int32_t)length;
            run_invariant(&single);
            if (!same_rows(&alone, 0, i, &single, 0, 0)) {
                ck_fail("sequence %lld: other bits for token %lld alone than with its neighbours", (long long)s,
                        (long long)i);
            }
        }
    }
    ck_context("%s", "");
    ck_release(mark);
}

static void check_invariant(void)
{
    static const int64_t heads[] = {3, 16, 70};
    for (int i = 0; i < 3; i++) {
        ck_config c = ck_config_plain(4, 3, heads[i], 64, 48, 0);
        c.segment[0].n_length = 4;
        memcpy(c.segment[0].length, (int64_t[]){i == 0 ? 7000 : 2500, 63, 2049, 900}, 4 * sizeof(int64_t));
        c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
        expect_invariant(c, true);
        c.segment[0].visible = (mla_visible){.rule = MLA_VISIBLE_WINDOW, .left = 333, .right = 0, .ratio = 1};
        expect_invariant(c, true);
        c.segment[0].visible = (mla_visible){.rule = MLA_VISIBLE_ALL, .left = -1, .right = -1, .ratio = 1};
        c.segment[0].list = CK_LOGICAL;
        c.segment[0].n_entry = 2300;
        c.segment[0].list_length = CK_PER_TOKEN;
        c.n_segment = 2;
        c.segment[1] = ck_config_plain(4, 3, heads[i], 64, 48, 300).segment[0];
        expect_invariant(c, false);
    }
    ck_config c = ck_config_plain(3, 2, 20, 64, 48, 500);
    c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
    c.p_rounding = MLA_P_ROUND_16BIT;
    c.p_tile = 128;
    c.q_dtype = c.segment[0].dtype = MLA_DTYPE_F16;
    expect_invariant(c, true);
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* A list with more entries than there are keys: under ALL every entry counts, under the other rules as many as keys are
 * seen; with STOP up to the first negative one. As on the CPU, the oracle says. */
static void check_long_lists(void)
{
    for (int x = 0; x < 32; x++) {
        ck_config c = ck_config_plain(3, 2, x & 1 ? 20 : 3, 64, 48, 0);
        c.seed += (uint64_t)x;
        c.segment[0].n_length = 3;
        memcpy(c.segment[0].length, (int64_t[]){5, 40, 17}, 3 * sizeof(int64_t));
        c.segment[0].list = CK_LOGICAL;
        c.segment[0].n_entry = 90;
        c.segment[0].list_rule = x & 2 ? MLA_LIST_STOP : MLA_LIST_SKIP;
        c.segment[0].visible.rule = (mla_visible_rule)(x >> 2 & 3);
        c.segment[0].visible.ratio = 2;
        c.segment[0].visible.left = c.segment[0].visible.rule == MLA_VISIBLE_WINDOW ? 20 : -1;
        if (x & 16) {
            c.p_rounding = MLA_P_ROUND_16BIT;
            c.p_tile = 32;
            c.q_dtype = c.segment[0].dtype = MLA_DTYPE_F16;
        }
        ck_check_config(&c);
    }
}

/* ---- the flash_mla door ------------------------------------------------------------------------------------------ */

/* The scheduler on the GPU writes the bytes that the host's writes. */
static void check_metadata(void)
{
    ck_random r = {ck_hash(ck_seed, 11)};
    for (int round = 0; round < 40; round++) {
        size_t mark = ck_mark();
        int64_t b = round < 30 ? ck_below(&r, 40) : ck_between(&r, 1000, 5000), n_part = ck_between(&r, 1, 140);
        mla_tensor lengths = ck_tensor("cache_seqlens", MLA_DTYPE_I32, 1, &b, CK_DENSE);
        for (int64_t i = 0; i < b; i++) {
            int64_t length = ck_chance(&r, 0.2) ? ck_between(&r, -2, 65) : ck_between(&r, 0, 20000);
            ((int32_t *)lengths.data)[i] = (int32_t)length;
        }
        mla_tensor part = ck_tensor("metadata", MLA_DTYPE_I32, 2, (int64_t[]){n_part, 8}, CK_DENSE);
        mla_tensor splits = ck_tensor("num_splits", MLA_DTYPE_I32, 1, (int64_t[]){b + 1}, CK_DENSE);
        size_t lengths_bytes = (size_t)b * 4, part_bytes = (size_t)n_part * 32, splits_bytes = (size_t)(b + 1) * 4;
        CK_REQUIRE(flash_mla_get_metadata(&lengths, 16, 1, &part, &splits) == MLA_STATUS_OK);
        cuda_address memory;
        ck_cuda_require(driver()->cuMemAlloc_v2(&memory, lengths_bytes + part_bytes + splits_bytes), "allocating");
        mla_tensor on[3] = {splits, part, lengths};
        cuda_address at = memory;
        for (int i = 0; i < 3; i++) {
            on[i].data = (void *)(uintptr_t)at;
            on[i].device = (mla_device){MLA_DEVICE_CUDA, 0};
            at += i == 0 ? splits_bytes : part_bytes;
        }
        cuda_address source = memory + splits_bytes + part_bytes;
        if (b > 0) {
            ck_cuda_require(driver()->cuMemcpyHtoDAsync_v2(source, lengths.data, lengths_bytes, NULL), "copying");
        }
        cuda_stream stream = make_stream();
        ck_cuda_require(driver()->cuStreamSynchronize(NULL), "copying");
        if (flash_mla_get_metadata_on(stream, &on[2], 16, 1, &on[1], &on[0]) != MLA_STATUS_OK) {
            ck_fail("flash_mla_get_metadata_on refuses: %s", mla_last_error());
        }
        ck_cuda_require(driver()->cuStreamSynchronize(stream), "the scheduler");
        int32_t *got = ck_buffer("copy", part_bytes + splits_bytes);
        ck_cuda_require(driver()->cuMemcpyDtoHAsync_v2(got, memory, part_bytes + splits_bytes, NULL), "copying back");
        ck_cuda_require(driver()->cuStreamSynchronize(NULL), "copying back");
        if (memcmp(got, splits.data, splits_bytes) != 0 ||
            memcmp((char *)got + splits_bytes, part.data, part_bytes) != 0) {
            ck_fail("%lld requests over %lld parts: the GPU's schedule differs from the host's", (long long)b,
                    (long long)n_part);
        }
        driver()->cuMemFree_v2(memory);
        driver()->cuStreamDestroy_v2(stream);
        ck_release(mark);
    }
    int64_t n_part = 0;
    CK_REQUIRE(flash_mla_num_parts_on((mla_device){MLA_DEVICE_CUDA, 0}, 128, 1, &n_part) == MLA_STATUS_OK);
    CK_REQUIRE(n_part >= 1);
}

const ck_test ck_cuda_tests[] = {
    {.name = "cuda/heads", .run = check_every_head_count, .cuda = true},
    {.name = "cuda/wide", .run = check_wide, .cuda = true},
    {.name = "cuda/bad_values", .run = check_bad_values, .cuda = true},
    {.name = "cuda/garbage", .run = check_garbage, .cuda = true},
    {.name = "cuda/graph", .run = check_graph, .cuda = true},
    {.name = "cuda/streams", .run = check_streams, .cuda = true},
    {.name = "cuda/far", .run = check_far, .cuda = true},
    {.name = "cuda/invariant", .run = check_invariant, .cuda = true},
    {.name = "cuda/long_lists", .run = check_long_lists, .cuda = true},
    {.name = "cuda/metadata", .run = check_metadata, .cuda = true},
    {.name = "cuda/calls", .run = check_calls, .cuda = true},
    {0},
};
