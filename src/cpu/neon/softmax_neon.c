/*
 * softmax_neon.c - online softmax over a score panel [key][16], all of it vertical: a lane is a row.
 */
#include <arm_neon.h>
#include <math.h>

#include "exp2_neon.h"
#include "tables_neon.h"

enum { ROWS = MLA_ROW_PANEL, LANES = 4 };

/* Scores of four rows in place, -inf where they are hidden; returns the largest of each row. */
static inline float32x4_t scale_and_hide(float *s, int64_t n_key, const float *scale, const int32_t *begin,
                                         const int32_t *end, const float *mask)
{
    const float32x4_t nothing = vdupq_n_f32(-INFINITY);
    float32x4_t c = vld1q_f32(scale), top = nothing;
    if (!begin && !mask) {
        for (int64_t n = 0; n < n_key; n++) {
            float32x4_t t = below_infinity_neon(vmulq_f32(vld1q_f32(s + n * ROWS), c));
            vst1q_f32(s + n * ROWS, t);
            top = larger_neon(top, t);
        }
        return top;
    }
    int32x4_t from = begin ? vld1q_s32(begin) : vdupq_n_s32(0), to = end ? vld1q_s32(end) : vdupq_n_s32((int)n_key);
    for (int64_t n = 0; n < n_key; n++) {
        int32x4_t key = vdupq_n_s32((int)n);
        float32x4_t t = vmulq_f32(vld1q_f32(s + n * ROWS), c);
        uint32x4_t seen = vandq_u32(vcleq_s32(from, key), vcgtq_s32(to, key));
        if (mask) {
            float32x4_t addend = vld1q_f32(mask + n * ROWS);
            t = vaddq_f32(t, addend);
            seen = vbicq_u32(seen, vceqq_f32(addend, nothing));
        }
        t = vbslq_f32(seen, below_infinity_neon(t), nothing);
        vst1q_f32(s + n * ROWS, t);
        top = larger_neon(top, t);
    }
    return top;
}

/* Four rows of the panel; returns whether any of them must rescale. */
static bool softmax_quarter(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                            const float *mask, float *m, float *l, float *max, float *factor)
{
    const float32x4_t nothing = vdupq_n_f32(-INFINITY), one = vdupq_n_f32(1);
    float32x4_t top = scale_and_hide(s, n_key, scale, begin, end, mask), old = vld1q_f32(m);
    uint32x4_t grown = vcgtq_f32(top, vaddq_f32(old, vdupq_n_f32(MLA_RESCALE_SLACK)));
    uint32x4_t fresh = vceqq_f32(old, nothing);
    float32x4_t now = vbslq_f32(vorrq_u32(grown, fresh), top, old);
    float32x4_t shrink = vbslq_f32(vbicq_u32(grown, fresh), exp2_neon(vsubq_f32(old, now)), one);
    /* a row that has seen nothing keeps m = -inf; its probabilities are taken relative to 0 and come out as 0 */
    float32x4_t base = vbslq_f32(vceqq_f32(now, nothing), vdupq_n_f32(0), now), sum = vdupq_n_f32(0);
    for (int64_t n = 0; n < n_key; n++) {
        float32x4_t p = exp2_neon(vsubq_f32(vld1q_f32(s + n * ROWS), base));
        vst1q_f32(s + n * ROWS, p);
        sum = vaddq_f32(sum, p);
    }
    vst1q_f32(m, now);
    vst1q_f32(l, vaddq_f32(vmulq_f32(vld1q_f32(l), shrink), sum));
    vst1q_f32(max, larger_neon(top, vld1q_f32(max)));
    vst1q_f32(factor, shrink);
    return vminvq_u32(vceqq_f32(shrink, one)) == 0;
}

bool mla_softmax_f32_neon(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                          const float *mask, mla_row_state *state, float *factor)
{
    bool rescale = false;
    for (int r = 0; r < ROWS; r += LANES) {
        bool any = softmax_quarter(s + r, n_key, scale + r, begin ? begin + r : NULL, end ? end + r : NULL,
                                   mask ? mask + r : NULL, state->m + r, state->l + r, state->max + r, factor + r);
        rescale = rescale || any;
    }
    return rescale;
}

void mla_peak_f32_neon(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                       const float *mask, float *top)
{
    for (int r = 0; r < ROWS; r += LANES) {
        float32x4_t t = scale_and_hide(s + r, n_key, scale + r, begin ? begin + r : NULL, end ? end + r : NULL,
                                       mask ? mask + r : NULL);
        vst1q_f32(top + r, larger_neon(t, vld1q_f32(top + r)));
    }
}
