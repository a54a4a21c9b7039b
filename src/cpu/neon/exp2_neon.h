/*
 * exp2_neon.h - the exponential of the softmax kernels.
 */
#ifndef MLA_CPU_EXP2_NEON_H
#define MLA_CPU_EXP2_NEON_H

#include <arm_neon.h>
#include <float.h>

#include "cpu/exp2_polynomial.h"
#include "cpu/kernels.h"

/*
 * 2^x for x <= MLA_RESCALE_SLACK, with the steps of the wider levels and hence their bits: x = n + f with n an integer and
 * |f| <= 1/2, 2^f by a polynomial, 2^n by adding n to the exponent; 0 below 2^-126. NaN stays NaN.
 */
static inline float32x4_t exp2_neon(float32x4_t x)
{
    const float32x4_t low = vdupq_n_f32(-126.0f);
    uint32x4_t tiny = vcltq_f32(x, low);
    x = vmaxq_f32(x, low); /* NaN wins */
    float32x4_t n = vrndnq_f32(x), f = vsubq_f32(x, n);
    float32x4_t y = vdupq_n_f32(MLA_EXP2_C6);
    y = vfmaq_f32(vdupq_n_f32(MLA_EXP2_C5), y, f);
    y = vfmaq_f32(vdupq_n_f32(MLA_EXP2_C4), y, f);
    y = vfmaq_f32(vdupq_n_f32(MLA_EXP2_C3), y, f);
    y = vfmaq_f32(vdupq_n_f32(MLA_EXP2_C2), y, f);
    y = vfmaq_f32(vdupq_n_f32(MLA_EXP2_C1), y, f);
    y = vfmaq_f32(vdupq_n_f32(1.0f), y, f);
    int32x4_t exponent = vshlq_n_s32(vcvtq_s32_f32(n), 23); /* of NaN: 0 */
    uint32x4_t bits = vreinterpretq_u32_s32(vaddq_s32(vreinterpretq_s32_f32(y), exponent));
    return vreinterpretq_f32_u32(vbicq_u32(bits, tiny));
}

/* A score beyond fp32 counts as its largest number, so that no difference of infinities arises. NaN stays NaN. */
static inline float32x4_t below_infinity_neon(float32x4_t x)
{
    return vminq_f32(x, vdupq_n_f32(FLT_MAX));
}

/* The larger of two numbers; of a number and a NaN the number, so that a NaN does not become the maximum. */
static inline float32x4_t larger_neon(float32x4_t x, float32x4_t y)
{
    return vmaxnmq_f32(x, y);
}

#endif
