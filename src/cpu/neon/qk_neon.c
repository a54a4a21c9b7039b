/*
 * qk_neon.c - scores of a row panel against a key block.
 *
 * A tile is 8 keys by 8 rows: 16 accumulators, 4 columns of 8 keys in 8 registers, whose lanes are the factors, and 2
 * vectors of q per column. 64 multiply-adds come with 12 loads and no broadcast. The vectors run over rows, so a score
 * tile comes out as [key][16], ready for softmax and pv. Accumulators are separate variables because compilers keep
 * arrays of vectors in memory.
 */
#include <arm_neon.h>

#include "tables_neon.h"

enum { COL_PANEL = MLA_NEON_COL_PANEL, ROWS = MLA_ROW_PANEL };

#define KEYS1(M) M(0)
#define KEYS2(M) M(0) M(1)
#define KEYS4(M) M(0) M(1) M(2) M(3)
#define KEYS8(M) KEYS4(M) M(4) M(5) M(6) M(7)

#define ZERO(i) float32x4_t a##i = vdupq_n_f32(0), b##i = vdupq_n_f32(0);
#define LOAD(i) float32x4_t x##i = vld1q_f32(k + (i) * COL_PANEL);
#define STEP0(i) STEP(i, 0)
#define STEP1(i) STEP(i, 1)
#define STEP2(i) STEP(i, 2)
#define STEP3(i) STEP(i, 3)
#define STEP(i, lane)                             \
    a##i = vfmaq_laneq_f32(a##i, q0, x##i, lane); \
    b##i = vfmaq_laneq_f32(b##i, q1, x##i, lane);
/* Ends a column: without it compilers mix the columns' sums and copy 8 registers per round to keep them apart. */
#define KEEP(i) __asm__("" : "+w"(a##i), "+w"(b##i));
/* Column `lane` of four: two vectors of q against the element of each key. */
#define COLUMN(KEYS, lane)                                                                    \
    {                                                                                         \
        float32x4_t q0 = vld1q_f32(q + (lane) * ROWS), q1 = vld1q_f32(q + (lane) * ROWS + 4); \
        KEYS(STEP##lane) KEYS(KEEP)                                                           \
    }
/* What is left of a panel: one column at a time, with the same sums. */
#define STEP_ONE(i)                                         \
    {                                                       \
        float32x4_t x = vld1q_dup_f32(k + (i) * COL_PANEL); \
        a##i = vfmaq_f32(a##i, q0, x);                      \
        b##i = vfmaq_f32(b##i, q1, x);                      \
    }
/* What is there already is added last: two short sums lose less than one long one. */
#define ADD(i)                                         \
    a##i = vaddq_f32(a##i, vld1q_f32(s + (i) * ROWS)); \
    b##i = vaddq_f32(b##i, vld1q_f32(s + (i) * ROWS + 4));
#define SAVE(i)                      \
    vst1q_f32(s + (i) * ROWS, a##i); \
    vst1q_f32(s + (i) * ROWS + 4, b##i);

/* Sum over n_col columns, panel by panel. Instantiated below for each number of keys, under a name of its own. */
#define TILE_BODY(KEYS)                                                                 \
    KEYS(ZERO)                                                                          \
    while (n_col > 0) {                                                                 \
        const float *k = block, *end = block + (n_col < COL_PANEL ? n_col : COL_PANEL); \
        for (; end - k >= 4; k += 4, q += 4 * ROWS) {                                   \
            KEYS(LOAD)                                                                  \
            COLUMN(KEYS, 0)                                                             \
            COLUMN(KEYS, 1)                                                             \
            COLUMN(KEYS, 2)                                                             \
            COLUMN(KEYS, 3)                                                             \
        }                                                                               \
        for (; k != end; k++, q += ROWS) {                                              \
            float32x4_t q0 = vld1q_f32(q), q1 = vld1q_f32(q + 4);                       \
            KEYS(STEP_ONE)                                                              \
        }                                                                               \
        block += panel_stride;                                                          \
        n_col -= COL_PANEL;                                                             \
    }                                                                                   \
    if (accumulate) {                                                                   \
        KEYS(ADD)                                                                       \
    }                                                                                   \
    KEYS(SAVE)
#define TILE_ARGUMENTS                                                                                          \
    const float *restrict q, const float *restrict block, int64_t panel_stride, int64_t n_col, bool accumulate, \
        float *restrict s

static void tile_8x8(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS8)
}
static void tile_4x8(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS4)
}
static void tile_2x8(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS2)
}
static void tile_1x8(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS1)
}

void mla_qk_f32_neon(const float *q, const float *block, int64_t panel_stride, int64_t n_col, int64_t n_key,
                     int32_t n_row, bool accumulate, float *s, mla_prefetch *ahead)
{
    static const struct {
        void (*run)(TILE_ARGUMENTS);
        int64_t n_key;
    } tiles[] = {{tile_8x8, 8}, {tile_4x8, 4}, {tile_2x8, 2}, {tile_1x8, 1}};
    int tile = 0;
    for (int64_t n = 0; n < n_key; n += tiles[tile].n_key) {
        while (tiles[tile].n_key > n_key - n) {
            tile++;
        }
        for (int32_t r = 0; r < n_row; r += 8) { /* the second half finds the keys in the first-level cache */
            tiles[tile].run(q + r, block + n * COL_PANEL, panel_stride, n_col, accumulate, s + n * ROWS + r);
            mla_prefetch_step(ahead);
        }
    }
}
