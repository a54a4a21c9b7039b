/*
 * check_formats.c - keys and queries stored in 8 bits, keys in layout NZ, and what comes with them. A subject that
 * does not offer a format has its test skipped, with its own sentence.
 */
#include <string.h>

#include "checkkernel.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static const mla_dtype FLOATS[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16};

static void set_lengths(ck_segment *s, int64_t n, const int64_t *length)
{
    s->n_length = n;
    for (int64_t i = 0; i < n; i++) {
        s->length[i] = length[i];
    }
}

/* Keys of this dtype beside queries of that: dims, inputs, addressing. */
static void check_pair(mla_dtype q, mla_dtype k)
{
    static const int64_t dims[][2] = {{512, 512}, {576, 512}, {64, 64}, {7, 3}, {33, 32}, {131, 97}, {1, 1}};
    static const ck_inputs inputs[] = {CK_NORMAL,    CK_CODES_K, CK_CODES_Q,    CK_WIDE,         CK_POWERS,
                                       CK_ALL_EQUAL, CK_RISING,  CK_CANCELLING, CK_ONE_DOMINANT, CK_DENORMAL};
    for (int64_t i = 0; i < COUNT(dims); i++) {
        ck_config c = ck_config_plain(2, 3, 5, dims[i][0], dims[i][1], 0);
        set_lengths(&c.segment[0], 2, (int64_t[]){70, 131});
        c.q_dtype = q;
        c.segment[0].dtype = k;
        c.segment[0].addressing = (mla_addressing)(i % 3);
        c.segment[0].visible.rule = i % 2 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
        c.layout = (ck_layout)(i % 2);
        ck_check_config_if_offered(&c);
    }
    for (int64_t i = 0; i < COUNT(inputs); i++) {
        for (int64_t n_head = 1; n_head <= 17; n_head += 8) {
            ck_config c = ck_config_plain(1, 1, n_head, 72, 56, 200);
            c.q_dtype = q;
            c.segment[0].dtype = k;
            c.segment[0].v_apart = n_head == 9;
            c.inputs = inputs[i];
            c.poison = i % 2 ? CK_POISON_INF : CK_POISON_NAN;
            ck_check_config_if_offered(&c);
        }
    }
}

static void check_8bit(mla_dtype dtype)
{
    check_pair(dtype, dtype);
    for (int64_t i = 0; i < COUNT(FLOATS); i++) {
        check_pair(FLOATS[i], dtype);
        check_pair(dtype, FLOATS[i]);
    }
}

static void check_hif8(void)
{
    check_8bit(MLA_DTYPE_HIF8);
}

static void check_i8(void)
{
    check_8bit(MLA_DTYPE_I8);
    check_pair(MLA_DTYPE_I8, MLA_DTYPE_HIF8);
    check_pair(MLA_DTYPE_HIF8, MLA_DTYPE_I8);
}

/* Integers with scales per head beside rope parts of 16 bits that have none. */
static void check_rope_beside_8bit(void)
{
    static const mla_dtype pairs[][2] = {{MLA_DTYPE_I8, MLA_DTYPE_I8},
                                         {MLA_DTYPE_I8, MLA_DTYPE_BF16},
                                         {MLA_DTYPE_BF16, MLA_DTYPE_I8},
                                         {MLA_DTYPE_HIF8, MLA_DTYPE_HIF8},
                                         {MLA_DTYPE_F16, MLA_DTYPE_HIF8}};
    for (int64_t i = 0; i < COUNT(pairs); i++) {
        for (int x = 0; x < 6; x++) {
            ck_config c = ck_config_plain(2, 1 + x % 3, x % 2 ? 16 : 3, x % 2 ? 512 : 40, x % 2 ? 512 : 40, 0);
            set_lengths(&c.segment[0], 2, (int64_t[]){101, 256});
            c.d_rope = x % 2 ? 64 : 8;
            c.q_dtype = pairs[i][0];
            c.segment[0].dtype = pairs[i][1];
            c.q_rope_dtype = mla_dtype_size(c.q_dtype) > 1 ? MLA_DTYPE_NONE : FLOATS[x % 3];
            c.segment[0].rope_dtype = FLOATS[(x + 1) % 3];
            c.qk_descale = c.pv_descale = true;
            c.segment[0].visible.rule = x % 2 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
            ck_check_config_if_offered(&c);
        }
    }
}

/* Values that reach into a rope part of another dtype. */
static void check_values_of_both_parts(void)
{
    for (int64_t i = 0; i < 4; i++) {
        ck_config c = ck_config_plain(2, 2, 4, 24, 30, 77);
        c.d_rope = 8;
        c.q_dtype = i % 2 ? MLA_DTYPE_HIF8 : MLA_DTYPE_BF16;
        c.segment[0].dtype = MLA_DTYPE_HIF8;
        c.segment[0].rope_dtype = i < 2 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16;
        c.segment[0].addressing = (mla_addressing)(i % 3);
        ck_check_config_if_offered(&c);
    }
}

static void check_qk_descale(void)
{
    for (int64_t i = 0; i < 12; i++) {
        ck_config c = ck_config_plain(2, 2, i % 2 ? 12 : 3, 40, 33, 130);
        c.d_rope = 24;
        c.q_dtype = FLOATS[i % 3];
        c.segment[0].dtype = FLOATS[i / 4];
        c.qk_descale = true;
        c.q_descale = i % 4 == 1 ? 0.6f : 0;
        c.segment[0].descale = i % 4 == 2 ? 1.4f : 0;
        c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
        ck_check_config_if_offered(&c);
    }
}

/* Pieces of every size, in every addressing that has them. */
static void check_nz(void)
{
    static const struct {
        int64_t d, piece, d_v;
    } forms[] = {{512, 32, 512}, {512, 16, 512}, {64, 1, 64}, {64, 64, 40}, {63, 9, 50}, {40, 8, 33}};
    static const mla_dtype dtypes[] = {MLA_DTYPE_BF16, MLA_DTYPE_F16, MLA_DTYPE_F32, MLA_DTYPE_I8, MLA_DTYPE_HIF8};
    for (int64_t i = 0; i < COUNT(forms); i++) {
        for (int64_t x = 0; x < COUNT(dtypes); x++) {
            ck_config c = ck_config_plain(3, 1 + x % 2, 1 + (i * 5 + x) % 17, forms[i].d, forms[i].d_v, 0);
            set_lengths(&c.segment[0], 3, (int64_t[]){131, 0, 69});
            c.q_dtype = c.segment[0].dtype = dtypes[x];
            c.segment[0].piece = forms[i].piece;
            c.segment[0].page_size = i % 2 ? 128 : 16;
            c.segment[0].addressing = (i + x) % 3 == 2 ? MLA_ADDRESS_BATCHED : MLA_ADDRESS_PAGED;
            c.layout = (ck_layout)(x % 2);
            c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
            if (i % 3 == 1) {
                c.d_rope = 12;
                c.segment[0].rope_piece = x % 2 ? 4 : 12;
            }
            ck_check_config_if_offered(&c);
        }
    }
}

static void check_nz_lists(void)
{
    for (int64_t i = 0; i < 12; i++) {
        ck_config c = ck_config_plain(2, 2, 9, 64, 48, 150);
        c.segment[0].piece = 16;
        c.segment[0].addressing = i % 3 == 2 ? MLA_ADDRESS_BATCHED : MLA_ADDRESS_PAGED;
        c.segment[0].page_size = 16;
        c.segment[0].list = i % 2 ? CK_PHYSICAL : CK_LOGICAL;
        c.segment[0].list_rule = (mla_list_rule)(i / 2 % 2);
        c.segment[0].n_entry = 120;
        c.segment[0].list_length = (ck_per)(i % 3);
        c.layout = (ck_layout)(i / 6);
        ck_check_config_if_offered(&c);
    }
}

/* Two segments that are stored each in its own way. */
static void check_mixed(void)
{
    static const mla_dtype pairs[][2] = {{MLA_DTYPE_HIF8, MLA_DTYPE_HIF8},
                                         {MLA_DTYPE_HIF8, MLA_DTYPE_BF16},
                                         {MLA_DTYPE_I8, MLA_DTYPE_HIF8},
                                         {MLA_DTYPE_F32, MLA_DTYPE_I8},
                                         {MLA_DTYPE_I8, MLA_DTYPE_I8}};
    for (int64_t i = 0; i < COUNT(pairs) * 2; i++) {
        ck_config c = ck_config_plain(2, 3, 6, 96, 80, 0);
        c.n_segment = 2;
        set_lengths(&c.segment[0], 2, (int64_t[]){140, 33});
        set_lengths(&c.segment[1], 2, (int64_t[]){35, 8});
        for (int g = 0; g < 2; g++) {
            c.segment[g].dtype = pairs[i / 2][g];
            c.segment[g].descale = g ? 0.7f : 1.3f;
        }
        c.q_dtype = i % 2 ? MLA_DTYPE_BF16 : MLA_DTYPE_HIF8;
        c.segment[0].visible = (mla_visible){.rule = MLA_VISIBLE_WINDOW, .left = 50, .right = 0};
        c.segment[1].visible = (mla_visible){.rule = MLA_VISIBLE_COMPRESSED, .ratio = 4};
        c.segment[i % 2].piece = 16;
        c.sink = CK_SINK_RANDOM;
        ck_check_config_if_offered(&c);
    }
}

static void check_lse_16bit(void)
{
    for (int variant = 0; variant < 16; variant++) {
        ck_config c = ck_config_plain(3, variant % 4 == 3 ? 0 : 2, 5, 64, 64, 0);
        set_lengths(&c.segment[0], 3, (int64_t[]){30, 0, 99});
        c.lse_dtype = variant % 2 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16;
        c.lse_empty = (mla_lse_empty)(variant % 3);
        c.lse_base = (mla_lse_base)(variant / 2 % 2);
        c.lse_transposed = variant / 4 % 2;
        c.layout = variant / 8 % 2 ? CK_PADDED : CK_DENSE;
        c.sink = variant % 5 == 4 ? CK_SINK_MIXED : CK_NO_SINK;
        c.lse_with_sink = variant % 3 == 1;
        ck_check_config_if_offered(&c);
    }
}

/* Everything mixed, rounding of probabilities included. What the subject does not offer is counted, and nothing but
 * that means a skip. */
static void check_random(void)
{
    double start = ck_clock();
    int64_t n_checked = 0, n_refused = 0;
    char refusal[300] = "";
    for (uint64_t i = 0; i < 40 || ck_clock() - start < ck_seconds; i++) {
        ck_config c = ck_config_random_format(ck_hash(ck_seed, 1000 + i), 30000);
        if (ck_try_config(&c)) {
            n_checked++;
        } else if (n_refused++ == 0) {
            strncpy(refusal, mla_last_error(), sizeof refusal - 1);
        }
    }
    if (n_refused > 0) {
        ck_skip("%lld random problems agree, %lld are not offered, the first because: %s", (long long)n_checked,
                (long long)n_refused, refusal);
    }
}

const ck_test ck_format_tests[] = {
    {.name = "formats/hif8", .run = check_hif8},
    {.name = "formats/i8", .run = check_i8},
    {.name = "formats/rope_beside_8bit", .run = check_rope_beside_8bit},
    {.name = "formats/values_of_both_parts", .run = check_values_of_both_parts},
    {.name = "formats/qk_descale", .run = check_qk_descale},
    {.name = "formats/nz", .run = check_nz},
    {.name = "formats/nz_lists", .run = check_nz_lists},
    {.name = "formats/mixed", .run = check_mixed},
    {.name = "formats/lse_16bit", .run = check_lse_16bit},
    {.name = "formats/random", .run = check_random},
    {0},
};
