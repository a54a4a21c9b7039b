/*
 * check_cases.c - faults that users of such kernels reported in public, one small test each, named by the row of the
 * project's table of fault reports. Here: lengths and paging (A), heads and dims (E), strides (F), formats (G).
 * check_cases_values.c has the rest: lse (C), masks (D), range and precision (H), determinism (I), lists and sinks (J),
 * check_cases_large.c offsets and sizes (B), check_cases_range.c more of H at the ends of what fp32 holds.
 *
 * Two tricks make expected values exact, without an oracle. Z: with q = 0 all probabilities are equal, so that o is the
 * mean of the visible values and lse is ln(number of visible keys). V=t: all columns of token t hold t.
 *
 * Rows of the table that a dense problem cannot express, and where they belong:
 *   A3, D4's scheduler tensors     metadata tensors exist in the flash_mla door only
 *   A10 as empty tensors of torch  the doors; here an empty batch
 *   C1, C4, C9's ring, C11..       merging of partial results has no public function yet
 *   E8                             GPU
 *   F5, I6, K4                     speed: the bench
 *   G1, G3, G5, G8, G9, G10        record formats do not exist yet
 */
#include "cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref/number.h"

/* ---- the tools of all cases -------------------------------------------------------------------------------------- */

mla_tensor case_i32(const char *name, int64_t n, const int32_t *value)
{
    mla_tensor t = ck_tensor(name, MLA_DTYPE_I32, 1, &n, CK_DENSE);
    if (n > 0) {
        memcpy(t.data, value, (size_t)n * sizeof *value);
    }
    return t;
}

void case_fill(const mla_tensor *t, int64_t at, int64_t n, double value)
{
    for (int64_t d = 0; d < n; d++) {
        mla_ref_store(t->data, t->dtype, at + d, value);
    }
}

mla_problem case_dense(const case_shape *shape, const int32_t *length)
{
    case_shape d = *shape;
    d.d_k = d.d_k ? d.d_k : 576;
    d.d_v = d.d_v ? d.d_v : d.d_k == 576 ? 512 : d.d_k;
    d.h_kv = d.h_kv ? d.h_kv : 1;
    d.dtype = d.dtype ? d.dtype : MLA_DTYPE_BF16;
    mla_problem p;
    mla_problem_init(&p);
    p.q = ck_tensor("q", d.dtype, 4, (int64_t[]){d.b, d.s_q, d.h_q, d.d_k}, CK_DENSE);
    memset(p.q.data, 0, (size_t)(d.b * d.s_q * d.h_q * d.d_k) * mla_dtype_size(d.dtype)); /* the Z trick */
    p.d_v = d.d_v;
    p.softmax_scale = (float)(1 / sqrt((double)d.d_k));
    p.o = ck_tensor("o", d.dtype, 4, (int64_t[]){d.b, d.s_q, d.h_q, d.d_v}, CK_DENSE);
    p.lse = ck_tensor("lse", MLA_DTYPE_F32, 3, (int64_t[]){d.b, d.s_q, d.h_q}, CK_DENSE);
    mla_segment *s = &p.segment[0];
    s->visible.rule = d.causal ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
    s->length = case_i32("cache_seqlens", d.b, length);
    int64_t n_page = 0, widest = 0;
    for (int64_t i = 0; i < d.b; i++) {
        int64_t pages = (length[i] + d.page - 1) / d.page;
        n_page += pages;
        widest = pages > widest ? pages : widest;
    }
    s->page_table = ck_tensor("block_table", MLA_DTYPE_I32, 2, (int64_t[]){d.b, widest}, CK_DENSE);
    int64_t dims[4] = {n_page > 0 ? n_page : 1, d.page, d.h_kv, d.d_k};
    s->k = ck_tensor("k_cache", d.dtype, 4, dims, CK_DENSE); /* unused slots stay NaN */
    int32_t next = 0;
    for (int64_t i = 0; i < d.b; i++) {
        for (int64_t x = 0; x < widest; x++) {
            bool used = x < (length[i] + d.page - 1) / d.page;
            ((int32_t *)s->page_table.data)[i * widest + x] = used ? next++ : -1;
        }
        for (int64_t t = 0; t < length[i]; t++) {
            int64_t page = ((int32_t *)s->page_table.data)[i * widest + t / d.page];
            case_fill(&s->k, ck_offset(&s->k, page, t % d.page, 0, 0), d.h_kv * d.d_k, (double)t); /* the V=t trick */
        }
    }
    return p;
}

void case_expect(const mla_problem *p, int64_t s, int64_t i, double o, double lse)
{
    for (int64_t h = 0; h < p->o.dim[2]; h++) {
        for (int64_t c = 0; c < p->d_v; c++) {
            int64_t at = ck_offset(&p->o, s, i, h, c);
            double got = mla_ref_load(p->o.data, p->o.dtype, at);
            double want = mla_ref_decode(p->o.dtype, mla_ref_encode(p->o.dtype, o));
            /* a 16-bit o is exact; an f32 one has passed through one division and one product */
            double allowed = p->o.dtype == MLA_DTYPE_F32 ? 4 * 0x1p-24 * fabs(o) : 0;
            if (!(fabs(got - want) <= allowed) || !signbit(got) != !signbit(want)) {
                ck_fail("o[%lld][%lld][%lld][%lld] = %.9g, expected %.9g", (long long)s, (long long)i, (long long)h,
                        (long long)c, got, want);
            }
        }
        if (!mla_tensor_present(&p->lse)) {
            continue;
        }
        double got = mla_ref_load(p->lse.data, MLA_DTYPE_F32, ck_offset(&p->lse, s, i, h, 0));
        /* logarithm, change of base and rounding */
        bool right = isinf(lse) ? got == lse : fabs(got - lse) <= 8 * 0x1p-24 * fmax(1, fabs(lse));
        if (!right) {
            ck_fail("lse[%lld][%lld][%lld] = %.9g, expected %.9g", (long long)s, (long long)i, (long long)h, got, lse);
        }
    }
}

void case_expect_mean(const mla_problem *p, int64_t s, int64_t i, int64_t first, int64_t n)
{
    case_expect(p, s, i, n > 0 ? (double)first + (double)(n - 1) / 2 : 0, n > 0 ? log((double)n) : INFINITY);
}

void case_run(const mla_problem *p)
{
    ck_execute(p, NULL);
}

void case_expect_refused(const mla_problem *p, mla_status expected)
{
    mla_status status = ck_try_execute(p, NULL);
    if (status != expected) {
        ck_fail("%s, expected %s", mla_status_name(status), mla_status_name(expected));
    }
    for (int64_t i = 0; i < 4; i++) { /* outputs are untouched */
        CK_REQUIRE(ck_is_untouched(p->o.data, p->o.dtype, i));
    }
}

/* ---- A: lengths, paging, padding --------------------------------------------------------------------------------- */

static void case_a1(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 3, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){0, 5, 0});
    case_run(&p);
    case_expect_mean(&p, 0, 0, 0, 0);
    case_expect_mean(&p, 1, 0, 0, 5);
    case_expect_mean(&p, 2, 0, 0, 0);
}

static void case_a2(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 4, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){7, 0, 0, 0});
    case_run(&p); /* the table's rows 1 to 3 are all -1 */
    case_expect_mean(&p, 0, 0, 0, 7);
    for (int64_t s = 1; s < 4; s++) {
        case_expect_mean(&p, s, 0, 0, 0);
    }
    ck_reset_outputs(&p);
    for (int64_t s = 1; s < 4; s++) { /* padded slots of length 1 that all point at page 0 */
        ((int32_t *)p.segment[0].length.data)[s] = 1;
        ((int32_t *)p.segment[0].page_table.data)[s] = 0;
    }
    case_run(&p);
    case_expect_mean(&p, 0, 0, 0, 7);
    for (int64_t s = 1; s < 4; s++) {
        case_expect_mean(&p, s, 0, 0, 1);
    }
}

static void case_a6(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 4, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){0, 0, 0, 0});
    CK_REQUIRE(p.segment[0].page_table.dim[1] == 0);
    case_run(&p);
    for (int64_t s = 0; s < 4; s++) {
        case_expect_mean(&p, s, 0, 0, 0);
    }
}

static void case_a7(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 4, .h_q = 16, .page = 16, .causal = true}, (int32_t[]){17});
    CK_REQUIRE(p.segment[0].page_table.dim[1] == 2); /* nothing behind the table can be read */
    case_run(&p);
    for (int64_t i = 0; i < 4; i++) {
        case_expect_mean(&p, 0, i, 0, 14 + i);
    }
}

/* Turns a batched problem of one token per sequence into a packed one with the given token counts. */
static void make_ragged(mla_problem *p, int64_t n_seq, const int32_t *begin)
{
    int64_t n_token = begin[n_seq], h = p->q.dim[2];
    mla_dtype dtype = p->q.dtype;
    p->q = ck_tensor("q", dtype, 3, (int64_t[]){n_token, h, p->q.dim[3]}, CK_DENSE);
    memset(p->q.data, 0, (size_t)(n_token * p->q.stride[0]) * mla_dtype_size(dtype));
    p->o = ck_tensor("o", dtype, 4, (int64_t[]){1, n_token, h, p->d_v}, CK_DENSE);
    p->lse = ck_tensor("lse", MLA_DTYPE_F32, 3, (int64_t[]){1, n_token, h}, CK_DENSE);
    p->q_begin = case_i32("q_begin", n_seq + 1, begin);
}

/* Runs it; the outputs stay described as [1][token][head] for case_expect(). */
static void run_ragged(const mla_problem *p)
{
    mla_problem packed = *p;
    mla_tensor *const outputs[] = {&packed.o, &packed.lse};
    for (int x = 0; x < 2; x++) {
        outputs[x]->ndim--;
        memmove(outputs[x]->dim, outputs[x]->dim + 1, 3 * sizeof(int64_t));
        memmove(outputs[x]->stride, outputs[x]->stride + 1, 3 * sizeof(int64_t));
    }
    case_run(&packed);
}

static void case_a8(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 2, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){0, 0});
    make_ragged(&p, 2, (int32_t[]){0, 3, 4});
    run_ragged(&p);
    for (int64_t t = 0; t < 4; t++) {
        case_expect_mean(&p, 0, t, 0, 0);
    }
}

static void case_a9(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 2, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){0, 4});
    case_run(&p); /* outputs started as NaN, like all of the checks' memory */
    case_expect_mean(&p, 0, 0, 0, 0);
    case_expect_mean(&p, 1, 0, 0, 4);
}

static void case_a10(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 0, .s_q = 1, .h_q = 16, .page = 64}, NULL);
    case_run(&p);
    p = case_dense(&(case_shape){.b = 2, .s_q = 0, .h_q = 16, .page = 64}, (int32_t[]){5, 9});
    case_run(&p);
}

static void case_a11(void)
{
    static const int64_t pages[] = {129, 192, 256};
    for (int x = 0; x < 3; x++) {
        mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = pages[x]}, (int32_t[]){200});
        case_run(&p);
        case_expect_mean(&p, 0, 0, 0, 200);
    }
}

static void case_a13(void)
{
    static const int64_t pages[] = {1, 2, 3, 16, 61, 64, 100};
    ck_config c = ck_config_plain(5, 1, 16, 576, 512, 0);
    const int64_t lengths[] = {1, 63, 64, 65, 130};
    memcpy(c.segment[0].length, lengths, sizeof lengths);
    c.segment[0].n_length = 5;
    ck_config contiguous = c;
    contiguous.segment[0].addressing = MLA_ADDRESS_PACKED;
    mla_problem whole;
    ck_make(&contiguous, &whole);
    ck_execute(&whole, NULL);
    for (int x = 0; x < 7; x++) {
        mla_problem paged;
        c.segment[0].page_size = pages[x];
        ck_make(&c, &paged);
        ck_execute(&paged, NULL);
        ck_same_bits(&whole, &paged, "contiguous and paged");
    }
}

static void case_a14(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){5});
    mla_segment *s = &p.segment[0];
    mla_tensor first = s->k;
    s->k = ck_tensor("k_cache", MLA_DTYPE_BF16, 4, (int64_t[]){5, 64, 1, 576}, CK_DENSE);
    memcpy((uint16_t *)s->k.data + 3 * s->k.stride[0], first.data,
           5 * 576 * sizeof(uint16_t)); /* all other pages are NaN */
    *(int32_t *)s->page_table.data = 3;
    case_run(&p);
    case_expect_mean(&p, 0, 0, 0, 5);
}

/* ---- E: heads and dimensions ------------------------------------------------------------------------------------- */

static void case_e1(void)
{
    ck_config c = ck_config_plain(1, 1024, 16, 64, 64, 1024);
    c.n_kv_head = 8;
    c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
    ck_check_config(&c);
}

static const int64_t odd_heads[] = {1, 2, 3, 4, 5, 8, 9, 16, 20, 24, 32, 40, 63, 64, 65, 126, 127, 128};

static void case_e2(void)
{
    for (int x = 0; x < 18; x++) {
        ck_config c = ck_config_plain(2, 1, odd_heads[x], 576, 512, 100); /* sparse: a list over a plain bf16 cache */
        c.segment[0].list = CK_PHYSICAL;
        c.segment[0].n_entry = 64;
        ck_check_config(&c);
    }
}

/* Fewer heads are the first ones of a run with 128: each must be right by itself, within the oracle's bound. */
static void case_e3(void)
{
    ck_config c = ck_config_plain(1, 1, 128, 576, 512, 150);
    mla_problem all;
    ck_make(&c, &all);
    ck_execute(&all, NULL);
    ck_compare(&all, false, CK_WORK);
    for (int x = 0; x < 18; x++) {
        size_t mark = ck_mark();
        mla_problem part = all;
        part.q.dim[2] = odd_heads[x];
        part.o = ck_tensor("o", all.o.dtype, 4, (int64_t[]){1, 1, odd_heads[x], 512}, CK_DENSE);
        part.lse = ck_tensor("lse", MLA_DTYPE_F32, 3, (int64_t[]){1, 1, odd_heads[x]}, CK_DENSE);
        part.max = (mla_tensor){0};
        ck_context("%lld heads", (long long)odd_heads[x]);
        ck_execute(&part, NULL);
        ck_compare(&part, false, CK_WORK);
        ck_release(mark);
    }
}

static void case_e5(void)
{
    ck_config c = ck_config_plain(2, 1, 20, 576, 512, 300);
    ck_check_config(&c);
}

static void case_e6(void)
{
    static const int64_t dims[][2] = {{320, 256}, {288, 256}, {512, 512}, {576, 512}, {64, 64}};
    for (int x = 0; x < 5; x++) {
        ck_config c = ck_config_plain(2, 2, 16, dims[x][0], dims[x][1], 130);
        ck_check_config(&c);
    }
}

static void case_e10(void)
{
    for (int prefill = 0; prefill < 2; prefill++) {
        ck_config c = ck_config_plain(1, prefill ? 130 : 1, 4, 192, 128, 130);
        c.n_kv_head = 4;
        c.segment[0].v_apart = true;
        c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
        ck_check_config(&c);
    }
}

/* ---- F: strides, views, wrong tensors ---------------------------------------------------------------------------- */

/* q is every second head of a larger tensor, the cache one layer of a pool of three. */
static void case_f1(void)
{
    ck_config c = ck_config_plain(2, 2, 16, 576, 512, 100);
    mla_problem dense, view;
    ck_make(&c, &dense);
    view = ck_with_new_outputs(&dense, CK_DENSE);
    mla_tensor big = ck_tensor("q", MLA_DTYPE_BF16, 4, (int64_t[]){2, 2, 32, 576}, CK_DENSE);
    for (int64_t row = 0; row < 2 * 2 * 16; row++) {
        memcpy((uint16_t *)big.data + row * 2 * 576, (uint16_t *)dense.q.data + row * 576, 576 * sizeof(uint16_t));
    }
    view.q = big;
    view.q.dim[2] = 16;
    view.q.stride[2] *= 2;
    mla_tensor k = dense.segment[0].k;
    int64_t page = k.stride[0];
    mla_tensor pool = ck_tensor("pool", MLA_DTYPE_BF16, 4, (int64_t[]){k.dim[0], 3 * k.dim[1], 1, 576}, CK_DENSE);
    for (int64_t x = 0; x < k.dim[0]; x++) {
        memcpy((uint16_t *)pool.data + (3 * x + 1) * page, (uint16_t *)k.data + x * page,
               (size_t)page * sizeof(uint16_t));
    }
    view.segment[0].k = pool;
    view.segment[0].k.data = (uint16_t *)pool.data + page;
    view.segment[0].k.dim[1] = k.dim[1];
    ck_execute(&dense, NULL);
    ck_execute(&view, NULL);
    ck_same_bits(&dense, &view, "contiguous tensors and views of larger ones");
}

static void case_f2(void)
{
    const case_shape shape = {.b = 2, .s_q = 1, .h_q = 16, .page = 64};
    mla_problem p = case_dense(&shape, (int32_t[]){5, 9});
    p.segment[0].length.ndim = 2;
    p.segment[0].length.dim[1] = 1;
    p.segment[0].length.stride[1] = 1;
    case_expect_refused(&p, MLA_STATUS_BAD_SHAPE);
    p = case_dense(&shape, (int32_t[]){5, 9});
    p.segment[0].length.dtype = MLA_DTYPE_I64;
    case_expect_refused(&p, MLA_STATUS_BAD_DTYPE);
}

/* Values are the first columns of the row: the result is that of a problem whose values have a tensor of their own. */
static void case_f3(void)
{
    ck_config c = ck_config_plain(2, 2, 16, 576, 512, 100);
    mla_problem shared, apart;
    ck_make(&c, &shared);
    apart = ck_with_new_outputs(&shared, CK_DENSE);
    mla_tensor *v = &apart.segment[0].v, k = shared.segment[0].k;
    *v = ck_tensor("v", MLA_DTYPE_BF16, 4, (int64_t[]){k.dim[0], k.dim[1], 1, 512}, CK_DENSE);
    for (int64_t row = 0; row < k.dim[0] * k.dim[1]; row++) {
        memcpy((uint16_t *)v->data + row * 512, (uint16_t *)k.data + row * 576, 512 * sizeof(uint16_t));
    }
    ck_execute(&shared, NULL);
    ck_execute(&apart, NULL);
    ck_compare(&shared, false, CK_WORK);
    ck_compare(&apart, false, CK_WORK);
}

static void case_f6(void)
{
    mla_problem p = case_dense(&(case_shape){.b = 2, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){5, 9});
    p.segment[0].page_table.dtype = MLA_DTYPE_I64;
    case_expect_refused(&p, MLA_STATUS_BAD_DTYPE);
    p = case_dense(&(case_shape){.b = 2, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){5, 9});
    p.segment[0].list = ck_tensor("indices", MLA_DTYPE_I64, 3, (int64_t[]){2, 1, 4}, CK_DENSE);
    case_expect_refused(&p, MLA_STATUS_BAD_DTYPE);
}

/* A cache whose rows hold the rope part first: two views of one tensor, and the same numbers. */
static void case_f7(void)
{
    ck_config c = ck_config_plain(2, 2, 16, 512, 512, 100);
    c.d_rope = 64;
    mla_problem apart, views;
    ck_make(&c, &apart);
    views = ck_with_new_outputs(&apart, CK_DENSE);
    const mla_segment *from = &apart.segment[0];
    mla_segment *to = &views.segment[0];
    int64_t n_row = from->k.dim[0] * from->k.dim[1];
    mla_tensor rows =
        ck_tensor("k_cache", MLA_DTYPE_BF16, 4, (int64_t[]){from->k.dim[0], from->k.dim[1], 1, 576}, CK_DENSE);
    for (int64_t row = 0; row < n_row; row++) {
        uint16_t *at = (uint16_t *)rows.data + row * 576;
        memcpy(at, (uint16_t *)from->k_rope.data + row * 64, 64 * sizeof *at);
        memcpy(at + 64, (uint16_t *)from->k.data + row * 512, 512 * sizeof *at);
    }
    to->k_rope = rows;
    to->k_rope.dim[3] = 64;
    to->k = rows;
    to->k.data = (uint16_t *)rows.data + 64;
    to->k.dim[3] = 512;
    ck_execute(&apart, NULL);
    ck_execute(&views, NULL);
    ck_compare(&apart, false, CK_WORK);
    ck_same_bits(&apart, &views, "rope in a tensor of its own and rope first in the row");
}

/* ---- G: formats -------------------------------------------------------------------------------------------------- */

static void case_g7(void)
{
    static const mla_dtype declared[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16};
    static const mla_dtype others[] = {MLA_DTYPE_NONE, MLA_DTYPE_I32, MLA_DTYPE_I64, MLA_DTYPE_U8, (mla_dtype)77};
    for (int x = 0; x < 3; x++) {
        ck_config c = ck_config_plain(1, 1, 16, 576, 512, 70);
        c.segment[0].dtype = declared[x];
        ck_check_config(&c);
    }
    for (int x = 0; x < 5; x++) {
        mla_problem p = case_dense(&(case_shape){.b = 1, .s_q = 1, .h_q = 16, .page = 64}, (int32_t[]){70});
        p.segment[0].k.dtype = others[x];
        case_expect_refused(&p, MLA_STATUS_BAD_DTYPE);
    }
}

const ck_test ck_case_tests[] = {
    {.name = "case/A1", .run = case_a1},
    {.name = "case/A2", .run = case_a2},
    {.name = "case/A6", .run = case_a6},
    {.name = "case/A7", .run = case_a7},
    {.name = "case/A8", .run = case_a8},
    {.name = "case/A9", .run = case_a9},
    {.name = "case/A10", .run = case_a10},
    {.name = "case/A11", .run = case_a11},
    {.name = "case/A13", .run = case_a13},
    {.name = "case/A14", .run = case_a14},
    {.name = "case/E1", .run = case_e1},
    {.name = "case/E2", .run = case_e2},
    {.name = "case/E3", .run = case_e3},
    {.name = "case/E5", .run = case_e5},
    {.name = "case/E6", .run = case_e6},
    {.name = "case/E10", .run = case_e10},
    {.name = "case/F1", .run = case_f1},
    {.name = "case/F2", .run = case_f2, .host = true},
    {.name = "case/F3", .run = case_f3},
    {.name = "case/F6", .run = case_f6, .host = true},
    {.name = "case/F7", .run = case_f7},
    {.name = "case/G7", .run = case_g7, .host = true},
    {0},
};
