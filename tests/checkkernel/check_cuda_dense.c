/*
 * check_cuda_dense.c - dense decode on Hopper GPUs, where kernels of their own run it: each problem here must reach one of
 * them, and both of two runs in one workspace must agree with the oracle.
 */
#include <string.h>

#include "cases.h"
#include "subject_cuda.h"

static const mla_cuda_driver *driver(void)
{
    return ck_cuda_enter()->driver;
}

static void require_hopper(void)
{
    const mla_cuda_device *device = ck_cuda_enter();
    if (device->compute_capability != 90) {
        ck_skip("%s is no Hopper GPU", device->name);
    }
}

static const char *kernels_of(const mla_plan *plan)
{
    mla_plan_info info;
    CK_REQUIRE(mla_plan_describe(plan, &info) == MLA_STATUS_OK);
    return info.isa;
}

static mla_plan *make_plan(const mla_problem *problem)
{
    mla_plan *plan;
    if (mla_plan_build(problem, NULL, &plan) != MLA_STATUS_OK) {
        ck_fail("mla_plan_build refuses: %s", mla_last_error());
    }
    if (!ck_cuda_note_kernels(plan, problem)) {
        ck_fail("the plan is for the kernels '%s'", kernels_of(plan));
    }
    return plan;
}

static void run_on(const mla_plan *plan, const mla_problem *p, cuda_address workspace, size_t bytes)
{
    if (mla_run(plan, p, (void *)(uintptr_t)workspace, bytes, NULL) != MLA_STATUS_OK) {
        ck_fail("mla_run refuses: %s", mla_last_error());
    }
}

/* Between tensors of the same strides, gaps included. */
static void copy_alike(const mla_tensor *to, const mla_tensor *from)
{
    int64_t extent = 1;
    for (int32_t i = 0; i < from->ndim; i++) {
        CK_REQUIRE(to->stride[i] == from->stride[i] && from->dim[i] > 0);
        extent += (from->dim[i] - 1) * from->stride[i];
    }
    memcpy(to->data, from->data, (size_t)extent * mla_dtype_size(from->dtype));
}

/* Returns the name of the kernels. */
static const char *check_once(const ck_config *config)
{
    size_t mark = ck_mark(), bytes;
    char text[300];
    mla_problem p;
    ck_cuda_problem c;
    ck_describe(config, text, sizeof text);
    ck_context("%s", text);
    ck_make(config, &p);
    ck_cuda_make(&c, &p);
    mla_plan *plan = make_plan(&c.problem);
    cuda_address workspace = ck_cuda_workspace(plan, &bytes);
    mla_problem first = ck_with_new_outputs(&p, config->layout);
    for (int i = 0; i < 2; i++) {
        ck_reset_outputs(&p);
        for (int x = 0; x < c.n_twin; x++) {
            if (c.twin[x].output) {
                ck_cuda_upload(&c.twin[x]);
            }
        }
        run_on(plan, &c.problem, workspace, bytes);
        ck_cuda_fetch(&c);
        if (i == 0) {
            ck_compare(&p, ck_inputs_structured(config->inputs), CK_WORK / 3);
            copy_alike(&first.o, &p.o);
            copy_alike(&first.lse, &p.lse);
        } else {
            ck_same_bits(&first, &p, "the first and the second run in a workspace");
        }
    }
    const char *kernels = kernels_of(plan);
    mla_plan_free(plan);
    driver()->cuMemFree_v2(workspace);
    ck_cuda_end(&c);
    ck_release(mark);
    ck_context("%s", "");
    return kernels;
}

/* A page table of this width can hold more keys than are read once for each of several blocks of rows. */
static void widen(ck_config *config)
{
    config->segment[0].spare_pages = 64 * 1024 / config->segment[0].page_size;
}

static void check_with(const ck_config *config, const char *expected)
{
    const char *kernels = check_once(config);
    if (strcmp(kernels, expected) != 0) {
        ck_fail("the kernels '%s' run %d requests of what may be %d pages", kernels, (int)config->n_seq,
                (int)config->segment[0].spare_pages);
    }
}

/* Where many rows are few tiles they are cut into blocks. Then what runs where tiles are many runs too, and, for up to 64
 * rows, what runs where requests are many. */
static void check(const ck_config *config)
{
    const int64_t rows = config->n_q * config->n_head / config->n_kv_head, many = 8 / config->n_kv_head + 1;
    const char *kernels = check_once(config);
    if (rows <= 32) {
        return;
    }
    ck_config wide = *config;
    widen(&wide);
    if (strcmp(kernels, "dense_few_sm90") == 0) {
        check_with(&wide, rows > 64 || config->n_seq * config->n_kv_head < 8 ? "dense_sm90" : "dense_few_sm90");
    }
    if (rows <= 64 && config->n_seq < many && config->segment[0].length[0] < 10000) {
        wide.n_seq = many;
        check_with(&wide, "dense_few_sm90");
    }
}

static ck_config dense(int64_t n_seq, int64_t n_q, int64_t n_head, int64_t d_k, const int64_t *length)
{
    ck_config c = ck_config_plain(n_seq, n_q, n_head, d_k, 512, 0);
    c.o_dtype = c.q_dtype;
    c.want_max = false;
    c.segment[0].visible.rule = n_q > 1 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
    c.segment[0].n_length = n_seq;
    memcpy(c.segment[0].length, length, (size_t)n_seq * sizeof *length);
    return c;
}

static void use_f16(ck_config *c)
{
    c->q_dtype = c->o_dtype = c->segment[0].dtype = MLA_DTYPE_F16;
}

static void check_heads(void)
{
    require_hopper();
    static const int64_t heads[] = {1, 2, 7, 8, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 200};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        ck_config c = dense(2, 1, heads[i], i % 3 == 2 ? 512 : 576, (int64_t[]){200, 130});
        if (i % 2) {
            use_f16(&c);
        }
        check(&c);
    }
    static const int64_t shared[][2] = {{4, 2}, {128, 2}, {20, 4}, {256, 2}, {130, 10}, {192, 3}, {80, 2}};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        ck_config c = dense(2, 1 + (int64_t)i % 3, shared[i][0], 576, (int64_t[]){300, 65});
        c.n_kv_head = shared[i][1];
        check(&c);
    }
}

static void check_lengths(void)
{
    require_hopper();
    static const int64_t edges[] = {0,  1,  2,   31,  32,  33,  63,  64,  65,  95,
                                    96, 97, 127, 128, 129, 191, 192, 193, 255, 256};
    ck_config c = dense(20, 1, 64, 576, edges);
    check(&c);
    c.segment[0].page_size = 192;
    check(&c);
    c = dense(20, 3, 40, 512, edges);
    use_f16(&c);
    check(&c);
    c = dense(20, 5, 16, 576, edges);
    c.lse_base = MLA_LSE_BASE2;
    c.lse_empty = MLA_LSE_EMPTY_NEG_INF;
    check(&c);
    c.segment[0].visible.rule = MLA_VISIBLE_ALL;
    check(&c);
    c = dense(1, 1, 128, 576, (int64_t[]){0});
    check(&c);
}

static void check_pages(void)
{
    require_hopper();
    static const int64_t pages[] = {64, 128, 192, 320, 576, 1024, 4096};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        ck_config c = dense(3, 1 + (int64_t)i % 2, 64, i % 2 ? 512 : 576, (int64_t[]){1300, 64, 577});
        c.segment[0].page_size = pages[i];
        c.poison = i % 2 ? CK_POISON_INF : CK_POISON_NAN;
        check(&c);
    }
}

/* Rows with gaps between them, q's and o's too, so that tokens do not follow each other like heads. */
static void check_strides(void)
{
    require_hopper();
    static const int64_t shapes[][3] = {{1, 128, 1}, {3, 40, 1}, {2, 130, 2}, {4, 99, 3}, {2, 16, 1}, {2, 24, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        ck_config c = dense(3, shapes[i][0], shapes[i][1], i % 2 ? 512 : 576, (int64_t[]){300, 65, 4000});
        c.n_kv_head = shapes[i][2];
        c.layout = CK_SPACED;
        check(&c);
    }
}

/* A plan for blocks of rows goes on when the page table has become wider: plans do not depend on that. */
static void check_growth(void)
{
    require_hopper();
    ck_config narrow = dense(2, 2, 64, 576, (int64_t[]){400, 65}), wide = narrow;
    widen(&wide);
    mla_problem p[2];
    ck_cuda_problem c[2];
    ck_make(&narrow, &p[0]);
    ck_make(&wide, &p[1]);
    CK_REQUIRE(p[0].segment[0].page_table.dim[1] + wide.segment[0].spare_pages == p[1].segment[0].page_table.dim[1]);
    for (int i = 0; i < 2; i++) {
        ck_cuda_make(&c[i], &p[i]);
    }
    mla_plan *plan = make_plan(&c[0].problem);
    CK_REQUIRE(strcmp(kernels_of(plan), "dense_few_sm90") == 0);
    size_t bytes;
    cuda_address workspace = ck_cuda_workspace(plan, &bytes);
    for (int i = 0; i < 2; i++) {
        run_on(plan, &c[i].problem, workspace, bytes);
        ck_cuda_fetch(&c[i]);
        ck_compare(&p[i], false, CK_WORK / 3);
    }
    ck_same_bits(&p[0], &p[1], "a narrow and a wide page table");
    mla_plan_free(plan);
    driver()->cuMemFree_v2(workspace);
    ck_cuda_end(&c[0]);
    ck_cuda_end(&c[1]);
}

/* Requests that are cut once: who folds the two pieces depends on time, the bits do not. */
static void check_pairs(void)
{
    require_hopper();
    static const int64_t cases[][3] = {{1, 256, 32}, {2, 256, 32},  {24, 1000, 32},
                                       {8, 256, 64}, {11, 256, 40}, {24, 1000, 64}};
    for (size_t x = 0; x < sizeof cases / sizeof *cases; x++) {
        const int64_t n_seq = cases[x][0];
        const int64_t n_kv_head = n_seq < 24 ? 1 : 4;
        ck_config config = dense(1, 1, cases[x][2] * n_kv_head, 576, &cases[x][1]);
        config.n_seq = n_seq, config.n_kv_head = n_kv_head;
        widen(&config); /* else rows are cut into blocks that are too small for it */
        mla_problem p;
        ck_cuda_problem c;
        size_t mark = ck_mark(), bytes;
        ck_context("%d requests, %d rows", (int)n_seq, (int)cases[x][2]);
        ck_make(&config, &p);
        ck_cuda_make(&c, &p);
        mla_plan *plan = make_plan(&c.problem);
        cuda_address workspace = ck_cuda_workspace(plan, &bytes);
        mla_problem first = ck_with_new_outputs(&p, config.layout);
        for (int i = 0; i < 60; i++) {
            run_on(plan, &c.problem, workspace, bytes);
            ck_cuda_fetch(&c);
            if (i == 0) {
                ck_compare(&p, false, CK_WORK / 3);
                copy_alike(&first.o, &p.o);
                copy_alike(&first.lse, &p.lse);
            } else {
                ck_same_bits(&first, &p, "the first and a later run");
            }
        }
        mla_plan_free(plan);
        driver()->cuMemFree_v2(workspace);
        ck_cuda_end(&c);
        ck_release(mark);
    }
    ck_context("%s", "");
}

/* From one part a request to hundreds, and from one request a part to many. */
static void check_parts(void)
{
    require_hopper();
    static const int64_t mixed[] = {3000, 64, 700, 1, 1500, 900, 0, 5000, 128, 65, 2000, 300};
    static const int64_t even[] = {1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000};
    ck_config c = dense(1, 1, 128, 576, (int64_t[]){20000});
    check(&c);
    c = dense(1, 1, 64, 512, (int64_t[]){40000});
    check(&c);
    c = dense(3, 1, 48, 576, (int64_t[]){9000, 0, 5000});
    check(&c);
    c = dense(12, 1, 128, 576, mixed);
    check(&c);
    c = dense(12, 4, 128, 576, mixed); /* 16 parts */
    check(&c);
    c = dense(8, 4, 128, 576, even);
    use_f16(&c);
    check(&c);
    c = dense(12, 8, 128, 512, mixed); /* 8 parts */
    check(&c);
    c = dense(12, 8, 100, 576, mixed); /* blocks of two tokens */
    check(&c);
    c = dense(3, 20, 128, 576, mixed); /* 3 parts */
    check(&c);
    c = dense(3, 40, 128, 576, mixed); /* a single one */
    check(&c);
}

static void check_inputs(void)
{
    require_hopper();
    for (int i = 0; i < CK_CODES_Q; i++) {
        ck_config c = dense(3, 1 + i % 2, 64, 576, (int64_t[]){700, 65, 300});
        c.inputs = (ck_inputs)i;
        check(&c);
        use_f16(&c);
        c.inputs = i == CK_LARGE_Q || i == CK_HUGE_LOGITS ? CK_RISING : c.inputs;
        check(&c);
    }
}

/* What is not finite in the key that only the last token sees is that token's alone. */
static void check_hidden(void)
{
    require_hopper();
    static const struct {
        int64_t n_q, n_head, length;
    } cases[] = {{3, 16, 129}, {4, 10, 64}, {2, 33, 300}, {17, 3, 80}, {3, 11, 129}, {2, 31, 300}, {2, 128, 100}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int how = 0; how < 8; how++) {
            size_t mark = ck_mark(), bytes;
            int64_t n_q = cases[i].n_q, length = cases[i].length;
            ck_config config = dense(1, n_q, cases[i].n_head, 576, &length);
            if (how & 1) {
                use_f16(&config);
            }
            if (how & 4) {
                widen(&config);
            }
            mla_problem p;
            ck_cuda_problem c;
            ck_context("%d tokens, %d heads, case %d", (int)n_q, (int)cases[i].n_head, how);
            ck_make(&config, &p);
            const mla_segment *s = &p.segment[0];
            int32_t page = ((int32_t *)s->page_table.data)[(length - 1) / 64];
            uint16_t *row = (uint16_t *)s->k.data + ck_offset(&s->k, page, (length - 1) % 64, 0, 0);
            ck_writable(s->k.data);
            const uint16_t infinity = how & 1 ? 0x7c00 : 0x7f80;
            row[3] = row[300] = how & 2 ? infinity : (uint16_t)(infinity | 0x8041);
            ck_cuda_make(&c, &p);
            mla_plan *plan = make_plan(&c.problem);
            cuda_address workspace = ck_cuda_workspace(plan, &bytes);
            run_on(plan, &c.problem, workspace, bytes);
            ck_cuda_fetch(&c);
            /* the other tokens, which are now the only ones */
            mla_problem rest = p;
            rest.q.dim[1] = rest.o.dim[1] = rest.lse.dim[1] = n_q - 1;
            int32_t shorter = (int32_t)length - 1;
            rest.segment[0].length = case_i32("length", 1, &shorter);
            ck_compare(&rest, false, CK_WORK / 3);
            mla_plan_free(plan);
            driver()->cuMemFree_v2(workspace);
            ck_cuda_end(&c);
            ck_release(mark);
        }
    }
    ck_context("%s", "");
}

/* A workspace that held anything, or what another problem left. */
static void check_workspace(void)
{
    require_hopper();
    static const int64_t lengths[] = {3000, 64, 700, 1, 1500, 900, 0, 5000, 128, 65, 2000, 300};
    enum { N = 4 };
    mla_problem p[N];
    ck_cuda_problem c[N];
    mla_plan *plan[N];
    size_t bytes[N], most = 0;
    for (int i = 0; i < N; i++) {
        ck_config config = dense(12 - 3 * i, 1 + i, i == 2 ? 64 : 128, i == 1 ? 512 : 576, lengths + i);
        ck_make(&config, &p[i]);
        ck_cuda_make(&c[i], &p[i]);
        plan[i] = make_plan(&c[i].problem);
        bytes[i] = mla_plan_workspace_bytes(plan[i]);
        most = bytes[i] > most ? bytes[i] : most;
    }
    cuda_address workspace;
    ck_cuda_require(driver()->cuMemAlloc_v2(&workspace, most), "allocating");
    uint8_t *fill = ck_buffer("garbage", most);
    ck_random r = {ck_seed};
    for (int round = 0; round < 3; round++) {
        if (round < 2) {
            for (size_t i = 0; i < most; i++) {
                fill[i] = round == 0 ? 0 : (uint8_t)ck_next(&r);
            }
            ck_cuda_require(driver()->cuMemcpyHtoDAsync_v2(workspace, fill, most, NULL), "filling the workspace");
        }
        for (int i = 0; i < N; i++) {
            ck_reset_outputs(&p[i]);
            for (int x = 0; x < c[i].n_twin; x++) {
                if (c[i].twin[x].output) {
                    ck_cuda_upload(&c[i].twin[x]);
                }
            }
            run_on(plan[i], &c[i].problem, workspace, bytes[i]);
            ck_cuda_fetch(&c[i]);
            ck_context("round %d, problem %d", round, i);
            ck_compare(&p[i], false, CK_WORK / 8);
        }
    }
    ck_context("%s", "");
}

const ck_test ck_cuda_dense_tests[] = {
    {.name = "dense/heads", .run = check_heads, .cuda = true},
    {.name = "dense/lengths", .run = check_lengths, .cuda = true},
    {.name = "dense/pages", .run = check_pages, .cuda = true},
    {.name = "dense/strides", .run = check_strides, .cuda = true},
    {.name = "dense/growth", .run = check_growth, .cuda = true},
    {.name = "dense/pairs", .run = check_pairs, .cuda = true},
    {.name = "dense/parts", .run = check_parts, .cuda = true},
    {.name = "dense/inputs", .run = check_inputs, .cuda = true},
    {.name = "dense/hidden", .run = check_hidden, .cuda = true},
    {.name = "dense/workspace", .run = check_workspace, .cuda = true},
    {0},
};
