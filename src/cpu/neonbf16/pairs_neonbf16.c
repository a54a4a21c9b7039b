/*
 * pairs_neonbf16.c - operands of the bf16 units: queries, probabilities and values in tiles of pairs.
 */
#include <arm_neon.h>
#include <string.h>

#include "tables_neonbf16.h"

enum { ROWS = MLA_ROW_PANEL, STEP = MLA_BF16_STEP, TILE = MLA_BF16_TILE };

/* A number times a power of two, which is exact but for numbers that leave the range. */
static inline uint16_t scaled(uint16_t x, float factor)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= factor;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

void mla_qpairs_bf16_neonbf16(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, uint16_t *q)
{
    memset(q, 0, (size_t)((n_col + STEP - 1) / STEP * TILE) * sizeof *q);
    for (int32_t r = 0; r < n_row; r++) {
        const uint16_t *from = row[r];
        for (int64_t c = 0; c < n_col; c++) {
            q[c / 2 * 2 * ROWS + r * 2 + c % 2] = scaled(from[c], factor[r]);
        }
    }
}

/* Four rows' probabilities of four keys, [row][key] from [key][16]. */
static inline void transpose(const float *from, float32x4_t x[4])
{
    float32x4_t a = vld1q_f32(from), b = vld1q_f32(from + ROWS), c = vld1q_f32(from + (ptrdiff_t)2 * ROWS),
                d = vld1q_f32(from + (ptrdiff_t)3 * ROWS);
    float64x2_t ab0 = vreinterpretq_f64_f32(vtrn1q_f32(a, b)), ab1 = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
    float64x2_t cd0 = vreinterpretq_f64_f32(vtrn1q_f32(c, d)), cd1 = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    x[0] = vreinterpretq_f32_f64(vtrn1q_f64(ab0, cd0));
    x[1] = vreinterpretq_f32_f64(vtrn1q_f64(ab1, cd1));
    x[2] = vreinterpretq_f32_f64(vtrn2q_f64(ab0, cd0));
    x[3] = vreinterpretq_f32_f64(vtrn2q_f64(ab1, cd1));
}

/* 0 in place of numbers below 2^-126, which the products would drop too; NaN passes. */
static inline float32x4_t flushed(float32x4_t x)
{
    uint32x4_t small = vcaltq_f32(x, vdupq_n_f32(0x1p-126f));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), small));
}

/* Two vectors rounded to bf16; what that leaves stays in them. */
static inline bfloat16x8_t rounded(float32x4_t *low, float32x4_t *high)
{
    bfloat16x8_t y = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(flushed(*low)), flushed(*high));
    *low = vsubq_f32(*low, vcvtq_low_f32_bf16(y));
    *high = vsubq_f32(*high, vcvtq_high_f32_bf16(y));
    return y;
}

void mla_ppairs_bf16_neonbf16(const float *from, int64_t n_key, int32_t n_part, uint16_t *p)
{
    for (int64_t n = 0; n < n_key; n += 8, from += 8 * ROWS) {
        uint16_t *to = p + n / STEP * n_part * TILE + n % STEP;
        for (int r = 0; r < ROWS; r += 4) {
            float32x4_t low[4], high[4];
            transpose(from + r, low);
            transpose(from + r + 4 * ROWS, high);
            for (int i = 0; i < 4; i++) {
                for (int32_t part = 0; part < n_part; part++) {
                    vst1q_u16(to + (ptrdiff_t)part * TILE + (ptrdiff_t)(r + i) * STEP,
                              vreinterpretq_u16_bf16(rounded(&low[i], &high[i])));
                }
            }
        }
    }
}

void mla_vpairs_bf16_neonbf16(const void *const *row, int64_t n_key, int64_t n_col, uint16_t *v, int64_t v_stride)
{
    /* keys outermost: the rows of a pair are read front to back */
    for (int64_t n = 0; n < n_key; n += 2) {
        const uint16_t *a = row[n], *b = row[n + 1];
        uint16_t *to = v + n * 16;
        for (int64_t c = 0; c < n_col; c += 16, to += v_stride) {
            uint16_t rest[2][16] = {{0}};
            const uint16_t *x = a + c, *y = b + c;
            if (n_col - c < 16) {
                memcpy(rest[0], x, (size_t)(n_col - c) * sizeof *x);
                memcpy(rest[1], y, (size_t)(n_col - c) * sizeof *y);
                x = rest[0];
                y = rest[1];
            }
            for (int64_t i = 0; i < 16; i += 8) {
                vst2q_u16(to + 2 * i, (uint16x8x2_t){{vld1q_u16(x + i), vld1q_u16(y + i)}});
            }
        }
    }
}
