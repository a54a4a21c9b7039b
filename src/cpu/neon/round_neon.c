/*
 * round_neon.c - probabilities that are rounded before they multiply the values: a score panel [key][16] in, a lane a row.
 */
#include <arm_neon.h>
#include <math.h>

#include "exp2_neon.h"
#include "hif8_neon.h"
#include "tables_neon.h"

enum { ROWS = MLA_ROW_PANEL, LANES = 4 };

static inline float32x4_t round_f16(float32x4_t p, float32x4_t unit)
{
    (void)unit;
    return vcvt_f32_f16(vcvt_f16_f32(p));
}

static inline float32x4_t round_bf16(float32x4_t p, float32x4_t unit)
{
    (void)unit;
    uint32x4_t bits = vreinterpretq_u32_f32(p), even = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t sum = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), even);
    uint32x4_t rounded = vandq_u32(sum, vdupq_n_u32(0xffff0000u));
    return vbslq_f32(vceqq_f32(p, p), vreinterpretq_f32_u32(rounded), p);
}

static inline float32x4_t round_hif8(float32x4_t p, float32x4_t unit)
{
    (void)unit;
    return vmulq_n_f32(hif8_round_neon(vmulq_n_f32(p, 16)), 0.0625f);
}

static inline float32x4_t round_i8(float32x4_t p, float32x4_t unit)
{
    return vrndnq_f32(round_f16(vdivq_f32(p, unit), unit));
}

/* Four vectors of four rows; each row's sum is one chain, over keys in ascending order. */
#define ROUND_BODY(ROUND)                                                                \
    for (int r = 0; r < ROWS; r += LANES) {                                              \
        float32x4_t base = vld1q_f32(m + r), total = vld1q_f32(sum + r);                 \
        float32x4_t one_unit = unit ? vld1q_f32(unit + r) : vdupq_n_f32(0);              \
        base = vbslq_f32(vceqq_f32(base, vdupq_n_f32(-INFINITY)), vdupq_n_f32(0), base); \
        for (float *t = s + r, *end = t + n_key * ROWS; t != end; t += ROWS) {           \
            float32x4_t p = exp2_neon(vsubq_f32(vld1q_f32(t), base));                    \
            total = vaddq_f32(total, p);                                                 \
            vst1q_f32(t, ROUND(p, one_unit));                                            \
        }                                                                                \
        vst1q_f32(sum + r, total);                                                       \
    }

void mla_round_f16_neon(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    ROUND_BODY(round_f16)
}

void mla_round_bf16_neon(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    ROUND_BODY(round_bf16)
}

void mla_round_hif8_neon(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    ROUND_BODY(round_hif8)
}

void mla_round_i8_neon(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    ROUND_BODY(round_i8)
}
