/*
 * atb_decode_case.h - one AtbMLA call with all its memory, and two references written from the formulas of the
 * contract: the truth in fp64, and one that rounds P to 16 bits.
 *
 * Cache rows that no token may see hold NaN where the dtype has one, outputs hold NaN before the call.
 */
#ifndef ATB_DECODE_CASE_H
#define ATB_DECODE_CASE_H

#include "atb_place.h"

enum { NOPE = 512, ROPE = 64, WIDTH = NOPE + ROPE, BLOCK = 128 };

/* What a row of a table of cases says; zero members mean the usual. */
typedef struct decode_config {
    int32_t h, b;
    const char *q;        /* query tokens of sequences 0, 1, ..., repeated: "2" or "1 3 2"; NULL: one each */
    const char *ctx;      /* keys likewise */
    int32_t n_block;      /* 0: as many as are needed */
    int32_t dtype, cache; /* MLA_ATB_FLOAT16 or BF16; cache mode */
    int32_t calc, mask;
    float scale;        /* 0: 1 / 24 */
    double range;       /* 0: 1 */
    bool random_blocks; /* else sequence i has blocks i * max_block .. */
    bool template_3d;   /* MASK_FREE: one slice per sequence; slices of odd sequences are all zero */
    const char *use;    /* mask_use_status of sequences 0, 1, ... */
    bool free_mask;     /* random mask, of any content */
    bool f32_lse;
    uint32_t flags;
    bool long_mode; /* runs only with MLA_TEST_LONG=1 */
} decode_config;

typedef struct decode_case {
    decode_config config;
    int64_t h, b, t, max_block, n_block, max_q, max_kv;
    int32_t *n_q, *n_kv, *use, *table; /* [b], [b], [b], [b][max_block] */
    float *q, *k;                      /* [t][h][576], [n_block * 128][576], exact */
    float *qk_descale, *pv_descale;    /* [h] */
    double *mask_value;                /* [t][mask_columns], or of the template */
    int64_t mask_rows, mask_columns;
    void *q_nope_data, *q_rope_data, *kv_data, *k_rope_data, *mask_data, *out_data, *lse_data;
    mla_atb_tensor q_nope, q_rope, ct_kv, k_rope, block_tables, context_lens, mask, q_seq_len, qk_descale_t,
        pv_descale_t, mask_use, out, lse;
    mla_atb_decode_args args;
} decode_case;

/* ---- building ---------------------------------------------------------------------------------------------------- */

/* i-th number of "1 3 2", from the start again when it ends */
static inline int32_t listed(const char *list, int64_t i)
{
    int32_t number[64];
    int64_t n = 0;
    for (char *end; n < COUNT(number); n++, list = end) {
        number[n] = (int32_t)strtol(list, &end, 10);
        if (end == list) {
            break;
        }
    }
    return number[i % n];
}

static inline int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Element offset of column d of row r of block `block`, by the formulas of the contract. */
static inline int64_t kv_offset(int32_t cache, int64_t block, int64_t r, int64_t d)
{
    switch (cache) {
    case MLA_ATB_KVCACHE: return (block * BLOCK + r) * WIDTH + d;
    case MLA_ATB_INT8_NZCACHE: return ((block * 16 + d / 32) * BLOCK + r) * 32 + d % 32;
    case MLA_ATB_NZCACHE: return ((block * 32 + d / 16) * BLOCK + r) * 16 + d % 16;
    default: return (block * BLOCK + r) * NOPE + d;
    }
}

static inline int64_t rope_offset(int32_t cache, int64_t block, int64_t r, int64_t d)
{
    return cache == MLA_ATB_KROPE_CTKV ? (block * BLOCK + r) * ROPE + d
                                       : ((block * 4 + d / 16) * BLOCK + r) * 16 + d % 16;
}

static inline bool is_int8(const decode_case *c)
{
    return c->config.cache == MLA_ATB_INT8_NZCACHE;
}

/* Fills a cache row that is seen, with random numbers that are kept in c->k too, or one that is not. */
static inline void fill_cache_row(decode_case *c, int64_t row, bool seen)
{
    int32_t dtype = c->config.dtype, cache = c->config.cache;
    int64_t block = row / BLOCK, r = row % BLOCK;
    for (int64_t d = 0; d < WIDTH; d++) {
        bool rope = d >= NOPE;
        double value = seen ? random_number(c->config.range) : (double)NAN;
        if (!rope && is_int8(c)) {
            int8_t code = seen ? (int8_t)value : 77;
            ((int8_t *)c->kv_data)[kv_offset(cache, block, r, d)] = code;
            c->k[row * WIDTH + d] = code;
            continue;
        }
        bool apart = rope && cache != MLA_ATB_KVCACHE;
        void *data = apart ? c->k_rope_data : c->kv_data;
        int64_t at = apart ? rope_offset(cache, block, r, d - NOPE) : kv_offset(cache, block, r, d);
        mla_ref_store(data, stored_as(dtype), at, value);
        c->k[row * WIDTH + d] = (float)mla_ref_load(data, stored_as(dtype), at);
    }
}

static inline void build_lengths(decode_case *c)
{
    const decode_config *f = &c->config;
    int64_t needed = 0;
    c->n_q = allocate(c->b * 4);
    c->n_kv = allocate(c->b * 4);
    c->use = allocate(c->b * 4);
    for (int64_t i = 0; i < c->b; i++) {
        c->n_q[i] = f->q != NULL ? listed(f->q, i) : 1;
        c->n_kv[i] = listed(f->ctx, i);
        c->use[i] = f->use != NULL ? listed(f->use, i) : 1;
        c->t += c->n_q[i];
        c->max_q = larger(c->max_q, c->n_q[i]);
        c->max_kv = larger(c->max_kv, c->n_kv[i]);
    }
    c->max_block = larger((c->max_kv + BLOCK - 1) / BLOCK, 1);
    needed = c->b * c->max_block;
    c->n_block = f->random_blocks && f->n_block > 0 ? f->n_block : larger(needed, f->n_block);
    c->table = allocate(needed * 4);
    for (int64_t i = 0; i < needed; i++) {
        c->table[i] = (int32_t)(f->random_blocks ? (int64_t)(random_bits() % (uint64_t)c->n_block) : i);
    }
}

static inline void build_cache(decode_case *c)
{
    int64_t n_row = c->n_block * BLOCK;
    bool *seen = allocate(n_row);
    for (int64_t i = 0; i < c->b; i++) {
        for (int64_t p = 0; p < c->n_kv[i]; p++) {
            seen[c->table[i * c->max_block + p / BLOCK] * BLOCK + p % BLOCK] = true;
        }
        for (int64_t p = (c->n_kv[i] + BLOCK - 1) / BLOCK; p < c->max_block; p++) {
            c->table[i * c->max_block + p] = 2147480000; /* never looked at */
        }
    }
    c->k = allocate(n_row * WIDTH * 4);
    c->kv_data = allocate(n_row * WIDTH * 2);
    c->k_rope_data = allocate(n_row * ROPE * 2);
    for (int64_t row = 0; row < n_row; row++) {
        fill_cache_row(c, row, seen[row]);
    }
    free(seen);
}

/* The usual contents: -10000 where a later token's keys are to be hidden. */
static inline void build_mask(decode_case *c)
{
    const decode_config *f = &c->config;
    double hidden = f->dtype == MLA_ATB_BF16 ? -9984 : -10000; /* bfloat16 has no 10000 */
    bool template = f->mask == MLA_ATB_MASK_FREE;
    int64_t q = c->max_q, slices = f->template_3d ? c->b : 1;
    c->mask_rows = template ? BLOCK - 3 + 2 * q : c->t;
    c->mask_columns = template ? BLOCK : c->max_kv;
    int64_t n = slices * c->mask_rows * c->mask_columns;
    c->mask_value = allocate(n * 8);
    c->mask_data = allocate(n * 2);
    if (f->free_mask) {
        for (int64_t i = 0; i < n; i++) {
            c->mask_value[i] = random_bits() % 5 == 0 ? hidden : (double)(random_bits() % 9) / 4 - 1;
        }
    } else if (template) {
        for (int64_t i = 0; i < n; i++) {
            int64_t slice = i / (c->mask_rows * BLOCK), row = i / BLOCK % c->mask_rows, column = i % BLOCK;
            c->mask_value[i] = slice % 2 == 0 && column >= row + 2 - q ? hidden : 0;
        }
    } else {
        for (int64_t b = 0, token = 0; b < c->b; token += c->n_q[b], b++) {
            for (int64_t j = 0; j < c->n_q[b]; j++) {
                for (int64_t p = larger(c->n_kv[b] - c->n_q[b] + j + 1, 0); p < c->n_kv[b]; p++) {
                    c->mask_value[(token + j) * c->mask_columns + p] = hidden;
                }
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        mla_ref_store(c->mask_data, stored_as(f->dtype), i, c->mask_value[i]);
    }
}

#define DIMS(...)                                                \
    (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]) \
    {                                                            \
        __VA_ARGS__                                              \
    }

static inline void build_tensors(decode_case *c)
{
    const decode_config *f = &c->config;
    int32_t nd = MLA_ATB_FORMAT_ND, nz = f->cache >= MLA_ATB_INT8_NZCACHE ? MLA_ATB_FORMAT_FRACTAL_NZ : nd;
    int32_t latent = is_int8(c) ? MLA_ATB_INT8 : f->dtype;
    int64_t nb = c->n_block, t = c->t, h = c->h, rows = c->mask_rows;
    c->q_nope = mla_atb_tensor_make(c->q_nope_data, latent, nd, DIMS(t, h, NOPE));
    c->q_rope = mla_atb_tensor_make(c->q_rope_data, f->dtype, nd, DIMS(t, h, ROPE));
    switch (f->cache) {
    case MLA_ATB_KVCACHE: c->ct_kv = mla_atb_tensor_make(c->kv_data, latent, nz, DIMS(nb, BLOCK, 1, WIDTH)); break;
    case MLA_ATB_KROPE_CTKV: c->ct_kv = mla_atb_tensor_make(c->kv_data, latent, nz, DIMS(nb, BLOCK, 1, NOPE)); break;
    case MLA_ATB_INT8_NZCACHE: c->ct_kv = mla_atb_tensor_make(c->kv_data, latent, nz, DIMS(nb, 16, BLOCK, 32)); break;
    default: c->ct_kv = mla_atb_tensor_make(c->kv_data, latent, nz, DIMS(nb, 32, BLOCK, 16)); break;
    }
    c->k_rope = f->cache == MLA_ATB_KROPE_CTKV
                    ? mla_atb_tensor_make(c->k_rope_data, f->dtype, nz, DIMS(nb, BLOCK, 1, ROPE))
                    : mla_atb_tensor_make(c->k_rope_data, f->dtype, nz, DIMS(nb, 4, BLOCK, 16));
    c->block_tables = mla_atb_tensor_make(c->table, MLA_ATB_INT32, nd, DIMS(c->b, c->max_block));
    c->context_lens = mla_atb_tensor_make(c->n_kv, MLA_ATB_INT32, nd, DIMS(c->b));
    c->q_seq_len = mla_atb_tensor_make(c->n_q, MLA_ATB_INT32, nd, DIMS(c->b));
    c->mask_use = mla_atb_tensor_make(c->use, MLA_ATB_INT32, nd, DIMS(c->b));
    c->qk_descale_t = mla_atb_tensor_make(c->qk_descale, MLA_ATB_FLOAT, nd, DIMS(h));
    c->pv_descale_t = mla_atb_tensor_make(c->pv_descale, MLA_ATB_FLOAT, nd, DIMS(h));
    c->mask = f->template_3d ? mla_atb_tensor_make(c->mask_data, f->dtype, nd, DIMS(c->b, rows, c->mask_columns))
                             : mla_atb_tensor_make(c->mask_data, f->dtype, nd, DIMS(rows, c->mask_columns));
    c->out = mla_atb_tensor_make(c->out_data, f->dtype, nd, DIMS(t, h, NOPE));
    c->lse = mla_atb_tensor_make(c->lse_data, is_int8(c) || f->f32_lse ? MLA_ATB_FLOAT : f->dtype, nd, DIMS(t, h, 1));
}

static inline decode_case *decode_open(const decode_config *config)
{
    decode_case *c = allocate(sizeof *c);
    c->config = *config;
    decode_config *f = &c->config;
    f->scale = f->scale == 0 ? 1.0f / 24 : f->scale;
    f->range = f->range == 0 ? is_int8(c) ? 5 : 1 : f->range;
    c->h = f->h;
    c->b = f->b;
    build_lengths(c);
    build_cache(c);
    if (f->mask == MLA_ATB_MASK_SPEC || f->mask == MLA_ATB_MASK_FREE) {
        build_mask(c);
    }
    int64_t rows = c->t * c->h;
    float *nope = allocate(rows * NOPE * 4), *rope = allocate(rows * ROPE * 4);
    c->q_nope_data = allocate(rows * NOPE * 2);
    c->q_rope_data = allocate(rows * ROPE * 2);
    random_fill(c->q_nope_data, is_int8(c) ? MLA_ATB_INT8 : f->dtype, nope, rows * NOPE, f->range);
    random_fill(c->q_rope_data, f->dtype, rope, rows * ROPE, f->range);
    c->q = allocate(rows * WIDTH * 4);
    for (int64_t i = 0; i < rows; i++) {
        memcpy(c->q + i * WIDTH, nope + i * NOPE, NOPE * 4);
        memcpy(c->q + i * WIDTH + NOPE, rope + i * ROPE, ROPE * 4);
    }
    free(nope);
    free(rope);
    c->qk_descale = allocate(c->h * 4);
    c->pv_descale = allocate(c->h * 4);
    random_fill(c->qk_descale, MLA_ATB_FLOAT, c->qk_descale, c->h, 5.0 / 127);
    random_fill(c->pv_descale, MLA_ATB_FLOAT, c->pv_descale, c->h, 5.0 / 127);
    c->out_data = allocate(rows * NOPE * 2);
    c->lse_data = allocate(rows * 4);
    memset(c->out_data, 0xff, (size_t)(rows * NOPE * 2));
    memset(c->lse_data, 0xff, (size_t)(rows * 4));
    build_tensors(c);
    mla_atb_param param;
    mla_atb_param_init(&param);
    param.head_num = f->h;
    param.qk_scale = f->scale;
    param.kv_head_num = 1;
    param.mask_type = f->mask;
    param.calc_type = f->calc;
    param.cache_mode = f->cache;
    param.flags = f->flags | (f->cache == MLA_ATB_KVCACHE ? MLA_ATB_ALLOW_KVCACHE : 0);
    param.mask_use_status_type = f->use != NULL;
    bool whole = f->cache == MLA_ATB_KVCACHE;
    c->args = (mla_atb_decode_args){
        .struct_size = sizeof c->args,
        .q_nope = &c->q_nope,
        .q_rope = &c->q_rope,
        .ct_kv = &c->ct_kv,
        .k_rope = whole ? NULL : &c->k_rope,
        .block_tables = &c->block_tables,
        .context_lens = &c->context_lens,
        .mask = &c->mask,
        .q_seq_len = &c->q_seq_len,
        .qk_descale = &c->qk_descale_t,
        .pv_descale = &c->pv_descale_t,
        .atten_out = &c->out,
        .lse = &c->lse,
        .param = param,
    };
    return c;
}

static inline void decode_close(decode_case *c)
{
    void *owned[] = {c->n_q,         c->n_kv,       c->use,        c->table,       c->q,           c->k,
                     c->qk_descale,  c->pv_descale, c->mask_value, c->q_nope_data, c->q_rope_data, c->kv_data,
                     c->k_rope_data, c->mask_data,  c->out_data,   c->lse_data};
    for (int64_t i = 0; i < COUNT(owned); i++) {
        free(owned[i]);
    }
    free(c);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static inline void decode_run(decode_case *c)
{
    mla_atb_op *op = NULL;
    uint64_t bytes = 0;
    mla_atb_tensor *const moved[] = {&c->q_nope, &c->q_rope,       &c->ct_kv,        &c->k_rope, &c->block_tables,
                                     &c->mask,   &c->qk_descale_t, &c->pv_descale_t, &c->out,    &c->lse};
    placement placed = place(moved, COUNT(moved));
    if (c->config.use != NULL) { /* no place for it in the C call: as the C++ door does it */
        mla_atb_pack pack;
        must(mla_atb_op_create(&c->args.param, &op), "create");
        must(mla_atb_decode_gather(&c->args, &pack), "gather");
        pack.in[pack.n_in++] = &c->mask_use;
        must(mla_atb_op_setup(op, &pack, 1, &bytes), "setup");
    } else {
        must(mla_atb_decode_setup(&op, &c->args, &bytes), "setup");
    }
    assert_true(bytes % 512 == 0);
    must_execute(op, bytes);
    mla_atb_op_destroy(op);
    take_back(&placed);
}

/* ---- references -------------------------------------------------------------------------------------------------- */

/* Is sequence b causal by the rules of ATB's kernels, whatever mask there is? */
static inline bool is_causal(const decode_case *c, int64_t b)
{
    const decode_config *f = &c->config;
    bool lengths = f->calc == MLA_ATB_CALC_SPEC || f->calc == MLA_ATB_CALC_SPEC_AND_RING;
    return lengths && (c->h == 128 || (is_int8(c) && c->max_q > 1)) && c->use[b] != 0;
}

/* What is added to the score of key p for query j of sequence b, whose packed number is `token`. */
static inline double mask_at(const decode_case *c, int64_t b, int64_t j, int64_t token, int64_t p)
{
    if (c->mask_value == NULL || c->h == 128 || is_int8(c)) {
        return 0;
    }
    if (c->config.mask == MLA_ATB_MASK_SPEC) {
        return c->mask_value[token * c->mask_columns + p];
    }
    int64_t n_block = (c->n_kv[b] + BLOCK - 1) / BLOCK, tail = c->n_kv[b] - BLOCK * (n_block - 1), row = -1;
    if (p / BLOCK == n_block - 1) {
        row = tail - 1 + j;
    } else if (p / BLOCK == n_block - 2 && tail < c->n_q[b] - 1) {
        row = tail + 127 + j;
    }
    int64_t slice = c->config.template_3d ? b : 0;
    return row < 0 || row >= c->mask_rows ? 0 : c->mask_value[(slice * c->mask_rows + row) * BLOCK + p % BLOCK];
}

static inline const float *key_row(const decode_case *c, int64_t b, int64_t p)
{
    return c->k + (c->table[b * c->max_block + p / BLOCK] * (int64_t)BLOCK + p % BLOCK) * WIDTH;
}

typedef struct decode_reference {
    double *out, *rounded; /* [t][h][512]: the truth; with P rounded to 16 bits */
    double *weight;        /* sum of p |v|, to judge errors by */
    double *lse;           /* [t][h] */
} decode_reference;

static inline double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        sum += (double)a[i] * b[i];
    }
    return sum;
}

static inline double scaled_score(const decode_case *c, int64_t h, const float *q, const float *k)
{
    double nope = dot(q, k, NOPE), rope = dot(q + NOPE, k + NOPE, ROPE);
    return (nope * (is_int8(c) ? c->qk_descale[h] : 1) + rope) * c->config.scale;
}

static inline void reference_row(const decode_case *c, int64_t b, int64_t j, int64_t token, int64_t h, double *score,
                                 decode_reference *r)
{
    const float *q = c->q + (token * c->h + h) * WIDTH;
    int64_t n = is_causal(c, b) ? c->n_kv[b] - c->n_q[b] + j + 1 : c->n_kv[b], at = token * c->h + h;
    double *out = r->out + at * NOPE, *rounded = r->rounded + at * NOPE, *weight = r->weight + at * NOPE;
    double largest = -INFINITY, sum = 0, descale = is_int8(c) ? c->pv_descale[h] : 1;
    for (int64_t p = 0; p < n; p++) {
        score[p] = scaled_score(c, h, q, key_row(c, b, p)) + mask_at(c, b, j, token, p);
        largest = fmax(largest, score[p]);
    }
    for (int64_t p = 0; p < n; p++) {
        sum += exp(score[p] - largest);
    }
    r->lse[at] = n > 0 ? largest + log(sum) : -INFINITY;
    for (int64_t p = 0; p < n; p++) {
        double probability = exp(score[p] - largest) / sum * descale;
        double coarse =
            mla_ref_decode(stored_as(c->config.dtype), mla_ref_encode(stored_as(c->config.dtype), probability));
        const float *k = key_row(c, b, p);
        for (int64_t d = 0; d < NOPE; d++) {
            out[d] += probability * k[d];
            rounded[d] += coarse * k[d];
            weight[d] += fabs(probability * k[d]);
        }
    }
}

static inline decode_reference reference_open(const decode_case *c)
{
    int64_t rows = c->t * c->h;
    decode_reference r = {allocate(rows * NOPE * 8), allocate(rows * NOPE * 8), allocate(rows * NOPE * 8),
                          allocate(rows * 8)};
    double *score = allocate(larger(c->max_kv, 1) * 8);
    for (int64_t b = 0, token = 0; b < c->b; b++) {
        for (int64_t j = 0; j < c->n_q[b]; j++, token++) {
            for (int64_t h = 0; h < c->h; h++) {
                reference_row(c, b, j, token, h, score, &r);
            }
        }
    }
    free(score);
    return r;
}

static inline void reference_close(decode_reference *r)
{
    free(r->out);
    free(r->rounded);
    free(r->weight);
    free(r->lse);
}

/* Outputs as numbers: out [t][h][512], lse [t][h]. */
static inline double *load_all(const mla_atb_tensor *t)
{
    int64_t n = t->dim[0] * t->dim[1] * t->dim[2];
    double *value = allocate(n * 8);
    mla_ref_load_row(t->data, stored_as(t->dtype), 0, n, value);
    return value;
}

#endif
