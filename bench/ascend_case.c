/*
 * ascend_case.c - see ascend_case.h.
 */
#include "ascend_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_number.h"
#include "mla/quant_sparse_flash_mla.h"

enum {
    BLOCK = 128,  /* tokens of a cache block */
    WINDOW = 128, /* tokens that a row of CSA and HCA sees as they are */
    CSA_RATIO = 4,
    HCA_RATIO = 128,
    ROPE = 64,      /* columns */
    CUBE_BYTES = 32 /* of a row in a piece of FRACTAL_NZ */
};

#define INT8_SPREAD 30.0f /* of int8 elements: few are clipped */

const char *ascend_kind_name(ascend_kind kind)
{
    static const char *const names[] = {"",        "cann csa",        "cann hca",
                                        "atb cm1", "atb cm2 tile128", "atb cm2 tile512",
                                        "atb cm3"};
    return names[kind];
}

mla_dtype ascend_kind_dtype(ascend_kind kind)
{
    static const mla_dtype dtypes[] = {MLA_DTYPE_BF16, MLA_DTYPE_HIF8, MLA_DTYPE_HIF8, MLA_DTYPE_BF16,
                                       MLA_DTYPE_I8,   MLA_DTYPE_I8,   MLA_DTYPE_BF16};
    return dtypes[kind];
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static void *own(ascend_case *c, int64_t count, size_t size)
{
    void *memory = cli_alloc((size_t)count, size);
    if (memory != NULL) {
        c->owned[c->n_owned++] = memory;
    }
    return memory;
}

/* A contiguous tensor; one without data when there is no memory, which the problem's check refuses. */
static mla_tensor tensor(ascend_case *c, mla_dtype dtype, int32_t ndim, const int64_t *dim)
{
    int64_t count = 1;
    for (int32_t i = 0; i < ndim; i++) {
        count *= dim[i];
    }
    return mla_tensor_make(own(c, count, mla_dtype_size(dtype)), dtype, ndim, dim);
}

static int64_t count_of(const mla_tensor *t)
{
    int64_t count = 1;
    for (int32_t i = 0; i < t->ndim; i++) {
        count *= t->dim[i];
    }
    return count;
}

/* Normal numbers: of that spread, or, as int8, of INT8_SPREAD. */
static mla_tensor random_tensor(ascend_case *c, mla_dtype dtype, int32_t ndim, const int64_t *dim, float spread,
                                number_rng *rng)
{
    mla_tensor t = tensor(c, dtype, ndim, dim);
    int64_t n = t.data != NULL ? count_of(&t) : 0;
    switch (dtype) {
    case MLA_DTYPE_HIF8:
        for (int64_t i = 0; i < n; i++) {
            ((uint8_t *)t.data)[i] = mla_hif8_encode(spread * number_normal(rng), MLA_HIF8_SATURATE);
        }
        break;
    case MLA_DTYPE_I8:
        for (int64_t i = 0; i < n; i++) {
            ((int8_t *)t.data)[i] = (int8_t)lrintf(INT8_SPREAD * number_normal(rng));
        }
        break;
    default: number_fill_normal(t.data, dtype, n, spread, rng); break;
    }
    return t;
}

/* f32 [n], all about `value`, no two neighbours equal. */
static mla_tensor factors(ascend_case *c, int64_t n, float value)
{
    mla_tensor t = tensor(c, MLA_DTYPE_F32, 1, &n);
    for (int64_t i = 0; t.data != NULL && i < n; i++) {
        ((float *)t.data)[i] = value * (1 + 0.01f * (float)(i % 8));
    }
    return t;
}

/* i32 [n], all of one value. */
static mla_tensor lengths(ascend_case *c, int64_t n, int64_t value)
{
    mla_tensor t = tensor(c, MLA_DTYPE_I32, 1, &n);
    for (int64_t i = 0; t.data != NULL && i < n; i++) {
        ((int32_t *)t.data)[i] = (int32_t)value;
    }
    return t;
}

static int64_t blocks_for(int64_t n_key)
{
    return (n_key + BLOCK - 1) / BLOCK;
}

/* A table [n_seq][n_column] whose last n_used columns name the blocks of a pool in random order, the others none. */
static mla_tensor block_table(ascend_case *c, int64_t n_seq, int64_t n_column, int64_t n_used, number_rng *rng)
{
    mla_tensor table = tensor(c, MLA_DTYPE_I32, 2, (int64_t[]){n_seq, n_column});
    int32_t *block = cli_alloc((size_t)(n_seq * n_used), sizeof *block);
    if (table.data == NULL || block == NULL) {
        free(block);
        return (mla_tensor){0};
    }
    number_fill_permutation(block, n_seq * n_used, rng);
    for (int64_t i = 0; i < n_seq * n_column; i++) {
        int64_t used = i % n_column - (n_column - n_used);
        ((int32_t *)table.data)[i] = used >= 0 ? block[i / n_column * n_used + used] : -1;
    }
    free(block);
    return table;
}

/* ---- CANN -------------------------------------------------------------------------------------------------------- */

/* Rows that a list chooses from, or all of them. */
static int64_t compressed_keys(ascend_kind kind, const paged_shape *s)
{
    return (s->n_key - WINDOW) * (kind == ASCEND_CSA ? 4 : 1);
}

/* i32 [n_seq][1][1][n_entry], for each sequence different keys out of n_key, in no order. */
static mla_tensor choose_keys(ascend_case *c, int64_t n_entry, int64_t n_key, number_rng *rng)
{
    mla_tensor list = tensor(c, MLA_DTYPE_I32, 4, (int64_t[]){c->shape.n_seq, 1, 1, n_entry});
    int32_t *key = own(c, n_key, sizeof *key);
    for (int64_t i = 0; list.data != NULL && key != NULL && i < c->shape.n_seq; i++) {
        number_fill_permutation(key, n_key, rng);
        memcpy((int32_t *)list.data + i * n_entry, key, (size_t)n_entry * sizeof *key);
    }
    return list;
}

static mla_status make_cann(ascend_case *c, number_rng *rng)
{
    const paged_shape *s = &c->shape;
    int64_t n_cmp = compressed_keys(c->kind, s), ratio = c->kind == ASCEND_CSA ? CSA_RATIO : HCA_RATIO;
    int64_t n_ori = n_cmp * ratio, window_blocks = blocks_for(n_ori) - (n_ori - WINDOW) / BLOCK;
    int64_t cmp_blocks = blocks_for(n_cmp);
    int64_t rows[] = {s->n_seq, 1, s->n_head, s->d_k};
    mla_quant_sparse_flash_mla_args args;
    mla_quant_sparse_flash_mla_init(&args);
    args.q = random_tensor(c, MLA_DTYPE_HIF8, 4, rows, PAGED_QUERY_SPREAD, rng);
    args.attn_out = tensor(c, MLA_DTYPE_BF16, 4, rows);
    args.softmax_lse = tensor(c, MLA_DTYPE_F32, 4, (int64_t[]){s->n_seq, 1, 1, s->n_head});
    args.return_softmax_lse = true;
    args.softmax_scale = (double)DEEPSEEK_V3_SCALE;
    args.sinks = factors(c, s->n_head, 1);
    args.q_descale = factors(c, 1, 1);
    args.layout_kv = "PA_BBND";

    /* of the tokens as they are, only blocks that the window touches are still there */
    int64_t ori_pool[] = {s->n_seq * window_blocks, BLOCK, 1, s->d_k};
    args.ori_kv = random_tensor(c, MLA_DTYPE_HIF8, 4, ori_pool, 1, rng);
    args.ori_kv_descale = factors(c, 1, 1);
    args.ori_block_table = block_table(c, s->n_seq, blocks_for(n_ori), window_blocks, rng);
    args.seqused_ori_kv = lengths(c, s->n_seq, n_ori);
    args.ori_mask_mode = 4;
    args.ori_win_left = WINDOW - 1;
    args.ori_win_right = 0;

    int64_t cmp_pool[] = {s->n_seq * cmp_blocks, BLOCK, 1, s->d_k};
    args.cmp_kv = random_tensor(c, MLA_DTYPE_HIF8, 4, cmp_pool, 1, rng);
    args.cmp_kv_descale = factors(c, 1, 1);
    args.cmp_block_table = block_table(c, s->n_seq, cmp_blocks, cmp_blocks, rng);
    args.seqused_cmp_kv = lengths(c, s->n_seq, n_cmp);
    args.cmp_ratio = ratio;
    args.cmp_mask_mode = 3;
    if (c->kind == ASCEND_CSA) {
        args.cmp_sparse_indices = choose_keys(c, s->n_key - WINDOW, n_cmp, rng);
    }
    args.options = MLA_SPARSE_FLASH_MLA_RELAXED; /* metadata: a hint that costs nothing and brings nothing */
    return mla_quant_sparse_flash_mla_lower(&args, NULL, 0, &c->problem);
}

/* ---- ATB --------------------------------------------------------------------------------------------------------- */

/* A pool of blocks with d columns a row, in the layout of the cache mode. */
static mla_tensor pool(ascend_case *c, mla_dtype dtype, int64_t d, number_rng *rng)
{
    int64_t n_block = c->shape.n_seq * blocks_for(c->shape.n_key);
    int64_t piece = CUBE_BYTES / (int64_t)mla_dtype_size(dtype);
    if (c->kind == ASCEND_ATB_ROPE_APART) {
        return random_tensor(c, dtype, 4, (int64_t[]){n_block, BLOCK, 1, d}, 1, rng);
    }
    return random_tensor(c, dtype, 4, (int64_t[]){n_block, d / piece, BLOCK, piece}, 1, rng);
}

/* As lower_queries() and lower_cache() of the ATB door do, which keeps its problems to itself. */
static mla_status make_atb(ascend_case *c, number_rng *rng)
{
    const paged_shape *s = &c->shape;
    mla_dtype dtype = ascend_kind_dtype(c->kind);
    int64_t n = s->n_seq, nope = s->d_k - ROPE, blocks = blocks_for(s->n_key);
    mla_problem *p = &c->problem;
    mla_problem_init(p);
    p->q = random_tensor(c, dtype, 3, (int64_t[]){n, s->n_head, nope}, PAGED_QUERY_SPREAD, rng);
    p->q_rope = random_tensor(c, MLA_DTYPE_BF16, 3, (int64_t[]){n, s->n_head, ROPE}, PAGED_QUERY_SPREAD, rng);
    int64_t n_begin = n + 1;
    p->q_begin = tensor(c, MLA_DTYPE_I32, 1, &n_begin);
    for (int64_t i = 0; p->q_begin.data != NULL && i <= n; i++) {
        ((int32_t *)p->q_begin.data)[i] = (int32_t)i;
    }
    p->o = tensor(c, MLA_DTYPE_BF16, 3, (int64_t[]){n, s->n_head, s->d_v});
    p->lse = tensor(c, MLA_DTYPE_F32, 2, (int64_t[]){n, s->n_head});
    p->lse_empty = MLA_LSE_EMPTY_NEG_INF;
    p->softmax_scale = DEEPSEEK_V3_SCALE;
    p->d_v = s->d_v;
    mla_segment *segment = &p->segment[0];
    segment->k = pool(c, dtype, nope, rng);
    segment->k_rope = pool(c, MLA_DTYPE_BF16, ROPE, rng);
    segment->layout = c->kind == ASCEND_ATB_ROPE_APART ? MLA_KEY_LAYOUT_ROW : MLA_KEY_LAYOUT_NZ;
    segment->page_table = block_table(c, n, blocks, blocks, rng);
    segment->length = lengths(c, n, s->n_key);
    if (dtype == MLA_DTYPE_I8) {
        p->qk_descale = factors(c, s->n_head, PAGED_QUERY_SPREAD / (INT8_SPREAD * INT8_SPREAD));
        p->pv_descale = factors(c, s->n_head, 1 / INT8_SPREAD);
        p->p_rounding = MLA_P_ROUND_INT8;
        p->p_tile = c->kind == ASCEND_ATB_INT8_NZ_TILE1 ? BLOCK : 4 * BLOCK;
    }
    return MLA_STATUS_OK;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

double ascend_case_bytes(ascend_kind kind, const paged_shape *s)
{
    double stored =
        kind == ASCEND_CSA || kind == ASCEND_HCA ? (double)(WINDOW + compressed_keys(kind, s)) : (double)s->n_key;
    double rows = (double)s->n_seq * (double)s->n_head;
    return (double)s->n_seq * stored * (double)s->d_k * 2 + rows * 4.0 * (double)(s->d_k + s->d_v);
}

bool ascend_case_make(ascend_kind kind, const paged_shape *shape, uint64_t seed, ascend_case *c)
{
    number_rng rng = {seed};
    *c = (ascend_case){.kind = kind, .shape = *shape};
    bool cann = kind == ASCEND_CSA || kind == ASCEND_HCA;
    mla_status status = cann ? make_cann(c, &rng) : make_atb(c, &rng);
    status = status == MLA_STATUS_OK ? mla_problem_check(&c->problem) : status;
    c->wide_o = own(c, shape->n_seq * shape->n_head * shape->d_v, sizeof(float));
    double row_bytes = cann
                           ? (double)shape->d_k
                           : (double)(shape->d_k - ROPE) * (double)mla_dtype_size(ascend_kind_dtype(kind)) + 2.0 * ROPE;
    c->key_bytes = (double)shape->n_seq * (double)shape->n_key * row_bytes;
    if (status != MLA_STATUS_OK || c->wide_o == NULL) {
        ascend_case_release(c);
        return false;
    }
    return true;
}

/* f32 [n_head], every stride-th of it. */
static mla_tensor some_factors(ascend_case *c, const mla_tensor *t, int64_t stride)
{
    if (t->ndim == 0) {
        return *t;
    }
    int64_t n = (t->dim[0] + stride - 1) / stride;
    mla_tensor some = tensor(c, MLA_DTYPE_F32, 1, &n);
    for (int64_t i = 0; some.data != NULL && i < n; i++) {
        ((float *)some.data)[i] = ((const float *)t->data)[i * stride];
    }
    return some;
}

mla_problem ascend_case_sample(ascend_case *c, const mla_problem *problem, int64_t stride)
{
    mla_problem p = paged_case_sample(problem, stride);
    p.sink = some_factors(c, &problem->sink, stride);
    p.qk_descale = some_factors(c, &problem->qk_descale, stride);
    p.pv_descale = some_factors(c, &problem->pv_descale, stride);
    return p;
}

void ascend_case_release(ascend_case *c)
{
    while (c->n_owned > 0) {
        free(c->owned[--c->n_owned]);
    }
    *c = (ascend_case){0};
}
