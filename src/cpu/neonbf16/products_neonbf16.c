/*
 * products_neonbf16.c - scores and values by products of pairs.
 *
 * Both are the same sum: 8 rows of stored numbers (keys, or probabilities of a query row) against 8 lanes of a tile of
 * pairs (query rows, or columns of values). 16 accumulators; 8 numbers of each row in one register, whose pairs are the
 * factors without a broadcast. 64 products of 8 multiply-adds come with 16 loads.
 */
#include <arm_neon.h>

#include "cpu/neon/tables_neon.h"
#include "tables_neonbf16.h"

enum { ROWS = MLA_ROW_PANEL, STEP = MLA_BF16_STEP, TILE = MLA_BF16_TILE, LANES = 8, FACTORS = 8 };
_Static_assert(MLA_NEON_COL_PANEL == ROWS, "scores of a key and outputs of a row lie alike");

#define EACH(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
#define ZERO(i) float32x4_t a##i = vdupq_n_f32(0), b##i = vdupq_n_f32(0);
/* Rows are aligned to a number. */
#define LOAD(i) bfloat16x8_t x##i = vreinterpretq_bf16_u16(vld1q_u16((const uint16_t *)(from + (i) * row) + c));
#define PRODUCT(i, pair)                            \
    a##i = vbfdotq_laneq_f32(a##i, y0, x##i, pair); \
    b##i = vbfdotq_laneq_f32(b##i, y1, x##i, pair);
#define PRODUCT0(i) PRODUCT(i, 0)
#define PRODUCT1(i) PRODUCT(i, 1)
#define PRODUCT2(i) PRODUCT(i, 2)
#define PRODUCT3(i) PRODUCT(i, 3)
/* Pair `pair` of the rows' four. */
#define PAIR(pair)                                                                 \
    {                                                                              \
        const uint16_t *at = lanes + (c / 2 + (pair)) * 2 * ROWS;                  \
        bfloat16x8_t y0 = vreinterpretq_bf16_u16(vld1q_u16(at));                   \
        bfloat16x8_t y1 = vreinterpretq_bf16_u16(vld1q_u16(at + 2 * (LANES / 2))); \
        EACH(PRODUCT##pair)                                                        \
    }
/* What is there already is added last: two short sums lose less than one long one. */
#define ADD(i)                                          \
    a##i = vaddq_f32(a##i, vld1q_f32(to + (i) * ROWS)); \
    b##i = vaddq_f32(b##i, vld1q_f32(to + (i) * ROWS + 4));
#define SAVE(i)                       \
    vst1q_f32(to + (i) * ROWS, a##i); \
    vst1q_f32(to + (i) * ROWS + 4, b##i);

/* to[i][lane] (+)= sum over n numbers, a multiple of the step, of 8 rows: `row` bytes apart, and `step` bytes from one
 * step, or part of it, to the next. lanes: tiles of pairs, one behind the other. */
static void products(const char *from, int64_t row, int64_t step, int32_t n_part, const uint16_t *lanes, int64_t n,
                     bool accumulate, float *to)
{
    EACH(ZERO)
    for (; n > 0; n -= STEP, lanes += TILE) {
        for (int32_t part = 0; part < n_part; part++, from += step) {
            for (int64_t c = 0; c < STEP; c += FACTORS) {
                EACH(LOAD)
                PAIR(0)
                PAIR(1)
                PAIR(2)
                PAIR(3)
            }
        }
    }
    if (accumulate) {
        EACH(ADD)
    }
    EACH(SAVE)
}

void mla_qk_bf16_neonbf16(const uint16_t *q, int64_t q_stride, const mla_key_tile *tile, int64_t n_tile, int64_t n_col,
                          int64_t n_panel, bool accumulate, float *s, int64_t s_stride, mla_prefetch *ahead)
{
    for (int64_t i = 0; i < 2 * n_tile; i++) { /* 8 keys, which stay in the first-level cache for all rows */
        const char *keys = (const char *)tile[i / 2].row + i % 2 * 8 * tile[i / 2].stride;
        for (int64_t panel = 0; panel < n_panel; panel++) {
            for (int64_t r = 0; r < ROWS; r += LANES) {
                products(keys, tile[i / 2].stride, STEP * (int64_t)sizeof *q, 1, q + panel * q_stride + 2 * r, n_col,
                         accumulate, s + panel * s_stride + i * 8 * ROWS + r);
            }
            mla_prefetch_step(ahead);
        }
    }
}

void mla_pv_bf16_neonbf16(const uint16_t *p, int64_t p_stride, int32_t n_part, const uint16_t *v, int64_t v_stride,
                          int64_t n_key, int64_t n_panel, int64_t n_col, float *const *o, mla_prefetch *ahead)
{
    for (int64_t c = 0; c < n_col; c += ROWS, v += v_stride) { /* 16 columns of values, for all rows */
        for (int64_t panel = 0; panel < n_panel; panel++) {
            for (int64_t i = 0; i < 4; i++) {
                const int64_t r = i / 2 * 8, lane = i % 2 * LANES;
                products((const char *)(p + panel * p_stride + r * STEP), STEP * (int64_t)sizeof *p,
                         TILE * (int64_t)sizeof *p, n_part, v + 2 * lane, n_key, true,
                         o[panel] + (c + r) * ROWS + lane);
            }
            mla_prefetch_step(ahead);
        }
    }
}
