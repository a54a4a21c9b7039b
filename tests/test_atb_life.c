/*
 * test_atb_life.c - the life of an op of the ATB door: what it keeps, what may change between setup and execution, its
 * workspace, flags, and values that are bad only once they are read.
 */
#define _POSIX_C_SOURCE 200809L
#include <sys/wait.h>
#include <unistd.h>

#include "atb_decode_case.h"

static const decode_config PLAIN =
    {.h = 8, .b = 3, .ctx = "5 130 257", .dtype = MLA_ATB_FLOAT16, .cache = 1, .calc = 2, .f32_lse = false};

static void same_as_reference(const decode_case *c)
{
    decode_reference r = reference_open(c);
    double *out = load_all(&c->out);
    for (int64_t i = 0; i < c->t * c->h * NOPE; i++) {
        if (!(fabs(out[i] - r.out[i]) <= half_ulp(c->config.dtype) * fabs(r.out[i]) + 1e-4 * r.weight[i] + 0x1p-25)) {
            fail_msg("attenOut[%lld] = %g instead of %g", (long long)i, out[i], r.out[i]);
        }
    }
    free(out);
    reference_close(&r);
}

static void poison(decode_case *c)
{
    memset(c->out_data, 0xff, (size_t)(c->t * c->h * NOPE * 2));
    memset(c->lse_data, 0xff, (size_t)(c->t * c->h * 4));
}

/* Lengths by value, the rest by address; contents of device memory count when the op is executed. */
static void test_what_setup_keeps(void **state)
{
    (void)state;
    decode_config f = {.h = 8,
                       .b = 4,
                       .q = "3 1 0 2",
                       .ctx = "129 128 300 257",
                       .dtype = MLA_ATB_FLOAT16,
                       .cache = 1,
                       .calc = 1,
                       .mask = 2,
                       .free_mask = true};
    decode_case *c = decode_open(&f);
    mla_atb_op *op = NULL;
    uint64_t bytes;
    int32_t *lengths[] = {c->n_q, c->n_kv}, saved[2][4];
    mla_atb_tensor tensors[] = {c->q_nope, c->mask, c->block_tables, c->context_lens, c->q_seq_len};
    mla_atb_tensor *const tensor[] = {&c->q_nope, &c->mask, &c->block_tables, &c->context_lens, &c->q_seq_len};
    int64_t table_bytes = c->b * c->max_block * 4, mask_bytes = c->mask_rows * BLOCK * 2;
    int32_t *table = allocate(table_bytes);
    uint16_t *mask = allocate(mask_bytes);
    memcpy(table, c->table, (size_t)table_bytes);
    memcpy(mask, c->mask_data, (size_t)mask_bytes);
    memset(c->table, 0x7f, (size_t)table_bytes); /* on the device they are written later */
    memset(c->mask_data, 0x7f, (size_t)mask_bytes);
    must(mla_atb_decode_setup(&op, &c->args, &bytes), "setup");
    memcpy(c->table, table, (size_t)table_bytes);
    memcpy(c->mask_data, mask, (size_t)mask_bytes);
    for (int i = 0; i < 2; i++) {
        memcpy(saved[i], lengths[i], sizeof saved[i]);
        memset(lengths[i], 0x7f, sizeof saved[i]);
    }
    for (int64_t i = 0; i < COUNT(tensors); i++) {
        memset(tensor[i], 0x7f, sizeof *tensor[i]);
    }
    for (int repeat = 0; repeat < 2; repeat++) {
        poison(c);
        must_execute(op, bytes);
    }
    for (int i = 0; i < 2; i++) {
        memcpy(lengths[i], saved[i], sizeof saved[i]);
    }
    for (int64_t i = 0; i < COUNT(tensors); i++) {
        *tensor[i] = tensors[i];
    }
    same_as_reference(c);
    mla_atb_op_destroy(op);
    free(table);
    free(mask);
    decode_close(c);
}

/* The op is used again with other lengths and addresses; its scalars stay the ones of its creation. */
static void test_reuse(void **state)
{
    (void)state;
    decode_config other = PLAIN;
    other.b = 5;
    other.ctx = "300 1 0 77 128";
    decode_case *a = decode_open(&PLAIN), *b = decode_open(&other);
    mla_atb_op *op = NULL;
    uint64_t bytes;
    must(mla_atb_decode_setup(&op, &a->args, &bytes), "setup");
    mla_atb_op *first = op;
    b->args.param.qk_scale = 0.9f; /* is not looked at */
    must(mla_atb_decode_setup(&op, &b->args, &bytes), "setup");
    assert_ptr_equal(op, first);
    must_execute(op, bytes);
    same_as_reference(b);                             /* with the scale of the creation, which is the usual one */
    b->args.param.calc_type = MLA_ATB_CALC_UNDEFINED; /* gathers no lse */
    assert_int_equal(mla_atb_decode_setup(&op, &b->args, &bytes), 5);
    assert_int_equal(mla_atb_op_execute(op, NULL, &bytes, UINT64_MAX, NULL), 1); /* and cannot be run now */
    must(mla_atb_decode_setup(&op, &a->args, &bytes), "setup");
    must_execute(op, bytes);
    same_as_reference(a);
    mla_atb_op_destroy(op);

    op = NULL;
    b->args = a->args;
    b->args.param.flags = MLA_ATB_CHECK_REUSE;
    must(mla_atb_decode_setup(&op, &b->args, &bytes), "setup");
    must(mla_atb_decode_setup(&op, &b->args, &bytes), "setup again");
    b->args.param.qk_scale = 0.9f;
    assert_int_equal(mla_atb_decode_setup(&op, &b->args, &bytes), 1);
    assert_non_null(strstr(mla_last_error(), "qkScale = 0.9 differs"));
    assert_int_equal(mla_atb_op_execute(op, NULL, &bytes, UINT64_MAX, NULL), 1); /* and cannot be run now */
    mla_atb_op_destroy(op);
    decode_close(a);
    decode_close(b);
}

/* Addresses may come with the execution, for tensors of the same shapes. */
static void test_addresses_at_execution(void **state)
{
    (void)state;
    decode_case *c = decode_open(&PLAIN);
    mla_atb_op *op;
    mla_atb_pack pack;
    uint64_t bytes;
    must(mla_atb_op_create(&c->args.param, &op), "create");
    mla_atb_tensor *const device[] = {&c->q_nope,       &c->q_rope, &c->ct_kv, &c->k_rope,
                                      &c->block_tables, &c->out,    &c->lse};
    void *address[7];
    for (int i = 0; i < 7; i++) {
        address[i] = device[i]->data;
        device[i]->data = NULL;
    }
    must(mla_atb_decode_gather(&c->args, &pack), "gather");
    assert_int_equal(mla_atb_op_setup(op, &pack, 1, &bytes), 14);
    must(mla_atb_op_setup(op, &pack, 0, &bytes), "setup without addresses");
    char *workspace = allocate((int64_t)bytes);
    assert_int_equal(mla_atb_op_execute(op, &pack, workspace, bytes, NULL), 14);
    assert_int_equal(mla_atb_op_execute(op, NULL, workspace, bytes, NULL), 14);
    for (int i = 0; i < 7; i++) {
        device[i]->data = address[i];
    }
    c->context_lens.data = NULL; /* not looked at again */
    must(mla_atb_op_execute(op, &pack, workspace, bytes, NULL), "execute");
    same_as_reference(c);
    c->out.dim[0]++;
    assert_int_equal(mla_atb_op_execute(op, &pack, workspace, bytes, NULL), 1);
    pack.n_in--;
    assert_int_equal(mla_atb_op_execute(op, &pack, workspace, bytes, NULL), 5);
    free(workspace);
    mla_atb_op_destroy(op);
    decode_close(c);
}

static void test_refusals_of_execution(void **state)
{
    (void)state;
    decode_case *c = decode_open(&PLAIN);
    mla_atb_op *op = NULL;
    uint64_t bytes;
    char byte;
    assert_int_equal(mla_atb_op_execute(NULL, NULL, &byte, UINT64_MAX, NULL), 24);
    assert_int_equal(mla_atb_decode_setup(NULL, &c->args, &bytes), 24);
    assert_int_equal(mla_atb_decode_setup(&op, &c->args, NULL), 1);
    assert_non_null(op); /* the caller's, also after a failure */
    assert_int_equal(mla_atb_op_execute(op, NULL, &byte, UINT64_MAX, NULL), 1);
    must(mla_atb_decode_setup(&op, &c->args, &bytes), "setup");
    assert_true(bytes > 0);
    assert_int_equal(mla_atb_op_execute(op, NULL, &byte, bytes - 1, NULL), 1);
    assert_int_equal(mla_atb_op_execute(op, NULL, NULL, bytes, NULL), 1);
    assert_int_equal(mla_atb_decode_setup(&op, NULL, &bytes), 1);
    assert_int_equal(mla_atb_op_setup(op, NULL, 1, &bytes), 1);
    mla_atb_op_destroy(op);
    assert_int_equal(mla_atb_op_create(NULL, &op), 1);
    assert_null(op);
    assert_int_equal(mla_atb_op_create(&c->args.param, NULL), 24);
    mla_atb_op_destroy(NULL);
    decode_close(c);
}

/* A block id outside the cache: found when the op is executed, and only where a key behind it is visible. */
static void test_bad_block_ids(void **state)
{
    (void)state;
    static const int32_t bad[] = {-1, INT32_MIN, INT32_MAX, 9};
    for (int32_t mask = 0; mask <= 2; mask += 2) {
        for (int64_t i = 0; i < COUNT(bad); i++) {
            decode_config f = PLAIN;
            f.calc = MLA_ATB_CALC_SPEC;
            f.mask = mask;
            decode_case *c = decode_open(&f); /* 3 sequences of 3 blocks; of the first, one is used */
            assert_int_equal(c->n_block, 9);
            mla_atb_op *op = NULL;
            uint64_t bytes;
            c->table[1] = c->table[2] = bad[i];
            must(mla_atb_decode_setup(&op, &c->args, &bytes), "setup");
            char *workspace = allocate((int64_t)bytes);
            must(mla_atb_op_execute(op, NULL, workspace, bytes, NULL), "execute");
            c->table[7] = bad[i];
            poison(c);
            assert_int_equal(mla_atb_op_execute(op, NULL, workspace, bytes, NULL), 4);
            assert_non_null(strstr(mla_last_error(),
                                   mask == 0 ? "blockTables[2][1]" : "last blocks of blockTables[2][0]"));
            assert_int_equal(((uint16_t *)c->out_data)[0], 0xffff); /* nothing was written */
            free(workspace);
            mla_atb_op_destroy(op);
            decode_close(c);
        }
    }
}

/* ATB's own client: 8192 sequences, 32 tokens. What belongs to the others is never looked at. */
static void test_fewer_tokens_than_sequences(void **state)
{
    (void)state;
    enum { B = 8192, T = 32, H = 32, MAX_BLOCK = 16, NB = 64 };
    for (int garbage = 0; garbage < 2; garbage++) {
        int32_t *table = allocate(B * MAX_BLOCK * 4), *lens = allocate(B * 4);
        uint16_t *q = allocate(T * H * NOPE * 2), *rope = allocate(T * H * ROPE * 2), *out = allocate(T * H * NOPE * 2);
        uint16_t *kv = allocate(NB * BLOCK * NOPE * 2), *k_rope = allocate(NB * BLOCK * ROPE * 2),
                 *lse = allocate(T * H * 2);
        memset(out, 0xff, T * H * NOPE * 2);
        memset(lse, 0xff, T * H * 2);
        if (garbage) {
            memset(table + T * MAX_BLOCK, 0x8f, (B - T) * MAX_BLOCK * 4);
            memset(lens + T, 0x8f, (B - T) * 4);
            lens[T] = INT32_MAX;
            lens[3] = 2048; /* a sequence with a token, and keys */
            for (int64_t i = 0; i < NB * BLOCK * NOPE; i++) {
                kv[i] = 0x3c00; /* 1 */
            }
        }
        const int32_t nd = MLA_ATB_FORMAT_ND, half = MLA_ATB_FLOAT16;
        mla_atb_tensor t[] = {
            mla_atb_tensor_make(q, half, nd, DIMS(T, H, NOPE)),
            mla_atb_tensor_make(rope, half, nd, DIMS(T, H, ROPE)),
            mla_atb_tensor_make(kv, half, nd, DIMS(NB, BLOCK, 1, NOPE)),
            mla_atb_tensor_make(k_rope, half, nd, DIMS(NB, BLOCK, 1, ROPE)),
            mla_atb_tensor_make(table, MLA_ATB_INT32, nd, DIMS(B, MAX_BLOCK)),
            mla_atb_tensor_make(lens, MLA_ATB_INT32, nd, DIMS(B)),
            mla_atb_tensor_make(out, half, nd, DIMS(T, H, NOPE)),
            mla_atb_tensor_make(lse, half, nd, DIMS(T, H, 1)),
        };
        mla_atb_decode_args args = {.struct_size = sizeof args,
                                    .q_nope = &t[0],
                                    .q_rope = &t[1],
                                    .ct_kv = &t[2],
                                    .k_rope = &t[3],
                                    .block_tables = &t[4],
                                    .context_lens = &t[5],
                                    .atten_out = &t[6],
                                    .lse = &t[7]};
        mla_atb_param_init(&args.param);
        args.param.head_num = H;
        args.param.kv_head_num = 1;
        args.param.calc_type = MLA_ATB_CALC_RING;
        args.param.cache_mode = MLA_ATB_KROPE_CTKV;
        mla_atb_op *op = NULL;
        uint64_t bytes;
        must(mla_atb_decode_setup(&op, &args, &bytes), "setup");
        must_execute(op, bytes);
        must_execute(op, bytes);
        for (int64_t i = 0; i < T * H * NOPE; i++) {
            bool full = garbage && i / (H * NOPE) == 3;
            assert_int_equal(out[i], full ? 0x3c00 : 0);
        }
        for (int64_t i = 0; i < T * H; i++) {
            bool full = garbage && i / H == 3;
            assert_int_equal(lse[i], full ? 0x47a0 : 0xfc00); /* ln 2048 = 7.625 rounded, -inf */
        }
        mla_atb_op_destroy(op);
        void *owned[] = {table, lens, q, rope, out, kv, k_rope, lse};
        for (int64_t i = 0; i < COUNT(owned); i++) {
            free(owned[i]);
        }
    }
}

/* RING with more tokens than sequences: rows past the last sequence's are left alone. */
static void test_more_tokens_than_sequences(void **state)
{
    (void)state;
    decode_case *c = decode_open(&PLAIN);
    c->block_tables.dim[0] = c->context_lens.dim[0] = 2;
    decode_run(c);
    uint16_t *out = c->out_data, *lse = c->lse_data;
    for (int64_t i = 0; i < c->t * c->h * NOPE; i++) {
        assert_true((out[i] == 0xffff) == (i >= 2 * c->h * NOPE));
    }
    for (int64_t i = 0; i < c->t * c->h; i++) {
        assert_true((lse[i] == 0xffff) == (i >= 2 * c->h));
    }
    decode_close(c);
}

/* ---- flags ------------------------------------------------------------------------------------------------------- */

static void test_strict_empty_rows(void **state)
{
    (void)state;
    decode_config f = {.h = 8,
                       .b = 6,
                       .q = "2 1 2",
                       .ctx = "5 0 130 0 0 7",
                       .dtype = MLA_ATB_BF16,
                       .cache = 1,
                       .calc = 3,
                       .flags = MLA_ATB_STRICT};
    decode_case *c = decode_open(&f);
    decode_run(c);
    decode_reference r = reference_open(c);
    double *out = load_all(&c->out), *lse = load_all(&c->lse);
    for (int64_t b = 0, token = 0; b < c->b; token += c->n_q[b], b++) {
        for (int64_t i = token * c->h * NOPE; i < (token + c->n_q[b]) * c->h * NOPE; i++) {
            assert_true(c->n_kv[b] == 0 ? ((uint16_t *)c->out_data)[i] == 0xffff
                                        : fabs(out[i] - r.out[i]) <= 0x1p-8 * fabs(r.out[i]) + 1e-4 * r.weight[i]);
        }
        for (int64_t i = token * c->h; i < (token + c->n_q[b]) * c->h; i++) {
            assert_true((((uint16_t *)c->lse_data)[i] == 0xffff) == (c->n_kv[b] == 0));
        }
    }
    free(out);
    free(lse);
    reference_close(&r);
    decode_close(c);
}

/* A mask wider than the longest sequence: its own rows, or rows that lie as far apart as that sequence is long. */
static void test_strict_mask_stride(void **state)
{
    (void)state;
    for (uint32_t strict = 0; strict <= MLA_ATB_STRICT; strict++) {
        decode_config f = {.h = 8,
                           .b = 2,
                           .q = "2 3",
                           .ctx = "100 200",
                           .dtype = MLA_ATB_FLOAT16,
                           .cache = 1,
                           .calc = 1,
                           .mask = 1,
                           .free_mask = true,
                           .flags = strict};
        decode_case *c = decode_open(&f);
        const int64_t width = 256;
        uint16_t *wide = allocate(c->t * width * 2), *mask = c->mask_data;
        double *value = allocate(c->t * c->mask_columns * 8);
        for (int64_t i = 0; i < c->t * width; i++) {
            wide[i] = i / c->mask_columns < c->t ? mask[i] : 0;
        }
        for (int64_t i = 0; i < c->t; i++) {
            for (int64_t p = 0; p < c->mask_columns && !strict; p++) {
                value[i * c->mask_columns + p] = mla_ref_load(wide, MLA_DTYPE_F16, i * width + p);
            }
        }
        c->mask = mla_atb_tensor_make(wide, f.dtype, MLA_ATB_FORMAT_ND, DIMS(c->t, width));
        decode_run(c);
        if (!strict) {
            memcpy(c->mask_value, value, (size_t)(c->t * c->mask_columns * 8));
        }
        same_as_reference(c);
        free(wide);
        free(value);
        decode_close(c);
    }
}

/* A template for 3 tokens with sequences of 2: more keys are hidden than was meant, as in ATB. */
static void test_strict_template(void **state)
{
    (void)state;
    decode_config f =
        {.h = 8, .b = 2, .q = "2", .ctx = "200 300", .dtype = MLA_ATB_FLOAT16, .cache = 1, .calc = 1, .mask = 2};
    decode_case *c = decode_open(&f);
    int64_t rows = BLOCK - 3 + 2 * 3;
    uint16_t *larger_template = allocate(rows * BLOCK * 2);
    double *value = allocate(rows * BLOCK * 8);
    for (int64_t i = 0; i < rows * BLOCK; i++) {
        value[i] = i % BLOCK >= i / BLOCK + 2 - 3 ? -10000 : 0;
        mla_ref_store(larger_template, MLA_DTYPE_F16, i, value[i]);
    }
    c->mask = mla_atb_tensor_make(larger_template, f.dtype, MLA_ATB_FORMAT_ND, DIMS(rows, BLOCK));
    mla_atb_op *op = NULL;
    uint64_t bytes;
    assert_int_equal(mla_atb_decode_setup(&op, &c->args, &bytes), 8);
    mla_atb_op_destroy(op);
    c->args.param.flags = MLA_ATB_STRICT;
    decode_run(c);
    free(c->mask_value);
    c->mask_value = value;
    c->mask_rows = rows;
    same_as_reference(c);
    free(larger_template);
    decode_close(c);
}

/* For programs that cannot pass flags. Only the first use reads the environment, so this comes first. */
static void test_default_flags(void **state)
{
    (void)state;
    mla_atb_param param;
    mla_atb_param_init(&param);
    param.head_num = 8;
    param.kv_head_num = 1;
    mla_atb_op *op;
    assert_int_equal(setenv("MLA_ATB", "kvcache,,strict,", 1), 0);
    pid_t child = fork();
    if (child == 0) {
        bool good = mla_atb_default_flags() == (MLA_ATB_ALLOW_KVCACHE | MLA_ATB_STRICT) &&
                    mla_atb_op_create(&param, &op) == MLA_ATB_NO_ERROR;
        _exit(good ? 0 : 1);
    }
    int status;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);

    assert_int_equal(setenv("MLA_ATB", "kvcache,Strict", 1), 0);
    assert_int_equal(mla_atb_op_create(&param, &op), MLA_ATB_ERROR_INVALID_PARAM);
    assert_null(op);
    assert_non_null(strstr(mla_last_error(), "MLA_ATB = \"kvcache,Strict\" must be a list of strict, "));
    char longer[600]; /* than a sentence */
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(setenv("MLA_ATB", longer, 1), 0);
    assert_int_equal(mla_atb_op_create(&param, &op), MLA_ATB_ERROR_INVALID_PARAM);
    assert_non_null(strstr(mla_last_error(), "xxx...\" must be a list of strict, check-reuse and kvcache"));
    mla_atb_set_default_flags(MLA_ATB_ALLOW_KVCACHE);
    must(mla_atb_op_create(&param, &op), "cache mode 0");
    mla_atb_op_destroy(op);
    mla_atb_set_default_flags(0);
    assert_int_equal(mla_atb_default_flags(), 0);
    assert_int_equal(mla_atb_op_create(&param, &op), 1);
}

/* ---- workspace --------------------------------------------------------------------------------------------------- */

static uint64_t workspace_of(const decode_config *f, int32_t n_thread)
{
    decode_case *c = decode_open(f);
    mla_atb_op *op = NULL;
    uint64_t bytes;
    c->args.param.options.n_thread = n_thread;
    must(mla_atb_decode_setup(&op, &c->args, &bytes), "setup");
    mla_atb_op_destroy(op);
    decode_close(c);
    return bytes;
}

/* A function of shapes that never falls, whatever the lengths. */
static void test_workspace(void **state)
{
    (void)state;
    static const char *const lengths[] = {"600", "1", "0", "300 5 600", "512 511"};
    for (int32_t mask = 0; mask <= 2; mask += 2) {
        uint64_t first = 0, before = 0;
        for (int64_t i = 0; i < COUNT(lengths); i++) {
            decode_config f = {.h = 8,
                               .b = 4,
                               .q = "2",
                               .ctx = lengths[0],
                               .dtype = MLA_ATB_FLOAT16,
                               .cache = 1,
                               .calc = 1,
                               .mask = mask};
            decode_case *c = decode_open(&f); /* the block table has 5 columns throughout */
            for (int64_t b = 0; b < c->b; b++) {
                c->n_kv[b] = listed(lengths[i], b);
            }
            mla_atb_op *op = NULL;
            uint64_t bytes;
            must(mla_atb_decode_setup(&op, &c->args, &bytes), "setup");
            assert_true(i == 0 || bytes == first);
            first = bytes;
            mla_atb_op_destroy(op);
            decode_close(c);
        }
        for (int32_t h = 8; h <= 128; h *= 2) {
            decode_config f = {.h = h,
                               .b = h / 8,
                               .q = "2",
                               .ctx = h < 64 ? "100" : "300",
                               .dtype = MLA_ATB_FLOAT16,
                               .cache = 1,
                               .calc = 1,
                               .mask = h < 128 ? mask : 0};
            uint64_t bytes = workspace_of(&f, 2);
            assert_true(bytes % 512 == 0 && (bytes >= before || h == 128));
            before = bytes;
        }
    }
}

/* One long sequence on many workers needs slots; more of them than the workspace has room for are the op's own. */
static void test_many_workers(void **state)
{
    (void)state;
    decode_config f = {.h = 128, .b = 1, .ctx = "20000", .dtype = MLA_ATB_FLOAT16, .cache = 1};
    decode_case *c = decode_open(&f);
    uint16_t *first = allocate(c->h * NOPE * 2);
    for (int32_t n_thread = 1; n_thread <= 96; n_thread += n_thread < 3 ? 1 : 93) {
        mla_atb_op *op = NULL;
        uint64_t bytes;
        c->args.param.options.n_thread = n_thread;
        must(mla_atb_decode_setup(&op, &c->args, &bytes), "setup");
        poison(c);
        must_execute(op, bytes);
        if (n_thread == 1) {
            memcpy(first, c->out_data, (size_t)(c->h * NOPE * 2));
        }
        assert_memory_equal(first, c->out_data, (size_t)(c->h * NOPE * 2));
        mla_atb_op_destroy(op);
    }
    free(first);
    decode_close(c);
}

/* Wherever the caller's workspace starts, and not a byte past its end. */
static void test_workspace_alignment(void **state)
{
    (void)state;
    decode_config f =
        {.h = 8, .b = 2, .q = "2", .ctx = "130 260", .dtype = MLA_ATB_FLOAT16, .cache = 1, .calc = 1, .mask = 2};
    for (int64_t shift = 0; shift < 66; shift += 13) {
        decode_case *c = decode_open(&f);
        mla_atb_op *op = NULL;
        uint64_t bytes;
        must(mla_atb_decode_setup(&op, &c->args, &bytes), "setup");
        char *workspace = malloc(bytes + (size_t)shift);
        must(mla_atb_op_execute(op, NULL, workspace + shift, bytes, NULL), "execute");
        same_as_reference(c);
        free(workspace);
        mla_atb_op_destroy(op);
        decode_close(c);
    }
}

static void test_infer_shape(void **state)
{
    (void)state;
    decode_config f = {.h = 8, .b = 2, .ctx = "5", .dtype = MLA_ATB_BF16, .cache = 2, .calc = 2};
    decode_case *c = decode_open(&f);
    mla_atb_op *op;
    mla_atb_pack pack;
    mla_atb_tensor out[MLA_ATB_MAX_OUT] = {0};
    must(mla_atb_op_create(&c->args.param, &op), "create");
    must(mla_atb_decode_gather(&c->args, &pack), "gather");
    must(mla_atb_op_infer_shape(op, &pack, out), "infer shape");
    assert_int_equal(mla_atb_op_n_in(op), pack.n_in);
    assert_int_equal(mla_atb_op_n_out(op), 2);
    assert_true(mla_atb_op_in_is_host(op, 5) && !mla_atb_op_in_is_host(op, 4) && !mla_atb_op_in_is_host(op, 99));
    assert_memory_equal(out[0].dim, c->out.dim, 3 * 8);
    assert_int_equal(out[0].dtype, MLA_ATB_BF16);
    assert_memory_equal(out[1].dim, c->lse.dim, 3 * 8);
    assert_int_equal(out[1].dtype, MLA_ATB_FLOAT);
    pack.in[0] = NULL;
    assert_int_equal(mla_atb_op_infer_shape(op, &pack, out), 8);
    pack.in[0] = &c->k_rope;
    assert_int_equal(mla_atb_op_infer_shape(op, &pack, out), 16);
    pack.n_in = 3;
    assert_int_equal(mla_atb_op_infer_shape(op, &pack, out), 5);
    mla_atb_op_destroy(op);
    decode_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_flags),
        cmocka_unit_test(test_what_setup_keeps),
        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_addresses_at_execution),
        cmocka_unit_test(test_refusals_of_execution),
        cmocka_unit_test(test_bad_block_ids),
        cmocka_unit_test(test_fewer_tokens_than_sequences),
        cmocka_unit_test(test_more_tokens_than_sequences),
        cmocka_unit_test(test_strict_empty_rows),
        cmocka_unit_test(test_strict_mask_stride),
        cmocka_unit_test(test_strict_template),
        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_many_workers),
        cmocka_unit_test(test_workspace_alignment),
        cmocka_unit_test(test_infer_shape),
    };
    return cmocka_run_group_tests_name("ATB: life of an op", tests, NULL, NULL);
}
