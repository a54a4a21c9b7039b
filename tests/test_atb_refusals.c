/*
 * test_atb_refusals.c - the ATB door's refusals: which scalars go together, and each rule of the tensors with its code.
 */
#include "atb_decode_case.h"

static int32_t set_up(const mla_atb_decode_args *args, mla_atb_op **op)
{
    uint64_t bytes = 0;
    *op = NULL;
    return mla_atb_decode_setup(op, args, &bytes);
}

static int32_t set_up_once(const mla_atb_decode_args *args)
{
    mla_atb_op *op;
    int32_t code = set_up(args, &op);
    mla_atb_op_destroy(op);
    return code;
}

/* ---- calcType x maskType x cacheMode ----------------------------------------------------------------------------- */

/* A small legal call for any scalars: q_b = 1 where ATB wants one token each. */
static decode_config small(int32_t calc, int32_t mask, int32_t cache)
{
    bool lengths = calc == MLA_ATB_CALC_SPEC || calc == MLA_ATB_CALC_SPEC_AND_RING;
    return (decode_config){.h = 8,
                           .b = 2,
                           .q = lengths ? "2" : NULL,
                           .ctx = "5 130",
                           .dtype = MLA_ATB_FLOAT16,
                           .cache = cache,
                           .calc = calc,
                           .mask = mask};
}

/* The matrix of the contract; a row: cache modes 0 (refused), 1, 2, 3. */
static const struct {
    int32_t calc, mask, code[4];
} MATRIX[] = {
    {0, 0, {1, 0, 0, 0}},  {0, 1, {1, 1, 1, 1}}, {0, 2, {1, 1, 1, 1}},  {0, 3, {1, 1, 1, 1}}, {0, 4, {1, 1, 1, 1}},
    {1, 0, {1, 0, 0, 0}},  {1, 1, {1, 0, 0, 0}}, {1, 2, {1, 0, 0, 0}},  {1, 3, {1, 5, 5, 5}}, {1, 4, {1, 1, 1, 1}},
    {2, 0, {1, 0, 0, 0}},  {2, 1, {1, 1, 1, 1}}, {2, 2, {1, 1, 1, 1}},  {2, 3, {1, 1, 1, 1}}, {2, 4, {1, 1, 1, 1}},
    {3, 0, {1, 5, 5, 5}},  {3, 1, {1, 5, 1, 5}}, {3, 2, {1, 5, 1, 5}},  {3, 3, {1, 5, 1, 5}}, {3, 4, {1, 1, 1, 1}},
    {4, 0, {1, 1, 1, 1}},  {4, 1, {1, 1, 1, 1}}, {4, 2, {1, 1, 1, 1}},  {4, 4, {1, 1, 1, 1}}, {5, 0, {1, 1, 1, 1}},
    {-1, 0, {1, 1, 1, 1}}, {0, 5, {1, 1, 1, 1}}, {1, -1, {1, 1, 1, 1}},
};

static void test_matrix(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT(MATRIX); i++) {
        for (int32_t cache = 0; cache <= 3; cache++) {
            int32_t calc = MATRIX[i].calc, mask = MATRIX[i].mask;
            decode_config f = small(calc, mask, cache);
            decode_case *c = decode_open(&f);
            c->args.param.flags = 0;
            if (calc == MLA_ATB_CALC_SPEC_AND_RING) {
                c->args.q_seq_len = c->args.lse = NULL; /* ATB gathers neither */
            }
            if (mask == MLA_ATB_MASK_CAUSAL) {
                c->args.mask = &c->q_rope; /* whatever it is */
            }
            mla_atb_op *op;
            int32_t code = set_up(&c->args, &op);
            if (code != MATRIX[i].code[cache]) {
                fail_msg("calc %d, mask %d, cache %d: %d instead of %d (%s)", calc, mask, cache, code,
                         MATRIX[i].code[cache], mla_last_error());
            }
            assert_true((op == NULL) == (code == 1)); /* only creation leaves it NULL */
            mla_atb_op_destroy(op);
            if (code == 0) { /* and it runs */
                decode_run(c);
            }
            decode_close(c);
        }
    }
}

/* CALC_SPEC_AND_RING with both of its tensors, and the concatenated cache, are libmla's own. */
static void test_extensions(void **state)
{
    (void)state;
    static const struct {
        int32_t mask, cache, code;
    } rows[] = {{0, 1, 0}, {1, 1, 0}, {2, 1, 0}, {3, 1, 5}, {4, 1, 1}, {0, 2, 0}, {1, 2, 1},
                {2, 2, 1}, {3, 2, 1}, {0, 3, 0}, {1, 3, 0}, {2, 3, 0}, {3, 3, 5}};
    for (int64_t i = 0; i < COUNT(rows); i++) {
        decode_config f = small(MLA_ATB_CALC_SPEC_AND_RING, rows[i].mask, rows[i].cache);
        decode_case *c = decode_open(&f);
        assert_int_equal(set_up_once(&c->args), rows[i].code);
        c->args.lse = NULL;
        assert_int_equal(set_up_once(&c->args), rows[i].code == 1 ? 1 : 5);
        decode_close(c);
    }
    decode_config f = small(MLA_ATB_CALC_RING, 0, MLA_ATB_KVCACHE);
    decode_case *c = decode_open(&f);
    decode_run(c);
    c->args.param.flags = 0;
    assert_int_equal(set_up_once(&c->args), 1);
    decode_close(c);
}

/* calcType 4 through the decode call: a cache of its own shape never fits. */
static void test_prefill_scalars_in_decode(void **state)
{
    (void)state;
    for (int32_t mask = 0; mask <= 4; mask++) {
        decode_config f = small(MLA_ATB_CALC_PREFILL, mask, MLA_ATB_KROPE_CTKV);
        decode_case *c = decode_open(&f);
        c->args.mask = &c->q_rope;
        int32_t h_is_n = mask == 1 || mask == 4 ? 1 : mask == 3 ? 13 : 5;
        c->args.param.kv_head_num = c->args.param.head_num;
        assert_int_equal(set_up_once(&c->args), h_is_n);
        decode_close(c);
    }
}

/* ---- one broken argument ----------------------------------------------------------------------------------------- */

typedef struct refusal {
    const char *words; /* in the sentence */
    int32_t code;
    int32_t calc, mask, cache;
    void (*spoil)(decode_case *c);
} refusal;

#define SPOIL(name, statement)               \
    static void spoil_##name(decode_case *c) \
    {                                        \
        statement;                           \
    }

/* clang-format off: a rule is a line */
SPOIL(heads, c->args.param.head_num = 129)
SPOIL(no_heads, c->args.param.head_num = 0)
SPOIL(kv_heads, c->args.param.kv_head_num = 2)
SPOIL(scale_100, c->args.param.qk_scale = 100)
SPOIL(scale_0, c->args.param.qk_scale = 0)
SPOIL(scale_nan, c->args.param.qk_scale = NAN)
SPOIL(cache_4, c->args.param.cache_mode = 4)
SPOIL(cache_255, c->args.param.cache_mode = 255)
SPOIL(calc_5, c->args.param.calc_type = 5)
SPOIL(param_size, c->args.param.struct_size = 8)
SPOIL(args_size, c->args.struct_size = 8)
SPOIL(rank_9, c->q_nope.ndim = 9)
SPOIL(rank_9_lens, c->context_lens.ndim = 9)
SPOIL(null_q, c->args.q_nope = NULL)
SPOIL(null_table, c->args.block_tables = NULL)
SPOIL(null_mask, c->args.mask = NULL)
SPOIL(null_q_len, c->args.q_seq_len = NULL)
SPOIL(null_descale, c->args.pv_descale = NULL)
SPOIL(null_out, c->args.atten_out = NULL)
SPOIL(null_lse, c->args.lse = NULL)
SPOIL(rank_0, c->k_rope.ndim = 0)
SPOIL(empty, c->k_rope.dim[0] = 0)
SPOIL(int4, c->q_rope.dtype = 29)
SPOIL(huge, c->ct_kv.dim[0] = (int64_t)1 << 31)
SPOIL(overflow, c->ct_kv.dim[0] = INT64_MAX)
SPOIL(negative, c->block_tables.dim[1] = -1)
SPOIL(q_f32, c->q_nope.dtype = MLA_ATB_FLOAT)
SPOIL(q_bf16, c->q_nope.dtype = MLA_ATB_BF16)
SPOIL(q_int8, c->q_nope.dtype = MLA_ATB_INT8)
SPOIL(q_half, c->q_nope.dtype = MLA_ATB_FLOAT16)
SPOIL(rope_int8, c->q_rope.dtype = MLA_ATB_INT8)
SPOIL(table_i64, c->block_tables.dtype = 9)
SPOIL(lens_i64, c->context_lens.dtype = 9)
SPOIL(mask_f32, c->mask.dtype = MLA_ATB_FLOAT)
SPOIL(descale_half, c->qk_descale_t.dtype = MLA_ATB_FLOAT16)
SPOIL(lse_half, c->lse.dtype = MLA_ATB_FLOAT16)
SPOIL(lse_float, c->lse.dtype = MLA_ATB_FLOAT)
SPOIL(out_bf16, c->out.dtype = MLA_ATB_BF16)
SPOIL(kv_nd, c->ct_kv.format = MLA_ATB_FORMAT_ND)
SPOIL(kv_nz, c->ct_kv.format = MLA_ATB_FORMAT_FRACTAL_NZ)
SPOIL(q_nhwc, c->q_nope.format = 1)
SPOIL(q_rank, c->q_nope.ndim = 2)
SPOIL(rope_rank, c->q_rope.ndim = 4; c->q_rope.dim[3] = 1)
SPOIL(kv_rank, c->ct_kv.ndim = 3)
SPOIL(k_rope_rank, c->k_rope.ndim = 3)
SPOIL(table_rank, c->block_tables.ndim = 1)
SPOIL(lens_rank, c->context_lens.ndim = 2; c->context_lens.dim[1] = 1)
SPOIL(batch_8200, c->block_tables.dim[0] = 8200)
SPOIL(batch_3, c->q_nope.dim[0] = 3)
SPOIL(lens_3, c->context_lens.dim[0] = 3)
SPOIL(block_64, c->ct_kv.dim[1] = 64)
SPOIL(block_1234, c->ct_kv.dim[2] = 1234)
SPOIL(rope_tokens, c->q_rope.dim[0] = 1)
SPOIL(rope_blocks, c->k_rope.dim[0] = 1)
SPOIL(rope_block_size, c->k_rope.dim[1] = 64)
SPOIL(kv_head_dim, c->ct_kv.dim[2] = 5)
SPOIL(q_heads, c->q_nope.dim[1] = 16)
SPOIL(q_width, c->q_nope.dim[2] = 128)
SPOIL(kv_width, c->ct_kv.dim[3] = 64)
SPOIL(q_len_rank, c->q_seq_len.ndim = 2; c->q_seq_len.dim[1] = 1)
SPOIL(q_len_3, c->q_seq_len.dim[0] = 3)
SPOIL(descale_rank, c->pv_descale_t.ndim = 2; c->pv_descale_t.dim[1] = 1)
SPOIL(descale_65, c->qk_descale_t.dim[0] = 65)
SPOIL(out_rank, c->out.ndim = 2)
SPOIL(out_tokens, c->out.dim[0] = 1)
SPOIL(out_width, c->out.dim[2] = 128)
SPOIL(lse_rank, c->lse.ndim = 2)
SPOIL(lse_width, c->lse.dim[2] = 8)
SPOIL(lens_address, c->context_lens.data = NULL)
SPOIL(q_len_address, c->q_seq_len.data = NULL)
SPOIL(q_address, c->q_nope.data = NULL)
SPOIL(out_address, c->out.data = NULL)
SPOIL(strided, c->q_nope.stride[0] *= 2)
SPOIL(mask_rank, c->mask.ndim = 1; c->mask.stride[0] = 1)
SPOIL(mask_rows, c->mask.dim[0] = 1)
SPOIL(mask_columns, c->mask.dim[1] = c->mask.stride[0] = 100)
SPOIL(slices, c->mask = mla_atb_tensor_make(c->mask_data, c->config.dtype, 2, DIMS(3, 129, 128)))
SPOIL(template_rows, c->mask.dim[0] = 131)
SPOIL(sum_q, c->n_q[0] = 3)
SPOIL(negative_q, c->n_q[0] = -1)
SPOIL(no_q, c->n_q[0] = c->n_q[1] = 0)
SPOIL(negative_ctx, c->n_kv[0] = -1)
SPOIL(long_ctx, c->n_kv[0] = 257)

static const refusal REFUSALS[] = {
    /* creation: 1 */
    {"headNum = 129", 1, 0, 0, 1, spoil_heads},
    {"headNum = 0", 1, 0, 0, 1, spoil_no_heads},
    {"kvHeadNum = 2", 1, 0, 0, 1, spoil_kv_heads},
    {"qkScale = 100", 1, 0, 0, 1, spoil_scale_100},
    {"qkScale = 0", 1, 0, 0, 1, spoil_scale_0},
    {"qkScale = nan", 1, 0, 0, 1, spoil_scale_nan},
    {"cacheMode = 4", 1, 0, 0, 1, spoil_cache_4},
    {"cacheMode = 255", 1, 0, 0, 1, spoil_cache_255},
    {"calcType = 5", 1, 0, 0, 1, spoil_calc_5},
    {"struct_size of param", 1, 0, 0, 1, spoil_param_size},
    {"struct_size = 8 of the arguments", 1, 0, 0, 1, spoil_args_size},
    /* gathering: 8 */
    {"qNope has 9 dims", 8, 0, 0, 1, spoil_rank_9},
    {"contextLens has 9 dims", 8, 0, 0, 1, spoil_rank_9_lens},
    /* presence: 8 */
    {"qNope is missing", 8, 0, 0, 1, spoil_null_q},
    {"blockTables is missing", 8, 0, 0, 1, spoil_null_table},
    {"mask is missing", 8, 1, 1, 1, spoil_null_mask},
    {"qSeqLen is missing", 8, 1, 0, 1, spoil_null_q_len},
    {"pvDescale is missing", 8, 0, 0, 2, spoil_null_descale},
    {"attenOut is missing", 8, 0, 0, 1, spoil_null_out},
    {"lse is missing", 8, 2, 0, 1, spoil_null_lse},
    {"kRope must have 1 to 8 dims", 8, 0, 0, 1, spoil_rank_0},
    /* sizes: 9 */
    {"kRope must have between 1 byte and 256 GiB", 9, 0, 0, 1, spoil_empty},
    {"qRope has dtype 29, whose size is not known", 9, 0, 0, 1, spoil_int4},
    {"ctKV must have between 1 byte", 9, 0, 0, 1, spoil_huge},
    {"ctKV must have between 1 byte", 9, 0, 0, 1, spoil_overflow},
    {"blockTables must have between 1 byte", 9, 0, 0, 1, spoil_negative},
    /* dtypes and formats: 13 */
    {"qNope is float (0)", 13, 0, 0, 1, spoil_q_f32},
    {"qNope is bfloat16 (27)", 13, 0, 0, 1, spoil_q_bf16},
    {"qNope is int8 (2)", 13, 0, 0, 1, spoil_q_int8},
    {"qNope is int8 (2)", 13, 1, 0, 3, spoil_q_int8},
    {"qNope is float16 (1) and must be int8", 13, 0, 0, 2, spoil_q_half},
    {"qNope is float16 (1) and must be int8", 13, 1, 0, 2, spoil_q_half},
    {"qRope is int8 (2)", 13, 0, 0, 1, spoil_rope_int8},
    {"blockTables is int64 (9)", 13, 0, 0, 1, spoil_table_i64},
    {"contextLens is int64 (9) and must be int32", 13, 0, 0, 1, spoil_lens_i64},
    {"mask is float (0)", 13, 1, 1, 1, spoil_mask_f32},
    {"qkDescale is float16 (1) and must be float", 13, 0, 0, 2, spoil_descale_half},
    {"lse is float16 (1) and must be float", 13, 2, 0, 2, spoil_lse_half},
    {"lse is float (0)", 13, 2, 0, 1, spoil_lse_float},
    {"attenOut is bfloat16", 13, 0, 0, 1, spoil_out_bf16},
    {"ctKV has format 2 and must have 29 (FRACTAL_NZ)", 13, 0, 0, 2, spoil_kv_nd},
    {"ctKV has format 2 and must have 29", 13, 2, 0, 2, spoil_kv_nd},
    {"ctKV has format 2 and must have 29", 13, 0, 0, 3, spoil_kv_nd},
    {"ctKV has format 29 and must have 2 (ND)", 13, 0, 0, 1, spoil_kv_nz},
    {"qNope has format 1", 13, 0, 0, 1, spoil_q_nhwc},
    /* ... which are not looked at where ATB has no entry for the call */
    {NULL, 0, 1, 0, 2, spoil_kv_nd},
    {NULL, 0, 1, 0, 3, spoil_kv_nd},
    {NULL, 0, 2, 0, 3, spoil_kv_nd},
    {NULL, 0, 2, 0, 3, spoil_lse_float},
    {NULL, 0, 1, 1, 2, spoil_mask_f32},
    {NULL, 0, 1, 1, 2, spoil_mask_rank},
    /* ranks: 16 */
    {"qNope has 2 dims and must have 3", 16, 0, 0, 1, spoil_q_rank},
    {"qRope has 4 dims", 16, 0, 0, 1, spoil_rope_rank},
    {"ctKV has 3 dims", 16, 0, 0, 1, spoil_kv_rank},
    {"kRope has 3 dims and must have 4", 16, 0, 0, 1, spoil_k_rope_rank},
    {"blockTables has 1 dims", 16, 0, 0, 1, spoil_table_rank},
    {"contextLens has 2 dims", 16, 0, 0, 1, spoil_lens_rank},
    /* dims: 8 */
    {"blockTables.dims[0] = 8200 must be at most 8192", 8, 0, 0, 1, spoil_batch_8200},
    {"qNope.dims[0] = 3 must be 2", 8, 0, 0, 1, spoil_batch_3},
    {"contextLens.dims[0] = 3 must be 2", 8, 0, 0, 1, spoil_lens_3},
    {"ctKV.dims[1] = 64 must be 128", 8, 0, 0, 1, spoil_block_64},
    {"ctKV.dims[2] = 1234 must be 128", 8, 0, 0, 2, spoil_block_1234},
    {"ctKV.dims[2] = 1234 must be 128", 8, 0, 0, 3, spoil_block_1234},
    {"qRope.dims[0] = 1 must be 2", 8, 0, 0, 1, spoil_rope_tokens},
    {"kRope.dims[0] = 1 must be 4", 8, 0, 0, 1, spoil_rope_blocks},
    {"kRope.dims[1] = 64 must be 128", 8, 0, 0, 1, spoil_rope_block_size},
    {"ctKV.dims[2] = 5 must be 1", 8, 0, 0, 1, spoil_kv_head_dim},
    {"qNope.dims[1] = 16 must be 8", 8, 0, 0, 1, spoil_q_heads},
    {"qNope.dims[2] = 128 must be 512", 8, 0, 0, 1, spoil_q_width},
    {"ctKV.dims[3] = 64 must be 512", 8, 0, 0, 1, spoil_kv_width},
    /* the rest, rank before dims */
    {"qSeqLen has 2 dims", 16, 1, 0, 1, spoil_q_len_rank},
    {"qSeqLen.dims[0] = 3 must be 2", 8, 1, 0, 1, spoil_q_len_3},
    {"pvDescale has 2 dims", 16, 2, 0, 2, spoil_descale_rank},
    {"pvDescale has 2 dims", 16, 0, 0, 2, spoil_descale_rank},
    {"qkDescale.dims[0] = 65 must be 8", 8, 2, 0, 2, spoil_descale_65},
    {"qkDescale.dims[0] = 65 must be 8", 8, 1, 0, 2, spoil_descale_65},
    {"attenOut has 2 dims", 16, 0, 0, 1, spoil_out_rank},
    {"attenOut has 2 dims", 16, 2, 0, 2, spoil_out_rank},
    {"attenOut.dims[0] = 1 must be 2", 8, 0, 0, 1, spoil_out_tokens},
    {"attenOut.dims[2] = 128 must be 512", 8, 2, 0, 2, spoil_out_width},
    {"lse has 2 dims", 16, 2, 0, 1, spoil_lse_rank},
    {"lse.dims[2] = 8 must be 1", 8, 2, 0, 2, spoil_lse_width},
    {"qNope has stride", 8, 0, 0, 1, spoil_strided},
    /* addresses */
    {"contextLens has no address in host memory", 1, 0, 0, 1, spoil_lens_address},
    {"qSeqLen has no address in host memory", 1, 1, 0, 1, spoil_q_len_address},
    {"qNope has no address in device memory", 14, 0, 0, 1, spoil_q_address},
    {"attenOut has no address in device memory", 14, 0, 0, 1, spoil_out_address},
    /* masks */
    {"mask has 1 dims and must have 2", 8, 1, 1, 1, spoil_mask_rank},
    {"mask.dims[0] = 1 must be 4", 8, 1, 1, 1, spoil_mask_rows},
    {"mask.dims[1] = 100 must be at least 130", 8, 1, 1, 1, spoil_mask_columns},
    {"mask.dims[0] = 3 must be 2", 8, 1, 2, 1, spoil_slices},
    {"mask.dims[0] = 131 must be 129", 8, 1, 2, 1, spoil_template_rows},
    {"mask.dims[1] = 100 must be 128", 8, 1, 2, 1, spoil_mask_columns},
    /* lengths */
    {"qSeqLen sums up to 5", 8, 1, 0, 1, spoil_sum_q},
    {"qSeqLen[0] = -1 is negative", 1, 1, 0, 1, spoil_negative_q},
    {"qSeqLen is 0 for every sequence", 1, 1, 0, 1, spoil_no_q},
    {"contextLens[0] = -1 is negative", 1, 0, 0, 1, spoil_negative_ctx},
    {"contextLens[0] = 257 exceeds the 256", 8, 0, 0, 1, spoil_long_ctx},
};
/* clang-format on */

static void test_refusals(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT(REFUSALS); i++) {
        const refusal *r = &REFUSALS[i];
        decode_config f = small(r->calc, r->mask, r->cache);
        decode_case *c = decode_open(&f);
        int32_t sane = set_up_once(&c->args);
        assert_int_equal(sane, 0);
        r->spoil(c);
        int32_t code = set_up_once(&c->args);
        if (code != r->code || (r->words != NULL && strstr(mla_last_error(), r->words) == NULL)) {
            fail_msg("row %lld: %d \"%s\" instead of %d \"%s\"", (long long)i, code, mla_last_error(), r->code,
                     r->words != NULL ? r->words : "");
        }
        uint16_t *out = c->out_data; /* untouched */
        for (int64_t k = 0; k < c->t * c->h * NOPE; k++) {
            assert_int_equal(out[k], 0xffff);
        }
        decode_close(c);
    }
}

/* Tensors that the scalars have no use for may be anything. */
static void test_ignored_tensors(void **state)
{
    (void)state;
    for (int32_t cache = 1; cache <= 3; cache++) {
        decode_config f = small(0, 0, cache);
        decode_case *c = decode_open(&f);
        mla_atb_tensor nonsense = {.dtype = -7, .ndim = 99};
        c->args.mask = c->args.q_seq_len = c->args.lse = &nonsense;
        if (cache != MLA_ATB_INT8_NZCACHE) {
            c->args.qk_descale = c->args.pv_descale = &nonsense;
        }
        decode_run(c);
        c->args.mask = c->args.q_seq_len = c->args.lse = NULL;
        decode_run(c);
        decode_close(c);
    }
}

/* ---- order of checks --------------------------------------------------------------------------------------------- */

/* Two faults at once: the earlier stage wins. */
static void test_order(void **state)
{
    (void)state;
    void (*const stages[])(decode_case *) = {spoil_scale_0, spoil_rank_9_lens, spoil_null_q,       spoil_empty,
                                             spoil_q_bf16,  spoil_table_rank,  spoil_lens_3,       spoil_block_64,
                                             spoil_q_len_3, spoil_out_width,   spoil_q_len_address};
    static const int32_t codes[] = {1, 8, 8, 9, 13, 16, 8, 8, 8, 8, 1};
    static const char *const words[] = {"qkScale",      "contextLens has 9", "qNope is missing", "kRope",
                                        "qNope is",     "blockTables has",   "contextLens.dims", "ctKV.dims",
                                        "qSeqLen.dims", "attenOut.dims",     "no address"};
    for (int64_t first = 0; first < COUNT(stages); first++) {
        for (int64_t second = first + 1; second < COUNT(stages); second++) {
            if (stages[first] == spoil_null_q && stages[second] == spoil_q_bf16) {
                continue; /* the same tensor */
            }
            decode_config f = small(1, 0, 1);
            decode_case *c = decode_open(&f);
            stages[second](c);
            stages[first](c);
            int32_t code = set_up_once(&c->args);
            if (code != codes[first] || strstr(mla_last_error(), words[first]) == NULL) {
                fail_msg("stages %lld and %lld: %d \"%s\"", (long long)first, (long long)second, code,
                         mla_last_error());
            }
            decode_close(c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrix),
        cmocka_unit_test(test_extensions),
        cmocka_unit_test(test_prefill_scalars_in_decode),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_ignored_tensors),
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests_name("ATB: refusals", tests, NULL, NULL);
}
