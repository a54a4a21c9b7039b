/*
 * pv_neon.c - probabilities times values for one column panel, and rescaling of accumulators.
 *
 * A tile is 8 rows by 8 columns: 16 accumulators that stay in registers over the whole key block, 2 vectors of v, and the
 * probabilities of 8 rows in 2 registers, whose lanes are the factors. 16 multiply-adds come with 2 loads of pairs. Four
 * rows or fewer take 16 columns at once.
 */
#include <arm_neon.h>

#include "tables_neon.h"

enum { COL_PANEL = MLA_NEON_COL_PANEL, ROWS = MLA_ROW_PANEL };

/* The block is summed from zero and added to o last: two short sums lose less than one long one. */
#define ADD(at, x) vst1q_f32((at), vaddq_f32(vld1q_f32(at), (x)))

#define ROWS8(M) M(0, p0, 0) M(1, p0, 1) M(2, p0, 2) M(3, p0, 3) M(4, p1, 0) M(5, p1, 1) M(6, p1, 2) M(7, p1, 3)
#define ROWS4(M) M(0, p0, 0) M(1, p0, 1) M(2, p0, 2) M(3, p0, 3)
#define ZERO2(r, weights, lane) float32x4_t w##r = vdupq_n_f32(0), x##r = vdupq_n_f32(0);
#define STEP2(r, weights, lane)                      \
    w##r = vfmaq_laneq_f32(w##r, v0, weights, lane); \
    x##r = vfmaq_laneq_f32(x##r, v1, weights, lane);
#define ADD2(r, weights, lane)      \
    ADD(o + (r) * COL_PANEL, w##r); \
    ADD(o + (r) * COL_PANEL + 4, x##r);
#define ZERO4(r, weights, lane) ZERO2(r, weights, lane) float32x4_t y##r = vdupq_n_f32(0), z##r = vdupq_n_f32(0);
#define STEP4(r, weights, lane)                                              \
    STEP2(r, weights, lane) y##r = vfmaq_laneq_f32(y##r, v2, weights, lane); \
    z##r = vfmaq_laneq_f32(z##r, v3, weights, lane);
#define ADD4(r, weights, lane)                                 \
    ADD2(r, weights, lane) ADD(o + (r) * COL_PANEL + 8, y##r); \
    ADD(o + (r) * COL_PANEL + 12, z##r);

static void tile_8x8(const float *restrict p, const float *restrict v, int64_t n_key, float *restrict o)
{
    ROWS8(ZERO2)
    for (const float *end = v + n_key * COL_PANEL; v != end; v += COL_PANEL, p += ROWS) {
        float32x4_t p0 = vld1q_f32(p), p1 = vld1q_f32(p + 4), v0 = vld1q_f32(v), v1 = vld1q_f32(v + 4);
        ROWS8(STEP2)
    }
    ROWS8(ADD2)
}

static void tile_4x16(const float *restrict p, const float *restrict v, int64_t n_key, float *restrict o)
{
    ROWS4(ZERO4)
    for (const float *end = v + n_key * COL_PANEL; v != end; v += COL_PANEL, p += ROWS) {
        float32x4_t p0 = vld1q_f32(p), v0 = vld1q_f32(v), v1 = vld1q_f32(v + 4), v2 = vld1q_f32(v + 8);
        float32x4_t v3 = vld1q_f32(v + 12);
        ROWS4(STEP4)
    }
    ROWS4(ADD4)
}

void mla_pv_f32_neon(const float *p, const float *v, int64_t n_key, int32_t n_row, int32_t n_col, float *o,
                     mla_prefetch *ahead)
{
    int32_t r = 0;
    for (; r + 4 < n_row; r += 8) {
        for (int32_t c = 0; c < n_col; c += 8) {
            tile_8x8(p + r, v + c, n_key, o + r * COL_PANEL + c);
            mla_prefetch_step(ahead);
        }
    }
    if (r < n_row) {
        tile_4x16(p + r, v, n_key, o + r * COL_PANEL);
        mla_prefetch_step(ahead);
    }
}

void mla_merge_f32_neon(float *o, const float *x, const float *a, const float *b, int64_t n_panel, int32_t n_row)
{
    for (int64_t panel = 0; panel < n_panel; panel++) {
        for (int32_t r = 0; r < n_row; r++) {
            int64_t at = (panel * ROWS + r) * COL_PANEL;
            for (int64_t c = at; c < at + COL_PANEL; c += 4) {
                float32x4_t sum = vmulq_n_f32(vld1q_f32(o + c), a[r]);
                if (x) {
                    sum = vfmaq_n_f32(sum, vld1q_f32(x + c), b[r]);
                }
                vst1q_f32(o + c, sum);
            }
        }
    }
}
