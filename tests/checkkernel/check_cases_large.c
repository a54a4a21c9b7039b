/*
 * check_cases_large.c - fault reports about offsets and sizes (B). See check_cases.c.
 *
 * Pools of many gigabytes are address space only: memory is used where a row is written. A machine that does not give
 * the address space skips the test by name.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "ref/number.h"

/* One request whose only page lies far out in a huge pool. Every value is 1, so o is 1 wherever the right page was
 * read; any other page is zeros. */
static void far_page(int64_t n_page, int64_t page_size, int64_t d_k, int64_t d_v, int64_t h_q, mla_dtype dtype,
                     int32_t page)
{
    size_t mark = ck_mark();
    int32_t length = page_size < 5 ? (int32_t)page_size : 5;
    mla_problem p = case_dense(&(case_shape){.b = 1,
                                             .s_q = 1,
                                             .h_q = h_q,
                                             .page = page_size,
                                             .d_k = d_k,
                                             .d_v = d_v,
                                             .dtype = dtype},
                               &length);
    mla_segment *s = &p.segment[0];
    int64_t dim[4] = {n_page, page_size, 1, d_k};
    s->k = mla_tensor_make(NULL, dtype, 4, dim);
    s->k.data = ck_sparse("k_cache", (size_t)(n_page * s->k.stride[0]) * mla_dtype_size(dtype));
    case_fill(&s->k, page * s->k.stride[0], length * d_k, 1);
    *(int32_t *)s->page_table.data = page;
    ck_context("page %d of %lld, %lld rows of %lld %s, %lld heads", (int)page, (long long)n_page, (long long)page_size,
               (long long)d_k, mla_dtype_name(dtype), (long long)h_q);
    case_run(&p);
    case_expect(&p, 0, 0, 1, log((double)length));
    ck_release(mark);
}

static void case_b1(void)
{
    far_page(262144 + 4, 32, 512, 512, 16, MLA_DTYPE_BF16, 262144 + 3); /* page * 16384 wraps at 2^32 */
}

static void case_b3(void)
{
    far_page(233018, 16, 576, 512, 16, MLA_DTYPE_BF16, 233017); /* page * 9216 passes 2^31 */
}

static void case_b5(void)
{
    static const int64_t heads[] = {1, 8, 16, 20, 32, 64, 128};
    static const mla_dtype dtypes[] = {MLA_DTYPE_BF16, MLA_DTYPE_F16, MLA_DTYPE_F32};
    for (int x = 0; x < 7; x++) {
        for (int t = 0; t < 3; t++) {
            far_page(120000, 64, 576, 512, heads[x], dtypes[t], 119999); /* beyond 2^32 elements */
        }
    }
}

static void case_b6(void)
{
    static const int32_t pages[] = {0,     29127, 29128,
                                    58254, 58255, 58256}; /* around 2^31 and 2^32 bytes, 2^31 elements */
    for (int x = 0; x < 6; x++) {
        far_page(pages[x] + 1, 64, 576, 512, 16, MLA_DTYPE_BF16, pages[x]); /* the pool just reaches there */
        far_page(60000, 64, 576, 512, 16, MLA_DTYPE_BF16, pages[x]);
    }
}

static void case_b7(void)
{
    far_page((int64_t)9 << 20, 16, 576, 512, 16, MLA_DTYPE_BF16, 2);
    far_page((int64_t)9 << 20, 16, 576, 512, 16, MLA_DTYPE_BF16, (9 << 20) - 1);
    far_page((int64_t)1 << 31, 1, 64, 64, 16, MLA_DTYPE_BF16, INT32_MAX); /* the last page there can be */
}

/* Not paged: the same offsets through the strides of a batched and of a packed cache, and through a PHYSICAL list. */
static void case_b7_unpaged(void)
{
    size_t mark = ck_mark();
    int64_t far = 4500000, dim[3] = {far + 5, 1, 576};
    mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){5});
    mla_segment *s = &p.segment[0];
    s->k = mla_tensor_make(NULL, MLA_DTYPE_BF16, 3, dim);
    s->k.data = ck_sparse("k", (size_t)(dim[0] * 576) * 2);
    case_fill(&s->k, far * 576, 5 * 576, 1); /* beyond 2^31 elements */
    s->page_table = (mla_tensor){0};
    s->k_begin = case_i32("k_begin", 2, (int32_t[]){(int32_t)far, (int32_t)far + 5});
    ck_context("packed");
    case_run(&p);
    case_expect(&p, 0, 0, 1, log(5.0));

    ck_reset_outputs(&p);
    s->list = ck_tensor("list", MLA_DTYPE_I32, 3, (int64_t[]){1, 1, 5}, CK_DENSE);
    for (int j = 0; j < 5; j++) {
        ((int32_t *)s->list.data)[j] = (int32_t)far + j;
    }
    s->list_address = MLA_LIST_PHYSICAL;
    s->length = (mla_tensor){0};
    ck_context("physical list");
    case_run(&p);
    case_expect(&p, 0, 0, 1, log(5.0));

    ck_reset_outputs(&p);
    mla_tensor rows = s->k;
    s->list = s->k_begin = (mla_tensor){0};
    s->list_address = MLA_LIST_LOGICAL;
    s->k = mla_tensor_make(rows.data, MLA_DTYPE_BF16, 4, (int64_t[]){2, far, 1, 576}); /* two sequences of far rows */
    p.q = ck_tensor("q", MLA_DTYPE_BF16, 4, (int64_t[]){2, 1, 16, 576}, CK_DENSE);
    memset(p.q.data, 0, 2 * 16 * 576 * sizeof(uint16_t));
    p.o = ck_tensor("o", MLA_DTYPE_BF16, 4, (int64_t[]){2, 1, 16, 512}, CK_DENSE);
    p.lse = ck_tensor("lse", MLA_DTYPE_F32, 3, (int64_t[]){2, 1, 16}, CK_DENSE);
    s->length = case_i32("length", 2, (int32_t[]){0, 5});
    s->k.data = ck_sparse("k", (size_t)(2 * far * 576) * 2);
    case_fill(&s->k, far * 576, 5 * 576, 1);
    ck_context("batched");
    case_run(&p);
    case_expect(&p, 0, 0, 0, INFINITY);
    case_expect(&p, 1, 0, 1, log(5.0));
    ck_release(mark);
}

/* More than 2^31 elements of q and of o: the last tokens of 131,073, 16 heads, rows 1024 elements apart. Only they are
 * in use, so that the rest costs no memory. */
static void case_b10(void)
{
    int64_t n_token = 131073, h = 16, gap = 1024, d = 64, used = 40, first = n_token - used;
    mla_problem far;
    mla_problem_init(&far);
    far.q = mla_tensor_make(NULL, MLA_DTYPE_BF16, 3, (int64_t[]){n_token, h, d});
    far.o = mla_tensor_make(NULL, MLA_DTYPE_F32, 3, (int64_t[]){n_token, h, d});
    far.q.stride[0] = far.o.stride[0] = h * gap;
    far.q.stride[1] = far.o.stride[1] = gap;
    size_t extent = (size_t)((n_token * h - 1) * gap + d);
    far.q.data = ck_sparse("q", extent * 2);
    far.o.data = ck_sparse("o", extent * 4);
    far.q_begin = case_i32("q_begin", 2, (int32_t[]){(int32_t)first, (int32_t)n_token});
    far.d_v = d;
    far.softmax_scale = 0.125f;
    mla_segment *s = &far.segment[0];
    s->k = ck_tensor("k", MLA_DTYPE_BF16, 4, (int64_t[]){1, 100, 1, d}, CK_DENSE);
    s->visible.rule = MLA_VISIBLE_CAUSAL;
    double row[64];
    for (int64_t t = 0; t < 100; t++) {
        ck_key_row(CK_NORMAL, ck_seed, MLA_DTYPE_BF16, t, 100, d, row);
        for (int64_t c = 0; c < d; c++) {
            mla_ref_store(s->k.data, MLA_DTYPE_BF16, t * d + c, row[c]);
        }
    }
    mla_problem near = far;
    near.q = ck_tensor("q", MLA_DTYPE_BF16, 3, (int64_t[]){used, h, d}, CK_DENSE);
    near.o = ck_tensor("o", MLA_DTYPE_F32, 3, (int64_t[]){used, h, d}, CK_DENSE);
    near.q_begin = case_i32("q_begin", 2, (int32_t[]){0, (int32_t)used});
    for (int64_t i = 0; i < used * h; i++) {
        ck_query_row(CK_NORMAL, ck_hash(ck_seed, (uint64_t)i), MLA_DTYPE_BF16, d, row);
        for (int64_t c = 0; c < d; c++) {
            mla_ref_store(near.q.data, MLA_DTYPE_BF16, i * d + c, row[c]);
            mla_ref_store(far.q.data, MLA_DTYPE_BF16, (first * h + i) * gap + c, row[c]);
        }
    }
    case_run(&near);
    ck_compare(&near, false, CK_WORK);
    case_run(&far);
    mla_problem tail = far;
    tail.o.data = (float *)far.o.data + first * far.o.stride[0];
    tail.o.dim[0] = used;
    ck_same_bits(&near, &tail, "tokens beyond 2^31 elements and the same tokens in front");
}

static void case_b11(void)
{
    enum { N = 65536 };
    int32_t *length = malloc(N * sizeof *length);
    for (int i = 0; i < N; i++) {
        length[i] = 1;
    }
    mla_problem p = case_dense(&(case_shape){.b = N, .s_q = 1, .h_q = 1, .page = 1, .d_k = 64, .d_v = 64}, length);
    free(length);
    for (int64_t t = 0; t < N; t++) {
        case_fill(&p.segment[0].k, t * 64, 64, (double)(t % 251));
    }
    case_run(&p);
    for (int64_t t = 0; t < N; t++) {
        case_expect(&p, t, 0, (double)(t % 251), 0);
    }
}

static void case_b12(void)
{
    enum { N = 1048577 };
    mla_problem p =
        case_dense(&(case_shape){.b = 1, .s_q = N, .h_q = 1, .page = 64, .d_k = 16, .d_v = 16, .causal = true},
                   (int32_t[]){4});
    case_run(&p);
    for (int64_t i = 0; i < N; i++) {
        int64_t seen = i - N + 5;
        case_expect_mean(&p, 0, i, 0, seen < 0 ? 0 : seen);
    }
}

static void case_b13(void)
{
    enum { N = 70000 };
    mla_problem p =
        case_dense(&(case_shape){.b = 1, .s_q = N, .h_q = 1, .page = 64, .d_k = 64, .d_v = 64}, (int32_t[]){256});
    mla_tensor *list = &p.segment[0].list;
    *list = ck_tensor("indices", MLA_DTYPE_I32, 3, (int64_t[]){1, 1, 256}, CK_DENSE);
    for (int j = 0; j < 256; j++) {
        ((int32_t *)list->data)[j] = 255 - j;
    }
    list->dim[1] = N; /* every token reads the same list */
    list->stride[1] = 0;
    p.segment[0].list_address = MLA_LIST_PHYSICAL;
    p.segment[0].length = p.segment[0].page_table = (mla_tensor){0};
    case_run(&p);
    for (int64_t i = 0; i < N; i++) {
        case_expect_mean(&p, 0, i, 0, 256);
    }
}

/* No score matrix: for 128 heads, 128 tokens and 140,000 keys a plan needs far less than 128 * 128 * 140,000 scores. */
static void case_b14(void)
{
    mla_problem p;
    mla_problem_init(&p);
    int64_t keys = 140000;
    p.q = mla_tensor_make(NULL, MLA_DTYPE_BF16, 4, (int64_t[]){1, 128, 128, 576});
    p.o = mla_tensor_make(NULL, MLA_DTYPE_BF16, 4, (int64_t[]){1, 128, 128, 512});
    p.segment[0].k = mla_tensor_make(NULL, MLA_DTYPE_BF16, 4, (int64_t[]){1, keys, 1, 576});
    p.q.data = ck_sparse("q", 128 * 128 * 576 * 2);
    p.o.data = ck_sparse("o", 128 * 128 * 512 * 2);
    p.segment[0].k.data = ck_sparse("k", (size_t)keys * 576 * 2);
    p.d_v = 512;
    p.softmax_scale = 1 / 24.0f;
    for (int32_t threads = 1; threads <= 16; threads *= 4) {
        mla_plan *plan;
        mla_plan_info info;
        mla_plan_options options = {.backend = MLA_BACKEND_CPU, .n_thread = threads};
        CK_REQUIRE(mla_plan_build(&p, &options, &plan) == MLA_STATUS_OK);
        CK_REQUIRE(mla_plan_describe(plan, &info) == MLA_STATUS_OK);
        /* two MiB a thread, and slots of at most 16 rows of 512 columns with their sums */
        size_t allowed = (size_t)threads * (2u << 20) + (size_t)info.n_slot * 16 * (512 + 64) * 4 + 8192;
        if (info.workspace_bytes > allowed) {
            ck_fail("%d threads: a workspace of %zu bytes, at most %zu are due", (int)threads, info.workspace_bytes,
                    allowed);
        }
        CK_REQUIRE(info.workspace_bytes < (size_t)128 * 128 * 140000 * 4 / 8);
        mla_plan_free(plan);
    }
}

static void case_b16(void)
{
    ck_config c =
        ck_config_plain(3, 1, 20, 576, 512, 3000); /* the workspace ends at an inaccessible page, as always here */
    mla_problem p;
    ck_make(&c, &p);
    ck_execute(&p, &(ck_run){.n_thread = 4});
    ck_compare(&p, false, CK_WORK);
}

const ck_test ck_case_large_tests[] = {
    {.name = "case/B1", .run = case_b1, .host = true},
    {.name = "case/B3", .run = case_b3, .host = true},
    {.name = "case/B5", .run = case_b5, .host = true},
    {.name = "case/B6", .run = case_b6, .host = true},
    {.name = "case/B7", .run = case_b7, .host = true},
    {.name = "case/B7_unpaged", .run = case_b7_unpaged, .host = true},
    {.name = "case/B10", .run = case_b10, .host = true},
    {.name = "case/B11", .run = case_b11},
    {.name = "case/B12", .run = case_b12},
    {.name = "case/B13", .run = case_b13},
    {.name = "case/B14", .run = case_b14, .once = true, .library = true},
    {.name = "case/B16", .run = case_b16},
    {0},
};
