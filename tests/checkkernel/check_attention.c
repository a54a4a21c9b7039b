/*
 * check_attention.c - whole problems against the oracle, one aspect at a time, then all of them mixed at random.
 *
 * Sizes are the smallest that reach every path: tails of every panel and block, several blocks, several splits.
 */
#include <math.h>
#include <string.h>

#include "checkkernel.h"
#include "ref/number.h"
#include "ref/ref.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static void set_lengths(ck_segment *s, int64_t n, const int64_t *length)
{
    s->n_length = n;
    for (int64_t i = 0; i < n; i++) {
        s->length[i] = length[i];
    }
}

static void check_dims(void)
{
    static const int64_t dims[][2] = {{576, 512}, {512, 512}, {320, 256}, {288, 256}, {192, 128}, {64, 64},
                                      {576, 576}, {576, 64},  {1, 1},     {2, 1},     {7, 7},     {8, 3},
                                      {23, 17},   {24, 24},   {25, 25},   {31, 16},   {33, 32},   {47, 47},
                                      {65, 64},   {131, 97},  {1024, 768}};
    for (int64_t i = 0; i < COUNT(dims); i++) {
        ck_config c = ck_config_plain(1, 2, 5, dims[i][0], dims[i][1], 70);
        ck_check_config(&c);
        c.segment[0].page_size = 7; /* 70 keys fill their pages: the last key ends at the pool's end in some order */
        c.segment[0].addressing = MLA_ADDRESS_PACKED;
        c.segment[0].no_length = true;
        ck_check_config(&c);
    }
}

static void check_heads(void)
{
    static const int64_t heads[] = {1,  2,  3,  4,  5,  8,  9,   10,  15,  16,  17, 20,
                                    24, 32, 40, 63, 64, 65, 126, 127, 128, 130, 257};
    for (int64_t i = 0; i < COUNT(heads); i++) {
        ck_config c = ck_config_plain(1, 1, heads[i], 64, 40, 100);
        ck_check_config(&c);
    }
    ck_config c = ck_config_plain(1, 1, 128, 576, 512, 200);
    ck_check_config(&c);
}

static void check_kv_heads(void)
{
    static const int64_t heads[][2] = {{2, 2},  {6, 3},  {8, 8},   {8, 2},  {9, 3},
                                       {16, 8}, {24, 8}, {126, 3}, {34, 2}, {128, 8}};
    for (int64_t i = 0; i < COUNT(heads); i++) {
        ck_config c = ck_config_plain(2, 3, heads[i][0], 48, 32, 0);
        c.n_kv_head = heads[i][1];
        c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
        set_lengths(&c.segment[0], 2, (int64_t[]){77, 130});
        for (int a = 0; a < 3; a++) {
            c.segment[0].addressing = (mla_addressing)a;
            ck_check_config(&c);
        }
    }
}

static void check_pages(void)
{
    static const int64_t pages[] = {1, 2, 3, 16, 61, 64, 69, 100, 128, 129, 192, 256, 576};
    static const int64_t lengths[] = {1, 63, 64, 65, 130, 0, 200, 577};
    for (int64_t i = 0; i < COUNT(pages); i++) {
        ck_config c = ck_config_plain(8, 1, 4, 64, 64, 0);
        c.segment[0].page_size = pages[i];
        set_lengths(&c.segment[0], 8, lengths);
        for (uint64_t spare = 0; spare < 3; spare++) { /* columns of garbage behind the last page: 0, 1, 2 */
            c.layout_seed = ck_hash(ck_seed, (uint64_t)i) / 3 * 3 + spare;
            ck_check_config(&c);
        }
    }
}

static void check_lengths(void)
{
    for (int64_t length = 0; length <= 200; length += length < 100 ? 1 : 7) { /* every tail of a block of keys */
        ck_config c = ck_config_plain(1, 1, 3, 40, 24, length);
        c.segment[0].addressing = (mla_addressing)(length % 3);
        ck_check_config(&c);
    }
    static const int64_t edges[] = {255,  256,  257,  383,  384,  511,  512,  513,
                                    1023, 1024, 1025, 2047, 2048, 2049, 4095, 4097};
    for (int64_t i = 0; i < COUNT(edges); i++) {
        ck_config c = ck_config_plain(1, 1, 2, 64, 64, edges[i]);
        ck_check_config(&c);
    }
    ck_config c = ck_config_plain(12, 1, 16, 64, 64, 0);
    set_lengths(&c.segment[0], 12, (int64_t[]){0, 5, 0, 0, 64, 1, 0, 129, 96, 0, 97, 0});
    ck_check_config(&c);
}

static void check_queries(void)
{
    for (int64_t n_q = 1; n_q <= 17; n_q++) {
        ck_config c = ck_config_plain(2, n_q, 6, 64, 48, 90);
        c.segment[0].visible.rule = n_q % 2 ? MLA_VISIBLE_ALL : MLA_VISIBLE_CAUSAL;
        ck_check_config(&c);
    }
}

static void check_causal(void)
{
    static const int64_t lengths[] = {0, 1, 2, 3, 16, 17, 64, 65, 95, 96, 97, 130, 300};
    for (int64_t i = 0; i < COUNT(lengths); i++) {
        for (int64_t n_q = 1; n_q <= 5; n_q += 2) {
            ck_config c = ck_config_plain(1, n_q, 3, 64, 64, lengths[i]);
            c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
            ck_check_config(&c);
        }
    }
    ck_config c = ck_config_plain(3, 70, 2, 64, 64, 0); /* a prefill, with more tokens than keys in one sequence */
    c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
    set_lengths(&c.segment[0], 3, (int64_t[]){70, 40, 200});
    ck_check_config(&c);
}

static void check_window(void)
{
    static const int64_t windows[][2] = {{0, 0},   {3, 0},  {127, 0}, {10, 2},      {-1, 0},
                                         {-1, -1}, {0, -1}, {64, 1},  {5000, 5000}, {INT64_MAX, INT64_MAX}};
    for (int64_t i = 0; i < COUNT(windows); i++) {
        ck_config c = ck_config_plain(4, 5, 3, 64, 64, 0);
        c.segment[0].visible.rule = MLA_VISIBLE_WINDOW;
        c.segment[0].visible.left = windows[i][0];
        c.segment[0].visible.right = windows[i][1];
        set_lengths(&c.segment[0], 4, (int64_t[]){300, 3, 0, 97});
        ck_check_config(&c);
    }
}

static void check_compressed(void)
{
    for (int64_t ratio = 1; ratio <= 6; ratio += ratio == 4 ? 2 : 1) {
        for (int residual = 0; residual < 2; residual++) {
            ck_config c = ck_config_plain(4, 7, 3, 64, 64, 0);
            c.segment[0].visible.rule = MLA_VISIBLE_COMPRESSED;
            c.segment[0].visible.ratio = ratio;
            c.segment[0].has_residual = residual;
            set_lengths(&c.segment[0], 4, (int64_t[]){100, 1, 0, 3});
            ck_check_config(&c);
        }
    }
    ck_config c = ck_config_plain(1, 3, 2, 64, 64, 50);
    c.segment[0].visible.rule = MLA_VISIBLE_COMPRESSED;
    c.segment[0].visible.ratio = INT64_MAX / 2; /* len * ratio would overflow */
    ck_check_config(&c);
}

static void check_lists(void)
{
    static const int64_t entries[] = {0, 1, 2, 63, 64, 65, 96, 97, 300};
    for (int64_t i = 0; i < COUNT(entries); i++) {
        for (int variant = 0; variant < 12; variant++) {
            ck_config c = ck_config_plain(4, variant % 3 ? 2 : 0, 3, 64, 64, 0);
            ck_segment *s = &c.segment[0];
            s->n_entry = entries[i];
            s->list = variant % 2 ? CK_PHYSICAL : CK_LOGICAL;
            s->list_rule = (mla_list_rule)(variant / 2 % 2);
            s->list_length = (ck_per)(variant % 3);
            s->addressing = (mla_addressing)((variant + i) % 3);
            if (s->list == CK_LOGICAL) {
                s->visible.rule = variant / 4 == 1   ? MLA_VISIBLE_CAUSAL
                                  : variant / 4 == 2 ? MLA_VISIBLE_WINDOW
                                                     : MLA_VISIBLE_ALL;
                s->visible.left = 40;
                s->visible.right = 0;
            }
            set_lengths(s, 4, (int64_t[]){130, 7, 0, 64});
            ck_check_config(&c);
        }
    }
    ck_config c = ck_config_plain(2, 1, 16, 576, 512, 3000); /* several splits of list entries */
    c.segment[0].list = CK_LOGICAL;
    c.segment[0].n_entry = 2048;
    ck_check_config(&c);
}

static void check_two_segments(void)
{
    static const int64_t lengths[][2] = {{0, 0}, {0, 5}, {5, 0}, {64, 64}, {100, 1}, {1, 100}, {97, 300}, {1100, 600}};
    for (int64_t i = 0; i < COUNT(lengths); i++) {
        for (int variant = 0; variant < 3; variant++) {
            ck_config c = ck_config_plain(2, 3, 4, 64, 48, 0);
            c.n_segment = 2;
            for (int g = 0; g < 2; g++) {
                set_lengths(&c.segment[g], 2, (int64_t[]){lengths[i][g], lengths[i][1 - g]});
            }
            c.segment[0].visible.rule = MLA_VISIBLE_WINDOW;
            c.segment[0].visible.left = 127;
            c.segment[0].visible.right = 0;
            c.segment[1].page_size = 3;
            if (variant == 1) {
                c.segment[1].visible.rule = MLA_VISIBLE_COMPRESSED;
                c.segment[1].visible.ratio = 4;
                c.segment[1].has_residual = true;
                c.segment[1].dtype = MLA_DTYPE_F16;
            } else if (variant == 2) {
                c.segment[1].list = CK_PHYSICAL;
                c.segment[1].n_entry = 65;
                c.segment[1].list_length = CK_PER_SEQUENCE;
                c.segment[0].descale = 0.75f;
                c.segment[1].descale = 1.5f;
            }
            ck_check_config(&c);
        }
    }
}

static void check_masks(void)
{
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16};
    for (int kind = CK_MASK_RANDOM; kind <= CK_MASK_SHARED; kind++) {
        for (int variant = 0; variant < 6; variant++) {
            ck_config c = ck_config_plain(3, variant == 3 ? 0 : 4, 5, 64, 64, 0);
            ck_segment *s = &c.segment[0];
            s->mask = (ck_mask)kind;
            s->mask_dtype = dtypes[variant % 3];
            s->addressing = (mla_addressing)(variant % 3);
            s->visible.rule = variant % 2 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
            if (variant == 4) {
                s->list = CK_LOGICAL;
                s->n_entry = 50;
            }
            c.layout = variant % 2 ? CK_PADDED : CK_DENSE;
            set_lengths(s, 3, (int64_t[]){150, 20, 97});
            ck_check_config(&c);
        }
    }
    ck_config c = ck_config_plain(1, 1, 3, 64, 64, 1500); /* blank rows over several splits */
    c.segment[0].mask = CK_MASK_BLANK_ROWS;
    ck_check_config(&c);
}

static void check_sinks(void)
{
    static const int64_t lengths[] = {0, 1, 96, 1100};
    for (int kind = CK_SINK_RANDOM; kind <= CK_SINK_LARGE; kind++) {
        for (int64_t i = 0; i < COUNT(lengths); i++) {
            for (int with = 0; with < 2; with++) {
                ck_config c = ck_config_plain(1, 2, 7, 64, 64, lengths[i]);
                c.sink = (ck_sink)kind;
                c.lse_with_sink = with;
                c.lse_base = with ? MLA_LSE_BASE2 : MLA_LSE_NATURAL;
                c.n_segment = 1 + (int32_t)(i % 2);
                ck_check_config(&c);
            }
        }
    }
}

static void check_outputs(void)
{
    for (int variant = 0; variant < 24; variant++) {
        ck_config c = ck_config_plain(3, variant % 4 == 3 ? 0 : 2, 5, 64, 64, 0);
        set_lengths(&c.segment[0], 3, (int64_t[]){30, 0, 99});
        c.lse_empty = (mla_lse_empty)(variant % 3);
        c.lse_base = (mla_lse_base)(variant / 3 % 2);
        c.lse_transposed = variant / 2 % 2;
        c.want_lse = variant % 7 != 6;
        c.want_max = variant % 5 != 4;
        c.layout = variant / 6 % 2 ? CK_PADDED : CK_DENSE;
        ck_check_config(&c);
    }
}

static void check_descales(void)
{
    for (int variant = 1; variant < 16; variant++) {
        ck_config c = ck_config_plain(2, 2, 5, 64, 64, 130);
        c.q_descale = variant & 1 ? 0.37f : 0;
        c.qk_descale = variant & 2;
        c.pv_descale = variant & 4;
        c.segment[0].descale = variant & 8 ? 1.7f : 0;
        ck_check_config(&c);
    }
}

static void check_rope_apart(void)
{
    static const int64_t dims[][3] = {{512, 64, 512}, {256, 32, 256}, {128, 64, 128}, {8, 8, 12},
                                      {5, 3, 8},      {24, 1, 20},    {1, 40, 41}};
    for (int64_t i = 0; i < COUNT(dims); i++) {
        for (int layout = 0; layout < 2; layout++) {
            ck_config c = ck_config_plain(2, 2, 3, dims[i][0], dims[i][2], 101);
            c.d_rope = dims[i][1];
            c.layout = (ck_layout)layout;
            c.segment[0].addressing = (mla_addressing)(i % 3);
            c.segment[0].dtype = c.q_dtype = i % 2 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16;
            ck_check_config(&c);
        }
    }
}

static void check_values_apart(void)
{
    static const int64_t dims[][2] = {{192, 128}, {64, 64}, {40, 100}, {576, 512}, {3, 9}};
    for (int64_t i = 0; i < COUNT(dims); i++) {
        for (int a = 0; a < 3; a++) {
            ck_config c = ck_config_plain(2, 3, 4, dims[i][0], dims[i][1], 0);
            c.n_kv_head = 2;
            c.segment[0].v_apart = true;
            c.segment[0].addressing = (mla_addressing)a;
            c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
            set_lengths(&c.segment[0], 2, (int64_t[]){99, 2});
            ck_check_config(&c);
        }
    }
}

static void check_dtypes(void)
{
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16};
    for (int i = 0; i < 27; i++) {
        ck_config c = ck_config_plain(1, 2, 5, 72, 56, 110);
        c.q_dtype = dtypes[i % 3];
        c.o_dtype = dtypes[i / 3 % 3];
        c.segment[0].dtype = dtypes[i / 9];
        c.inputs = CK_NORMAL;
        ck_check_config(&c);
        c.inputs = CK_DENORMAL;
        ck_check_config(&c);
        c.inputs = CK_WIDE;
        c.pv_descale = true;
        c.segment[0].descale = 9000; /* beyond what f16 can hold */
        ck_check_config(&c);
    }
}

static void check_strides(void)
{
    for (int i = 0; i < 12; i++) {
        ck_config c = ck_config_plain(3, i % 2 ? 3 : 0, 4, 64, 40, 0);
        c.n_kv_head = 2;
        c.layout = CK_PADDED;
        c.q_dtype = i % 3 ? MLA_DTYPE_BF16 : MLA_DTYPE_F32;
        c.segment[0].dtype = i % 4 ? MLA_DTYPE_F16 : MLA_DTYPE_F32;
        c.o_dtype = i % 3 == 1 ? MLA_DTYPE_F16 : MLA_DTYPE_F32;
        c.segment[0].addressing = (mla_addressing)(i % 3);
        c.segment[0].v_apart = i % 5 == 4;
        set_lengths(&c.segment[0], 3, (int64_t[]){65, 10, 128});
        ck_check_config(&c);
    }
}

static void check_ragged(void)
{
    for (int i = 0; i < 6; i++) {
        ck_config c = ck_config_plain(6, 0, 5, 64, 64, 0);
        c.n_slots = 6;
        const int64_t slots[] = {1, 4, 0, 17, 2, 3};
        for (int s = 0; s < 6; s++) {
            c.slots[s] = slots[(s + i) % 6];
        }
        c.lead_tokens = i % 3;
        c.tail_tokens = i / 2;
        c.segment[0].visible.rule = i % 2 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
        c.segment[0].addressing = (mla_addressing)(i % 3);
        set_lengths(&c.segment[0], 6, (int64_t[]){2, 100, 9, 64, 0, 97});
        ck_check_config(&c);
    }
}

static void check_q_length(void)
{
    for (int i = 0; i < 6; i++) {
        ck_config c = ck_config_plain(5, i % 2 ? 4 : 0, 3, 64, 64, 0);
        c.n_slots = i % 2 ? 0 : 1;
        c.slots[0] = 4;
        c.n_used = 5;
        const int64_t used[] = {4, 0, 1, 3, -2};
        for (int s = 0; s < 5; s++) {
            c.used[s] = used[s];
        }
        c.segment[0].visible.rule = (mla_visible_rule)(i % 4);
        c.segment[0].visible.left = 5;
        c.segment[0].visible.ratio = 2;
        set_lengths(&c.segment[0], 5, (int64_t[]){2, 100, 70, 64, 9});
        ck_check_config(&c);
    }
}

static void check_inputs(void)
{
    static const int64_t dims[][2] = {{576, 512}, {64, 64}};
    for (int inputs = 0; inputs < CK_INPUTS_COUNT; inputs++) {
        for (int i = 0; i < 6; i++) {
            ck_config c = ck_config_plain(1, 1, 3, dims[i % 2][0], dims[i % 2][1], i < 2 ? 40 : i < 4 ? 700 : 1300);
            c.inputs = (ck_inputs)inputs;
            c.q_dtype = i % 3 == 0 ? MLA_DTYPE_F32 : i % 3 == 1 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16;
            c.segment[0].dtype = i % 3 == 0 ? MLA_DTYPE_F32 : i % 3 == 1 ? MLA_DTYPE_F16 : MLA_DTYPE_BF16;
            ck_check_config(&c);
        }
    }
}

/* Long enough for many splits, with sizes of production. */
static void check_long(void)
{
    static const int64_t lengths[] = {4096, 8191, 20000};
    for (int64_t i = 0; i < COUNT(lengths); i++) {
        ck_config c = ck_config_plain(1, 1, 16, 576, 512, lengths[i]);
        c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
        ck_check_config(&c);
    }
    ck_config c = ck_config_plain(2, 3, 2, 64, 64, 0);
    c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
    set_lengths(&c.segment[0], 2, (int64_t[]){9001, 2500});
    c.inputs = CK_RISING;
    ck_check_config(&c);
    c.inputs = CK_NORMAL;
    c.n_segment = 2;
    set_lengths(&c.segment[1], 2, (int64_t[]){3, 6000});
    c.sink = CK_SINK_RANDOM;
    ck_check_config(&c);
}

/* Thousands of rows, each of them recomputed: one wrong row must not hide. */
static void check_many_rows(void)
{
    ck_config c = ck_config_plain(20, 17, 16, 24, 8, 0);
    set_lengths(&c.segment[0], 7, (int64_t[]){30, 41, 17, 5, 60, 1, 18});
    c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
    ck_check_config(&c);
    c.n_kv_head = 4;
    c.segment[0].addressing = MLA_ADDRESS_BATCHED;
    ck_check_config(&c);
}

/*
 * The promise of fp32 arithmetic: on well-scaled data an fp32 output is within 2e-6 of the exact one, in the norm of a
 * row. Bounds that hold for every element are wider, because they must allow for the worst; this is about the usual.
 */
static void check_accuracy(void)
{
    static const int64_t lengths[] = {64, 1000, 6000};
    for (int64_t i = 0; i < COUNT(lengths); i++) {
        size_t mark = ck_mark();
        ck_config c = ck_config_plain(1, 1, 8, 576, 512, lengths[i]);
        mla_problem problem;
        mla_shape shape;
        ck_context("%lld keys", (long long)lengths[i]);
        ck_make(&c, &problem);
        problem.arithmetic = MLA_ARITHMETIC_F32;
        ck_execute(&problem, NULL);
        CK_REQUIRE(mla_problem_resolve(&problem, &shape) == MLA_STATUS_OK);
        void *scratch = ck_buffer("scratch", mla_ref_scratch_bytes(&problem, &shape));
        for (int64_t h = 0; h < c.n_head; h++) {
            double o[512], error = 0, norm = 0;
            mla_ref_row_result row;
            mla_ref_row(&problem, &shape, 0, 0, h, scratch, o, &row);
            for (int64_t d = 0; d < 512; d++) {
                double got = mla_ref_load(problem.o.data, problem.o.dtype, ck_offset(&problem.o, 0, 0, h, d));
                error += (got - o[d]) * (got - o[d]);
                norm += o[d] * o[d];
            }
            error = sqrt(error / norm);
            if (!(error <= 2e-6)) {
                ck_fail("head %lld: relative error %.3g of a row exceeds 2e-6", (long long)h, error);
            }
        }
        ck_release(mark);
    }
}

static void check_random(void)
{
    double start = ck_clock();
    for (uint64_t i = 0; i < 20 || ck_clock() - start < ck_seconds; i++) {
        ck_config c = ck_config_random(ck_hash(ck_seed, i), 30000);
        ck_check_config(&c);
    }
}

/* One list length per sequence or per token of a packed q: which of the two is told by the extent alone, and with as many
 * tokens as sequences it is per token. */
static void check_list_lengths(void)
{
    static const int64_t slots[][3] = {{2, 0, 1}, {0, 3, 0}, {3, 1, 2}, {4, 4, 4}, {1, 0, 1}};
    for (int i = 0; i < 5; i++) {
        for (int per = CK_PER_SEQUENCE; per <= CK_PER_TOKEN; per++) {
            for (int64_t n_head = 3; n_head <= 20; n_head += 17) {
                ck_config c = ck_config_plain(3, 0, n_head, 64, 64, 700);
                c.n_slots = 3;
                memcpy(c.slots, slots[i], sizeof slots[i]);
                c.segment[0].list = i % 2 ? CK_PHYSICAL : CK_LOGICAL;
                c.segment[0].n_entry = 500;
                c.segment[0].list_length = (ck_per)per;
                ck_check_config(&c);
            }
        }
    }
}

const ck_test ck_attention_tests[] = {
    {.name = "attention/dims", .run = check_dims},
    {.name = "attention/heads", .run = check_heads},
    {.name = "attention/kv_heads", .run = check_kv_heads},
    {.name = "attention/pages", .run = check_pages},
    {.name = "attention/lengths", .run = check_lengths},
    {.name = "attention/queries", .run = check_queries},
    {.name = "attention/causal", .run = check_causal},
    {.name = "attention/window", .run = check_window},
    {.name = "attention/compressed", .run = check_compressed},
    {.name = "attention/lists", .run = check_lists},
    {.name = "attention/list_lengths", .run = check_list_lengths},
    {.name = "attention/two_segments", .run = check_two_segments},
    {.name = "attention/masks", .run = check_masks},
    {.name = "attention/sinks", .run = check_sinks},
    {.name = "attention/outputs", .run = check_outputs},
    {.name = "attention/descales", .run = check_descales},
    {.name = "attention/rope_apart", .run = check_rope_apart},
    {.name = "attention/values_apart", .run = check_values_apart},
    {.name = "attention/dtypes", .run = check_dtypes},
    {.name = "attention/strides", .run = check_strides},
    {.name = "attention/ragged", .run = check_ragged},
    {.name = "attention/q_length", .run = check_q_length},
    {.name = "attention/inputs", .run = check_inputs},
    {.name = "attention/long", .run = check_long},
    {.name = "attention/many_rows", .run = check_many_rows},
    {.name = "attention/accuracy", .run = check_accuracy},
    {.name = "attention/random", .run = check_random},
    {0},
};
