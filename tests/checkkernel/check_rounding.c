/*
 * check_rounding.c - probabilities that are rounded before they multiply the values: which tiles, against which
 * maximum, to which numbers. A subject that does not offer a rounding has its test skipped, with its own sentence.
 *
 * Dims are small where the rounding itself is in question: the fewer terms a score has, the fewer probabilities lie so
 * close to a step that it may fall on either side, and the less a wrong rounding can hide.
 */
#include <math.h>
#include <string.h>

#include "checkkernel.h"
#include "ref/ref.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static const int32_t TILES[] = {128, 512, 1, 2, 16, 37, 64, 100, 511};

static void set_lengths(ck_segment *s, int64_t n, const int64_t *length)
{
    s->n_length = n;
    for (int64_t i = 0; i < n; i++) {
        s->length[i] = length[i];
    }
}

/* The storage that each rounding is made for; variant 1: another one that it must work with. */
static ck_config plain(mla_p_rounding rounding, int32_t tile, int variant, int64_t n_q, int64_t n_head, int64_t d,
                       int64_t d_v)
{
    static const mla_dtype dtypes[4][2] = {[MLA_P_ROUND_16BIT] = {MLA_DTYPE_BF16, MLA_DTYPE_F16},
                                           [MLA_P_ROUND_INT8] = {MLA_DTYPE_I8, MLA_DTYPE_I8},
                                           [MLA_P_ROUND_HIF8] = {MLA_DTYPE_HIF8, MLA_DTYPE_BF16}};
    ck_config c = ck_config_plain(2, n_q, n_head, d, d_v, 0);
    c.p_rounding = rounding;
    c.p_tile = tile;
    for (int g = 0; g < 2; g++) {
        c.segment[g].dtype = dtypes[rounding][variant];
    }
    c.q_dtype = rounding == MLA_P_ROUND_INT8 && variant == 1 ? MLA_DTYPE_BF16 : dtypes[rounding][variant];
    return c;
}

/* Lengths around a few tiles, in one segment of everything. */
static void check_tiles(mla_p_rounding rounding)
{
    for (int64_t x = 0; x < COUNT(TILES); x++) {
        for (int variant = 0; variant < 2; variant++) {
            ck_config c = plain(rounding, TILES[x], variant, 1 + variant, 4, 24, 16);
            int64_t tile = TILES[x] < 16 ? 16 : TILES[x];
            set_lengths(&c.segment[0], 2, (int64_t[]){2 * tile + 1, tile - 1 + variant});
            ck_check_config_if_offered(&c);
            c.inputs = CK_RISING; /* the maximum grows from tile to tile */
            ck_check_config_if_offered(&c);
            c.inputs = CK_ONE_DOMINANT;
            ck_check_config_if_offered(&c);
        }
    }
}

/* Tiles begin where the row's own keys do. */
static void check_ranges(mla_p_rounding rounding)
{
    static const int64_t left[] = {126, 127, 130, 300, -1};
    for (int64_t x = 0; x < COUNT(left); x++) {
        ck_config c = plain(rounding, x % 2 ? 37 : 128, x % 2, 3, 5, 24, 24);
        set_lengths(&c.segment[0], 2, (int64_t[]){333, 215});
        c.segment[0].visible = (mla_visible){.rule = MLA_VISIBLE_WINDOW, .left = left[x], .right = x % 3 - 1};
        ck_check_config_if_offered(&c);
        c.segment[0].visible = (mla_visible){.rule = MLA_VISIBLE_CAUSAL};
        c.segment[0].addressing = (mla_addressing)(x % 3);
        ck_check_config_if_offered(&c);
        c.segment[0].visible = (mla_visible){.rule = MLA_VISIBLE_COMPRESSED, .ratio = 3};
        c.segment[0].has_residual = x % 2;
        ck_check_config_if_offered(&c);
    }
}

/* Of a list only the entries that name a key have a place in a tile; of keys under a mask, all. */
static void check_places(mla_p_rounding rounding)
{
    for (int64_t x = 0; x < 8; x++) {
        ck_config c = plain(rounding, x % 2 ? 16 : 128, x / 2 % 2, 2, 4, 24, 20);
        set_lengths(&c.segment[0], 2, (int64_t[]){300, 150});
        c.segment[0].list = x % 2 ? CK_PHYSICAL : CK_LOGICAL;
        c.segment[0].list_rule = x < 4 ? MLA_LIST_SKIP : MLA_LIST_STOP;
        c.segment[0].n_entry = 290;
        ck_check_config_if_offered(&c);
        c.segment[0].list = CK_NO_LIST;
        c.segment[0].mask = (ck_mask)(1 + x % 4);
        c.segment[0].mask_dtype = MLA_DTYPE_BF16;
        ck_check_config_if_offered(&c);
    }
}

/* The sink is there before the first tile, far below the scores, among them, and above all of them. */
static void check_sinks(mla_p_rounding rounding)
{
    for (int sink = CK_SINK_RANDOM; sink <= CK_SINK_LARGE; sink++) {
        for (int variant = 0; variant < 4; variant++) {
            ck_config c = plain(rounding, variant % 2 ? 16 : 128, variant % 2, 1, 9, 24, 24);
            set_lengths(&c.segment[0], 2, (int64_t[]){200, 45});
            c.sink = (ck_sink)sink;
            c.lse_with_sink = variant / 2;
            ck_check_config_if_offered(&c);
        }
    }
}

/* A window of one segment and a list or a range of another, each with its own descale and its own last tile. */
static void check_segments(mla_p_rounding rounding)
{
    for (int64_t x = 0; x < 8; x++) {
        ck_config c = plain(rounding, x % 2 ? 100 : 128, x / 2 % 2, 2, 6, 24, 24);
        c.n_segment = 2;
        set_lengths(&c.segment[0], 2, (int64_t[]){301, 90});
        set_lengths(&c.segment[1], 2, (int64_t[]){75, 300});
        c.segment[0].visible = (mla_visible){.rule = MLA_VISIBLE_WINDOW, .left = 140, .right = 0};
        c.segment[1].visible = (mla_visible){.rule = MLA_VISIBLE_COMPRESSED, .ratio = 4};
        c.segment[1].list = x % 4 == 1 ? CK_LOGICAL : x % 4 == 2 ? CK_PHYSICAL : CK_NO_LIST;
        c.segment[1].n_entry = 190;
        if (c.segment[1].list == CK_PHYSICAL) {
            c.segment[1].visible.rule = MLA_VISIBLE_ALL;
        }
        c.segment[0].descale = 0.8f;
        c.segment[1].descale = 1.7f;
        c.q_descale = 0.9f;
        c.pv_descale = x % 2;
        c.sink = CK_SINK_RANDOM;
        c.lse_with_sink = true;
        c.lse_empty = MLA_LSE_EMPTY_ZERO;
        ck_check_config_if_offered(&c);
    }
}

/* Sizes of production. */
static void check_production(mla_p_rounding rounding)
{
    for (int variant = 0; variant < 2; variant++) {
        ck_config c = plain(rounding, variant ? 512 : 128, 0, 1, 16, 512, 512);
        set_lengths(&c.segment[0], 2, (int64_t[]){1100, 640});
        c.o_dtype = MLA_DTYPE_BF16;
        if (rounding != MLA_P_ROUND_HIF8) {
            c.d_rope = 64;
            c.segment[0].piece = rounding == MLA_P_ROUND_INT8 ? 32 : 16;
            c.segment[0].rope_piece = 16;
            c.segment[0].page_size = 128;
            c.qk_descale = c.pv_descale = rounding == MLA_P_ROUND_INT8;
        }
        ck_check_config_if_offered(&c);
    }
}

static void check_all(mla_p_rounding rounding)
{
    check_tiles(rounding);
    check_ranges(rounding);
    check_places(rounding);
    check_sinks(rounding);
    check_segments(rounding);
    check_production(rounding);
}

static void check_16bit(void)
{
    check_all(MLA_P_ROUND_16BIT);
}

static void check_int8(void)
{
    check_all(MLA_P_ROUND_INT8);
}

static void check_hif8(void)
{
    check_all(MLA_P_ROUND_HIF8);
}

/* The oracle itself: its rounded rows stay near its exact ones, by what half a quantum of each rounding can cost in the
 * norm of a row, and are not the same. */
static void check_oracle(void)
{
    static const struct {
        mla_p_rounding rounding;
        int variant;
        double least, most;
    } expected[] = {{MLA_P_ROUND_16BIT, 0, 1e-4, 0x1p-8},
                    {MLA_P_ROUND_16BIT, 1, 1e-5, 0x1p-11},
                    {MLA_P_ROUND_INT8, 0, 1e-4, 0.02},
                    {MLA_P_ROUND_HIF8, 0, 2e-3, 0.04}};
    for (int64_t x = 0; x < COUNT(expected); x++) {
        size_t mark = ck_mark();
        ck_config c = plain(expected[x].rounding, 128, expected[x].variant, 1, 8, 512, 512);
        set_lengths(&c.segment[0], 2, (int64_t[]){640, 640});
        c.sink = CK_SINK_RANDOM;
        mla_problem problem;
        mla_shape shape;
        ck_make(&c, &problem);
        CK_REQUIRE(mla_problem_resolve(&problem, &shape) == MLA_STATUS_OK);
        void *scratch = ck_buffer("scratch", mla_ref_scratch_bytes(&problem, &shape));
        for (int64_t h = 0; h < c.n_head; h++) {
            double exact[512], rounded[512], error = 0, norm = 0;
            mla_ref_row_result row;
            mla_ref_row(&problem, &shape, 0, 0, h, scratch, exact, &row);
            mla_ref_row_rounded(&problem, &shape, 0, 0, h, scratch, rounded, &row);
            for (int64_t d = 0; d < 512; d++) {
                error += (rounded[d] - exact[d]) * (rounded[d] - exact[d]);
                norm += exact[d] * exact[d];
            }
            error = sqrt(error / norm);
            if (!(error > expected[x].least && error <= expected[x].most)) {
                ck_fail("%s, head %lld: rounding moves the row by %.3g of its size, not by %.3g to %.3g",
                        mla_p_rounding_word(expected[x].rounding), (long long)h, error, expected[x].least,
                        expected[x].most);
            }
        }
        ck_release(mark);
    }
}

const ck_test ck_rounding_tests[] = {
    {.name = "rounding/oracle", .run = check_oracle, .once = true, .library = true},
    {.name = "rounding/16bit", .run = check_16bit},
    {.name = "rounding/int8", .run = check_int8},
    {.name = "rounding/hif8", .run = check_hif8},
    {0},
};
