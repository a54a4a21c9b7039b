/*
 * test_atb_prefill.c - AtbMLAPreFill: the configurations of ATB's own tests, masks of both polarities and of any
 * content, every way of packing keys, and each refusal with its code. Judged as in test_atb_decode.c.
 */
#include "atb_decode_case.h"

#define F16 MLA_ATB_FLOAT16
#define BF16 MLA_ATB_BF16

enum { D = 128, D_ROPE = 64, D_ALL = D + D_ROPE, TEMPLATE = 512 };

/* How keys lie: [B, S, N * d]; rows packed without a gap; rows in slots of the longest length. */
typedef enum key_form { BATCHED, PACKED, PADDED } key_form;

typedef struct prefill_config {
    int32_t dtype, h, n; /* n: key/value heads */
    int32_t b;
    const char *q, *kv; /* tokens of sequences 0, 1, ..., repeated; kv NULL: as q */
    int32_t mask;
    key_form form;
    int32_t s;      /* BATCHED: room per sequence; 0: as much as the longest needs */
    int32_t q_rank; /* 2 or 3 */
    int32_t window; /* MASK_SWA_NORM */
    int32_t spare;  /* query rows behind the last sequence's */
    bool free_mask; /* any content */
    bool long_mode;
} prefill_config;

typedef struct prefill_case {
    prefill_config config;
    int64_t t, rows, max_q, max_kv;
    int32_t *n_q, *n_kv;
    float *q, *k, *v;   /* [t][h][192], [rows][n][192], [rows][n][128] */
    double *mask_value; /* as added */
    int64_t mask_rows, mask_columns;
    void *data[9];
    mla_atb_tensor q_t, q_rope, k_t, k_rope, v_t, q_len, kv_len, mask, out;
    mla_atb_prefill_args args;
} prefill_case;

/* ---- building ---------------------------------------------------------------------------------------------------- */

static int64_t key_row_of(const prefill_case *c, int64_t b)
{
    int64_t row = 0;
    for (int64_t i = 0; i < b; i++) {
        row += c->config.form == BATCHED ? c->config.s : c->config.form == PADDED ? c->max_kv : c->n_kv[i];
    }
    return row;
}

/* [rows][heads][nope | rope] in one array of numbers, in two of storage */
static float *fill_halves(void *nope_data, void *rope_data, int32_t dtype, int64_t rows)
{
    float *nope = allocate(rows * D * 4), *rope = allocate(rows * D_ROPE * 4), *both = allocate(rows * D_ALL * 4);
    random_fill(nope_data, dtype, nope, rows * D, 1);
    random_fill(rope_data, dtype, rope, rows * D_ROPE, 1);
    for (int64_t i = 0; i < rows; i++) {
        memcpy(both + i * D_ALL, nope + i * D, D * 4);
        memcpy(both + i * D_ALL + D, rope + i * D_ROPE, D_ROPE * 4);
    }
    free(nope);
    free(rope);
    return both;
}

static void build_prefill_mask(prefill_case *c)
{
    const prefill_config *f = &c->config;
    bool window = f->mask == MLA_ATB_MASK_SWA_NORM;
    c->mask_rows = window ? c->max_q : TEMPLATE;
    c->mask_columns = window ? c->max_kv + 7 : TEMPLATE;
    int64_t n = c->mask_rows * c->mask_columns;
    c->mask_value = allocate(n * 8);
    c->data[8] = allocate(n * 2);
    double stored_hidden = f->dtype == BF16 ? 1 : -10000;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = i / c->mask_columns, column = i % c->mask_columns;
        bool hidden = column > row || (window && column <= row - f->window);
        hidden = f->free_mask ? random_bits() % 3 == 0 : hidden;
        double stored = hidden ? stored_hidden : f->free_mask && f->dtype == F16 ? (double)(random_bits() % 8) / 4 : 0;
        mla_ref_store(c->data[8], stored_as(f->dtype), i, stored);
        c->mask_value[i] = f->dtype == BF16 ? stored * -3e38 : stored;
    }
}

static prefill_case *prefill_open(const prefill_config *config)
{
    prefill_case *c = allocate(sizeof *c);
    c->config = *config;
    prefill_config *f = &c->config;
    c->n_q = allocate(f->b * 4);
    c->n_kv = allocate(f->b * 4);
    for (int64_t i = 0; i < f->b; i++) {
        c->n_q[i] = listed(f->q, i);
        c->n_kv[i] = f->kv != NULL ? listed(f->kv, i) : c->n_q[i];
        c->t += c->n_q[i];
        c->max_q = larger(c->max_q, c->n_q[i]);
        c->max_kv = larger(c->max_kv, c->n_kv[i]);
    }
    c->t += f->spare;
    f->s = f->s == 0 ? (int32_t)c->max_kv : f->s;
    c->rows = key_row_of(c, f->b);
    const int64_t q_rows = c->t * f->h, k_rows = c->rows * f->n;
    const int64_t bytes[] = {q_rows * D * 2,      q_rows * D_ROPE * 2, k_rows * D * 2,
                             k_rows * D_ROPE * 2, k_rows * D * 2,      q_rows * D * 2};
    for (int64_t i = 0; i < COUNT(bytes); i++) {
        c->data[i] = allocate(bytes[i]);
    }
    c->q = fill_halves(c->data[0], c->data[1], f->dtype, q_rows);
    c->k = fill_halves(c->data[2], c->data[3], f->dtype, k_rows);
    c->v = allocate(k_rows * D * 4);
    random_fill(c->data[4], f->dtype, c->v, k_rows * D, 1);
    memset(c->data[5], 0xff, (size_t)(q_rows * D * 2));
    const int32_t nd = MLA_ATB_FORMAT_ND;
    const int64_t width[] = {D, D_ROPE, D, D_ROPE, D, D};
    mla_atb_tensor *tensor[] = {&c->q_t, &c->q_rope, &c->k_t, &c->k_rope, &c->v_t, &c->out};
    for (int i = 0; i < 6; i++) {
        bool key = i >= 2 && i <= 4;
        *tensor[i] = key && f->form == BATCHED
                         ? mla_atb_tensor_make(c->data[i], f->dtype, nd, DIMS(f->b, f->s, f->n * width[i]))
                     : key            ? mla_atb_tensor_make(c->data[i], f->dtype, nd, DIMS(c->rows, f->n, width[i]))
                     : f->q_rank == 2 ? mla_atb_tensor_make(c->data[i], f->dtype, nd, DIMS(c->t, f->h * width[i]))
                                      : mla_atb_tensor_make(c->data[i], f->dtype, nd, DIMS(c->t, f->h, width[i]));
    }
    c->q_len = mla_atb_tensor_make(c->n_q, MLA_ATB_INT32, nd, DIMS(f->b));
    c->kv_len = mla_atb_tensor_make(c->n_kv, MLA_ATB_INT32, nd, DIMS(f->b));
    if (f->mask == MLA_ATB_MASK_FREE || f->mask == MLA_ATB_MASK_SWA_NORM) {
        build_prefill_mask(c);
        c->mask = mla_atb_tensor_make(c->data[8], f->dtype, nd, DIMS(c->mask_rows, c->mask_columns));
    }
    c->args = (mla_atb_prefill_args){.struct_size = sizeof c->args,
                                     .q = &c->q_t,
                                     .q_rope = &c->q_rope,
                                     .k = &c->k_t,
                                     .k_rope = &c->k_rope,
                                     .v = &c->v_t,
                                     .q_seq_len = &c->q_len,
                                     .kv_seq_len = &c->kv_len,
                                     .mask = &c->mask,
                                     .atten_out = &c->out};
    mla_atb_param *p = &c->args.param;
    mla_atb_param_init(p);
    p->head_num = f->h;
    p->kv_head_num = f->n;
    p->qk_scale = 0.0721687836f; /* 1 / sqrt(192) */
    p->mask_type = f->mask;
    p->cache_mode = MLA_ATB_KROPE_CTKV;
    p->window_size = (uint32_t)f->window;
    return c;
}

static void prefill_close(prefill_case *c)
{
    for (int64_t i = 0; i < COUNT(c->data); i++) {
        free(c->data[i]);
    }
    void *owned[] = {c->n_q, c->n_kv, c->q, c->k, c->v, c->mask_value};
    for (int64_t i = 0; i < COUNT(owned); i++) {
        free(owned[i]);
    }
    free(c);
}

/* MASK_CAUSAL has no way through the C call, which always gathers a mask; the C++ door sets it up like this. */
static void prefill_run(prefill_case *c)
{
    mla_atb_op *op = NULL;
    uint64_t bytes = 0;
    mla_atb_tensor *const moved[] = {&c->q_t, &c->q_rope, &c->k_t, &c->k_rope, &c->v_t, &c->mask, &c->out};
    placement placed = place(moved, COUNT(moved));
    if (c->config.mask == MLA_ATB_MASK_CAUSAL) {
        mla_atb_param param = c->args.param;
        param.calc_type = MLA_ATB_CALC_PREFILL;
        must(mla_atb_op_create(&param, &op), "create");
        mla_atb_pack pack;
        must(mla_atb_prefill_gather(&c->args, &pack), "gather");
        pack.n_in--;
        must(mla_atb_op_setup(op, &pack, 1, &bytes), "setup");
    } else {
        must(mla_atb_prefill_setup(&op, &c->args, &bytes), "setup");
    }
    must_execute(op, bytes);
    mla_atb_op_destroy(op);
    take_back(&placed);
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

/* Does query i of a sequence see key k, and what is added to its score? */
static bool sees(const prefill_case *c, int64_t b, int64_t i, int64_t k, double *added)
{
    const prefill_config *f = &c->config;
    int64_t tile_q = i / 128, tile_k = k / 128;
    *added = 0;
    switch (f->mask) {
    case MLA_ATB_MASK_CAUSAL: return k <= i + c->n_kv[b] - c->n_q[b];
    case MLA_ATB_MASK_FREE:
        if (tile_k > tile_q) {
            return false;
        }
        if (i / TEMPLATE == k / TEMPLATE) {
            *added = c->mask_value[i % TEMPLATE * TEMPLATE + k % TEMPLATE];
        }
        return true;
    case MLA_ATB_MASK_SWA_NORM:
        if (tile_k > tile_q || (f->window < c->n_kv[b] && tile_k < tile_q - (f->window + 127) / 128)) {
            return false;
        }
        *added = c->mask_value[i * c->mask_columns + k];
        return true;
    default: return true;
    }
}

static void reference_prefill_row(const prefill_case *c, int64_t b, int64_t i, const float *q, int64_t kv_head,
                                  double *score, double *out, double *rounded, double *weight)
{
    int64_t first = key_row_of(c, b);
    double largest = -INFINITY, sum = 0, added;
    for (int64_t k = 0; k < c->n_kv[b]; k++) {
        const float *key = c->k + ((first + k) * c->config.n + kv_head) * D_ALL;
        bool seen = sees(c, b, i, k, &added);
        score[k] = seen ? dot(q, key, D_ALL) * c->args.param.qk_scale + added : -INFINITY;
        largest = fmax(largest, score[k]);
    }
    for (int64_t k = 0; k < c->n_kv[b]; k++) {
        sum += exp(score[k] - largest);
    }
    for (int64_t k = 0; k < c->n_kv[b]; k++) {
        double p = exp(score[k] - largest) / sum;
        double coarse = mla_ref_decode(MLA_DTYPE_BF16, mla_ref_encode(MLA_DTYPE_BF16, p));
        const float *v = c->v + ((first + k) * c->config.n + kv_head) * D;
        for (int64_t d = 0; d < D && p > 0; d++) {
            out[d] += p * v[d];
            rounded[d] += coarse * v[d];
            weight[d] += fabs(p * v[d]);
        }
    }
}

static void judge_prefill(const prefill_case *c)
{
    const prefill_config *f = &c->config;
    int64_t rows = (c->t - f->spare) * f->h, n = rows * D, at = 0;
    double *out = allocate(n * 8), *rounded = allocate(n * 8), *weight = allocate(n * 8), *got = allocate(n * 8);
    double *score = allocate(larger(c->max_kv, 1) * 8);
    for (int64_t b = 0; b < f->b; b++) {
        for (int64_t i = 0; i < c->n_q[b]; i++) {
            for (int64_t h = 0; h < f->h; h++, at++) {
                reference_prefill_row(c, b, i, c->q + at * D_ALL, h / (f->h / f->n), score, out + at * D,
                                      rounded + at * D, weight + at * D);
            }
        }
    }
    mla_ref_load_row(c->data[5], stored_as(f->dtype), 0, n, got);
    assert_true(accepted_by_n(got, rounded, n, f->dtype, f->h * (double)c->max_kv + 4) ||
                accepted_by_d(got, out, rounded, n, f->dtype));
    for (int64_t i = 0; i < n; i++) {
        double limit = half_ulp(f->dtype) * fabs(out[i]) + 1e-4 * weight[i] + 0x1p-25;
        if (!(fabs(got[i] - out[i]) <= limit)) {
            fail_msg("attenOut[%lld] = %.9g instead of %.9g, limit %.3g", (long long)i, got[i], out[i], limit);
        }
    }
    for (int64_t i = n; i < c->t * f->h * D; i++) { /* spare rows are left alone */
        assert_int_equal(((uint16_t *)c->data[5])[i], 0xffff);
    }
    free(out);
    free(rounded);
    free(weight);
    free(got);
    free(score);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* clang-format off: a case is a line */
static const prefill_config CASES[] = {
    {F16, 1, 1, 1, "512", .mask = 0, .q_rank = 2},
    {F16, 1, 1, 1, "128", .mask = 2, .q_rank = 2},
    {BF16, 1, 1, 1, "128", .mask = 2, .q_rank = 2},
    {BF16, 1, 1, 1, "128", .mask = 0, .q_rank = 3},
    {F16, 1, 1, 1, "128", .mask = 3, .q_rank = 2},
    {BF16, 1, 1, 2, "128", .mask = 3, .q_rank = 2},
    {BF16, 2, 1, 2, "128", .mask = 3, .q_rank = 2},
    {BF16, 1, 1, 16, "2048", .mask = 4, .window = 954, .q_rank = 2, .long_mode = true},
    {BF16, 2, 1, 1, "129", "385", .mask = 3, .q_rank = 2},
    {F16, 1, 1, 1, "1024", .mask = 4, .window = 442, .q_rank = 2},
    {BF16, 2, 2, 3, "300 700 5", .mask = 4, .window = 200, .q_rank = 3},
    {F16, 1, 1, 2, "130 400", .mask = 4, .window = 1000, .q_rank = 2, .free_mask = true},
    /* the template slides over squares of 512; any content has its effect, and a query never sees later tiles */
    {F16, 2, 2, 3, "700 129 1", .mask = 2, .q_rank = 3, .form = BATCHED, .s = 720},
    {BF16, 2, 2, 2, "513 640", .mask = 2, .q_rank = 2, .form = PACKED},
    {F16, 1, 1, 2, "1030 300", .mask = 2, .q_rank = 2, .form = PADDED, .free_mask = true},
    {BF16, 2, 2, 2, "200 600", .mask = 2, .q_rank = 2, .form = PACKED, .free_mask = true},
    /* packing and room */
    {F16, 4, 4, 3, "5 0 130", .mask = 0, .q_rank = 3, .form = PACKED, .spare = 9},
    {F16, 4, 4, 3, "5 0 130", .mask = 0, .q_rank = 3, .form = PADDED, .spare = 1},
    {BF16, 3, 3, 3, "5 0 130", .mask = 0, .q_rank = 2, .form = BATCHED, .s = 200},
    {F16, 8, 2, 3, "7 1 33", "40 1 90", .mask = 3, .q_rank = 3, .form = BATCHED, .s = 100, .spare = 2},
    {F16, 1, 1, 4, "4", .mask = 2, .q_rank = 2, .form = BATCHED, .s = 256, .spare = 16},
    {F16, 1, 1, 3, "1", .mask = 0, .q_rank = 2, .form = BATCHED},
    {F16, 128, 128, 1, "9", .mask = 2, .q_rank = 2},
};
/* clang-format on */

static void test_cases(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT(CASES); i++) {
        const prefill_config *f = &CASES[i];
        char name[128];
        snprintf(name, sizeof name, "case %lld: H %d/%d, B %d, q %s, mask %d, form %d", (long long)i, f->h, f->n, f->b,
                 f->q, f->mask, (int)f->form);
        if (f->long_mode && getenv("MLA_TEST_LONG") == NULL) {
            printf("# left out without MLA_TEST_LONG=1: %s\n", name);
            continue;
        }
        printf("# %s\n", name);
        prefill_case *c = prefill_open(f);
        prefill_run(c);
        judge_prefill(c);
        prefill_close(c);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

typedef struct refusal {
    const char *words;
    int32_t code, mask;
    key_form form;
    void (*spoil)(prefill_case *c);
} refusal;

#define SPOIL(name, statement)                \
    static void spoil_##name(prefill_case *c) \
    {                                         \
        statement;                            \
    }

/* clang-format off: a rule is a line */
SPOIL(nothing, (void)c)
SPOIL(heads, c->args.param.head_num = 129)
SPOIL(no_heads, c->args.param.head_num = c->args.param.kv_head_num = 0)
SPOIL(kv_heads, c->args.param.kv_head_num = 1)
SPOIL(spec, c->args.param.mask_type = 1)
SPOIL(cache, c->args.param.cache_mode = 3)
SPOIL(scale, c->args.param.qk_scale = NAN)
SPOIL(window, c->args.param.mask_type = 4; c->args.param.window_size = 0)
SPOIL(causal, c->args.param.mask_type = 3; c->args.mask = &c->q_rope)
SPOIL(null_v, c->args.v = NULL)
SPOIL(null_mask, c->args.mask = NULL)
SPOIL(empty, c->v_t.dim[0] = 0)
SPOIL(bool_mask, c->mask.dtype = 12)
SPOIL(nhwc, c->k_t.format = 1)
SPOIL(mixed, c->v_t.dtype = MLA_ATB_BF16)
SPOIL(lens_i64, c->q_len.dtype = 9)
SPOIL(q_rank, c->q_t.ndim = 1)
SPOIL(rope_rank, c->q_rope.ndim = 3; c->q_rope.dim[2] = 1)
SPOIL(k_rank, c->k_t.ndim = 2)
SPOIL(mask_rank_1, c->mask.ndim = 1; c->mask.stride[0] = 1)
SPOIL(mask_rank_3, c->mask = mla_atb_tensor_make(c->data[8], F16, 2, DIMS(1, 512, 512)))
SPOIL(batch, c->q_len.dim[0] = 8193)
SPOIL(lens, c->kv_len.dim[0] = 3)
SPOIL(q_width, c->q_t.dim[1] = 100)
SPOIL(rope_tokens, c->q_rope.dim[0] = 3)
SPOIL(k_width, c->k_t.dim[2] = 100)
SPOIL(k_rope_width, c->k_rope.dim[2] = 100)
SPOIL(v_rows, c->v_t.dim[1] = 9)
SPOIL(mask_513, c->mask.dim[0] = 513)
SPOIL(out_rank, c->out.ndim = 1)
SPOIL(out_tokens, c->out.dim[0] = 3)
SPOIL(lens_address, c->kv_len.data = NULL)
SPOIL(v_address, c->v_t.data = NULL)
SPOIL(unequal, c->n_kv[0] = 4)
SPOIL(zero, c->n_q[0] = c->n_q[1] = c->n_kv[0] = c->n_kv[1] = 0)
SPOIL(negative, c->n_q[0] = c->n_kv[0] = -1)
SPOIL(sum_q, c->n_q[0] = c->n_kv[0] = 6)
SPOIL(too_long, c->n_q[0] = c->n_kv[0] = 60; c->q_t.dim[0] = c->q_rope.dim[0] = c->out.dim[0] = 90)
SPOIL(few_rows, c->n_q[0] = c->n_kv[0] = 6; c->q_t.dim[0] = c->q_rope.dim[0] = c->out.dim[0] = 90)

static const refusal REFUSALS[] = {
    {NULL, 0, 0, BATCHED, spoil_nothing},
    {NULL, 0, 2, BATCHED, spoil_nothing},
    {"headNum = 129", 1, 0, BATCHED, spoil_heads},
    {"headNum = 0", 1, 0, BATCHED, spoil_no_heads},
    {"kvHeadNum = 1 must be headNum = 2", 1, 0, BATCHED, spoil_kv_heads},
    {"maskType = 1 (SPEC) belongs to decode", 1, 0, BATCHED, spoil_spec},
    {"cacheMode = 3 must be 1", 1, 0, BATCHED, spoil_cache},
    {"qkScale = nan", 1, 0, BATCHED, spoil_scale},
    {"windowSize = 0 must be positive", 1, 0, BATCHED, spoil_window},
    {"8 input and 1 output tensors are given", 5, 0, BATCHED, spoil_causal},
    {"v is missing", 8, 0, BATCHED, spoil_null_v},
    {"mask is missing", 8, 2, BATCHED, spoil_null_mask},
    {"v must have between 1 byte", 9, 0, BATCHED, spoil_empty},
    {"mask is bool (12)", 13, 2, BATCHED, spoil_bool_mask},
    {"k has format 1", 13, 0, BATCHED, spoil_nhwc},
    {"v is bfloat16 (27)", 13, 0, BATCHED, spoil_mixed},
    {"qSeqLen is int64 (9)", 13, 0, BATCHED, spoil_lens_i64},
    {"q has 1 dims and must have 2 or 3", 16, 0, BATCHED, spoil_q_rank},
    {"qRope has 3 dims and must have 2", 16, 0, BATCHED, spoil_rope_rank},
    {"k has 2 dims and must have 3", 16, 0, BATCHED, spoil_k_rank},
    {"mask has 1 dims", 16, 2, BATCHED, spoil_mask_rank_1},
    {"mask has 3 dims", 4, 2, BATCHED, spoil_mask_rank_3},
    {"qSeqLen.dims[0] = 8193 must be at most 8192", 8, 0, BATCHED, spoil_batch},
    {"kvSeqLen.dims[0] = 3 must be 2", 8, 0, BATCHED, spoil_lens},
    {"q.dims[1] = 100 must be 256", 8, 0, BATCHED, spoil_q_width},
    {"qRope.dims[0] = 3 must be 10", 8, 0, BATCHED, spoil_rope_tokens},
    {"k has dims [2, 50, 100]", 8, 0, BATCHED, spoil_k_width},
    {"kRope.dims[2] = 100 must be 128", 8, 0, BATCHED, spoil_k_rope_width},
    {"v.dims[1] = 9 must be 50", 8, 0, BATCHED, spoil_v_rows},
    {"mask.dims[0] = 513 must be 512", 8, 2, BATCHED, spoil_mask_513},
    {"attenOut has 1 dims and must have 2", 16, 0, BATCHED, spoil_out_rank},
    {"attenOut.dims[0] = 3 must be 10", 8, 0, BATCHED, spoil_out_tokens},
    {"kvSeqLen has no address in host memory", 1, 0, BATCHED, spoil_lens_address},
    {"v has no address in device memory", 14, 0, BATCHED, spoil_v_address},
    {"qSeqLen[0] = 5 must be equal to kvSeqLen[0] = 4", 1, 0, BATCHED, spoil_unequal},
    {"kvSeqLen is 0 for every sequence", 4, 2, BATCHED, spoil_zero},
    {NULL, 0, 0, BATCHED, spoil_zero},
    {"qSeqLen[0] = -1 is negative", 4, 2, BATCHED, spoil_negative},
    {"qSeqLen[0] = -1 is negative", 1, 0, BATCHED, spoil_negative},
    {"qSeqLen sums up to 11, but q.dims[0] = 10", 8, 0, BATCHED, spoil_sum_q},
    {"k.dims[1] = 50 must be at least 60", 8, 0, BATCHED, spoil_too_long},
    {"k.dims[0] = 10 must be at least 11, the sum of kvSeqLen", 8, 0, PACKED, spoil_few_rows},
};
/* clang-format on */

static void test_refusals(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT(REFUSALS); i++) {
        const refusal *r = &REFUSALS[i];
        prefill_config f = {F16, 2, 2, 2, "5", .mask = r->mask, .form = r->form, .s = 50, .q_rank = 2};
        prefill_case *c = prefill_open(&f);
        r->spoil(c);
        mla_atb_op *op = NULL;
        uint64_t bytes;
        int32_t code = mla_atb_prefill_setup(&op, &c->args, &bytes);
        if (code != r->code || (r->words != NULL && strstr(mla_last_error(), r->words) == NULL)) {
            fail_msg("row %lld: %d \"%s\" instead of %d \"%s\"", (long long)i, code, mla_last_error(), r->code,
                     r->words != NULL ? r->words : "");
        }
        mla_atb_op_destroy(op);
        prefill_close(c);
    }
}

/* What only the C++ door can reach. */
static void test_refusals_without_gathering(void **state)
{
    (void)state;
    static const struct {
        const char *words, *q, *kv;
        int32_t code, mask, h, n;
        int64_t mask_rows;
    } rows[] = {
        {"must be at most kvSeqLen[1] = 4", "5", "6 4", 1, 3, 2, 2, 0},
        {"kvHeadNum = 2 must divide headNum = 3", "5", "6", 1, 3, 3, 2, 0},
        {"kvHeadNum = 0 must divide", "5", "6", 1, 3, 3, 0, 0},
        {"must be at least [5, 5]", "5", "5", 8, 4, 2, 2, 4},
        {"with no more rows than columns", "5", "5", 8, 4, 2, 2, 20},
    };
    for (int64_t i = 0; i < COUNT(rows); i++) {
        prefill_config f = {F16, 6, 6, 2, rows[i].q, rows[i].kv, .mask = rows[i].mask, .window = 3, .q_rank = 2};
        prefill_case *c = prefill_open(&f);
        mla_atb_param param = c->args.param;
        param.calc_type = MLA_ATB_CALC_PREFILL;
        mla_atb_op *op = NULL;
        uint64_t bytes;
        if (rows[i].h != 2) {
            param.head_num = rows[i].h;
            param.kv_head_num = rows[i].n;
        }
        int32_t code = mla_atb_op_create(&param, &op);
        if (code == 0) {
            mla_atb_pack pack;
            must(mla_atb_prefill_gather(&c->args, &pack), "gather");
            pack.n_in = mla_atb_op_n_in(op);
            c->mask.dim[0] = rows[i].mask_rows != 0 ? rows[i].mask_rows : c->mask.dim[0];
            code = mla_atb_op_setup(op, &pack, 1, &bytes);
        }
        if (code != rows[i].code || strstr(mla_last_error(), rows[i].words) == NULL) {
            fail_msg("row %lld: %d \"%s\"", (long long)i, code, mla_last_error());
        }
        mla_atb_op_destroy(op);
        prefill_close(c);
    }
}

/* One row of keys a sequence, one head: [B, 1, 128] is batched or packed. As many rows as keys: packed. */
static void test_ambiguous_rows(void **state)
{
    (void)state;
    prefill_config f = {F16, 1, 1, 3, "1 0 1", .form = BATCHED, .s = 1, .q_rank = 2};
    prefill_case *c = prefill_open(&f); /* 3 rows, 2 keys: sequence 2 has row 2 */
    prefill_run(c);
    judge_prefill(c);
    prefill_close(c);
    f.b = 2; /* 2 rows, 1 key */
    c = prefill_open(&f);
    prefill_run(c);
    judge_prefill(c);
    prefill_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refusals_without_gathering),
        cmocka_unit_test(test_ambiguous_rows),
    };
    return cmocka_run_group_tests_name("ATB: prefill", tests, NULL, NULL);
}
