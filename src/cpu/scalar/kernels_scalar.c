/*
 * kernels_scalar.c - every kernel in plain C: the twin that the others are measured against, and what runs where
 * nothing else can.
 */
#include <float.h>
#include <math.h>

#include "convert.h"
#include "fixed_scalar.h"
#include "hif8.h"

enum { COL_PANEL = MLA_SCALAR_COL_PANEL };

static inline float *block_element(float *block, int64_t panel_stride, int64_t key, int64_t col)
{
    return block + col / COL_PANEL * panel_stride + key * COL_PANEL + col % COL_PANEL;
}

static void mla_load_f32_scalar(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                                int64_t panel_stride)
{
    for (int64_t n = 0; n < n_key; n++) {
        for (int64_t c = 0; c < n_col; c++) {
            float value;
            memcpy(&value, (const char *)row[n] + c * 4, 4);
            *block_element(block, panel_stride, n, col + c) = value;
        }
    }
}

static void mla_load_f16_scalar(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                                int64_t panel_stride)
{
    for (int64_t n = 0; n < n_key; n++) {
        for (int64_t c = 0; c < n_col; c++) {
            *block_element(block, panel_stride, n, col + c) = mla_f32_from_f16(((const uint16_t *)row[n])[c]);
        }
    }
}

static void mla_load_bf16_scalar(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                                 int64_t panel_stride)
{
    for (int64_t n = 0; n < n_key; n++) {
        for (int64_t c = 0; c < n_col; c++) {
            *block_element(block, panel_stride, n, col + c) = mla_f32_from_bf16(((const uint16_t *)row[n])[c]);
        }
    }
}

static void mla_load_hif8_scalar(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                                 int64_t panel_stride)
{
    for (int64_t n = 0; n < n_key; n++) {
        for (int64_t c = 0; c < n_col; c++) {
            *block_element(block, panel_stride, n, col + c) = mla_f32_from_hif8(((const uint8_t *)row[n])[c]);
        }
    }
}

static void mla_load_i8_scalar(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                               int64_t panel_stride)
{
    for (int64_t n = 0; n < n_key; n++) {
        for (int64_t c = 0; c < n_col; c++) {
            *block_element(block, panel_stride, n, col + c) = (float)((const int8_t *)row[n])[c];
        }
    }
}

static void mla_pack_f32_scalar(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    for (int64_t c = 0; c < n_col; c++) {
        for (int32_t r = 0; r < MLA_ROW_PANEL; r++) {
            q[c * MLA_ROW_PANEL + r] = r < n_row ? ((const float *)row[r])[c] * factor[r] : 0;
        }
    }
}

static void mla_pack_f16_scalar(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    for (int64_t c = 0; c < n_col; c++) {
        for (int32_t r = 0; r < MLA_ROW_PANEL; r++) {
            q[c * MLA_ROW_PANEL + r] = r < n_row ? mla_f32_from_f16(((const uint16_t *)row[r])[c]) * factor[r] : 0;
        }
    }
}

static void mla_pack_bf16_scalar(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    for (int64_t c = 0; c < n_col; c++) {
        for (int32_t r = 0; r < MLA_ROW_PANEL; r++) {
            q[c * MLA_ROW_PANEL + r] = r < n_row ? mla_f32_from_bf16(((const uint16_t *)row[r])[c]) * factor[r] : 0;
        }
    }
}

static void mla_pack_hif8_scalar(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    for (int64_t c = 0; c < n_col; c++) {
        for (int32_t r = 0; r < MLA_ROW_PANEL; r++) {
            q[c * MLA_ROW_PANEL + r] = r < n_row ? mla_f32_from_hif8(((const uint8_t *)row[r])[c]) * factor[r] : 0;
        }
    }
}

static void mla_pack_i8_scalar(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    for (int64_t c = 0; c < n_col; c++) {
        for (int32_t r = 0; r < MLA_ROW_PANEL; r++) {
            q[c * MLA_ROW_PANEL + r] = r < n_row ? (float)((const int8_t *)row[r])[c] * factor[r] : 0;
        }
    }
}

static void mla_qk_f32_scalar(const float *q, const float *block, int64_t panel_stride, int64_t n_col, int64_t n_key,
                              int32_t n_row, bool accumulate, float *s, mla_prefetch *ahead)
{
    (void)n_row; /* a whole panel costs no more here */
    for (int64_t n = 0; n < n_key; n++) {
        float sum[MLA_ROW_PANEL] = {0};
        for (int64_t c = 0; c < n_col; c++) {
            float k = block[c / COL_PANEL * panel_stride + n * COL_PANEL + c % COL_PANEL];
            for (int r = 0; r < MLA_ROW_PANEL; r++) {
                sum[r] += q[c * MLA_ROW_PANEL + r] * k;
            }
        }
        for (int r = 0; r < MLA_ROW_PANEL; r++) {
            float *to = s + n * MLA_ROW_PANEL + r;
            *to = accumulate ? *to + sum[r] : sum[r];
        }
        mla_prefetch_step(ahead);
    }
}

#define DEFINE_LOAD_QK(type)                                                                                      \
    static void mla_load_qk_##type##_scalar(const float *q, const void *const *row, int64_t n_key, int64_t n_col, \
                                            int64_t col, int32_t n_row, bool accumulate, float *block,            \
                                            int64_t panel_stride, float *s)                                       \
    {                                                                                                             \
        mla_prefetch nothing = {0};                                                                               \
        mla_load_##type##_scalar(row, n_key, n_col, col, block, panel_stride);                                    \
        mla_qk_f32_scalar(q, block_element(block, panel_stride, 0, col), panel_stride, n_col, n_key, n_row,       \
                          accumulate, s, &nothing);                                                               \
    }
DEFINE_LOAD_QK(f32)
DEFINE_LOAD_QK(f16)
DEFINE_LOAD_QK(bf16)

static void mla_qk_rows_bf16_scalar(const float *q, const void *const *row, int64_t col, int64_t n_col, int64_t n_key,
                                    bool accumulate, float *s, mla_prefetch *ahead)
{
    for (int64_t n = 0; n < n_key; n++) {
        float sum[MLA_ROW_PANEL] = {0};
        for (int64_t c = 0; c < n_col; c++) {
            float k = mla_f32_from_bf16(((const uint16_t *)row[n])[col + c]);
            for (int r = 0; r < MLA_ROW_PANEL; r++) {
                sum[r] += q[c * MLA_ROW_PANEL + r] * k;
            }
        }
        for (int r = 0; r < MLA_ROW_PANEL; r++) {
            float *to = s + n * MLA_ROW_PANEL + r;
            *to = accumulate ? *to + sum[r] : sum[r];
        }
        mla_prefetch_step(ahead);
    }
}

/* A score beyond fp32 counts as its largest number, so that no difference of infinities arises. NaN stays NaN. */
static inline float below_infinity(float x)
{
    return x > FLT_MAX ? FLT_MAX : x;
}

/* Scores of row r in place, -inf where they are hidden; returns the largest. */
static float scale_and_hide(float *s, int r, int64_t n_key, const float *scale, const int32_t *begin,
                            const int32_t *end, const float *mask)
{
    int64_t from = begin ? begin[r] : 0, to = end ? end[r] : n_key;
    float top = -INFINITY;
    for (int64_t n = 0; n < n_key; n++) {
        float *t = s + n * MLA_ROW_PANEL + r, addend = mask ? mask[n * MLA_ROW_PANEL + r] : 0.0f;
        bool seen = n >= from && n < to && addend != -INFINITY;
        *t = seen ? below_infinity(*t * scale[r] + addend) : -INFINITY;
        top = *t > top ? *t : top;
    }
    return top;
}

static bool mla_softmax_f32_scalar(float *s, int64_t n_key, const float *scale, const int32_t *begin,
                                   const int32_t *end, const float *mask, mla_row_state *state, float *factor)
{
    bool rescale = false;
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        float top = scale_and_hide(s, r, n_key, scale, begin, end, mask);
        float m = state->m[r];
        factor[r] = 1;
        if (top > m + MLA_RESCALE_SLACK || m == -INFINITY) {
            factor[r] = m == -INFINITY ? 1.0f : exp2f(m - top);
            m = top;
        }
        rescale = rescale || factor[r] != 1;
        float sum = 0, base = m == -INFINITY ? 0.0f : m;
        for (int64_t n = 0; n < n_key; n++) {
            float *t = s + n * MLA_ROW_PANEL + r;
            *t = exp2f(*t - base);
            sum += *t;
        }
        state->m[r] = m;
        state->l[r] = state->l[r] * factor[r] + sum;
        state->max[r] = top > state->max[r] ? top : state->max[r];
    }
    return rescale;
}

static void mla_peak_f32_scalar(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                                const float *mask, float *top)
{
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        float t = scale_and_hide(s, r, n_key, scale, begin, end, mask);
        top[r] = t > top[r] ? t : top[r];
    }
}

static inline float round_f16(float p, float unit)
{
    (void)unit;
    return mla_f32_from_f16(mla_f16_from_f32(p));
}

static inline float round_bf16(float p, float unit)
{
    (void)unit;
    return mla_f32_from_bf16(mla_bf16_from_f32(p));
}

static inline float round_hif8(float p, float unit)
{
    (void)unit;
    return mla_f32_rounded_to_hif8(p * 16) * 0.0625f;
}

static inline float round_i8(float p, float unit)
{
    return rintf(mla_f32_from_f16(mla_f16_from_f32(p / unit)));
}

static inline void round_panel(float *s, int64_t n_key, const float *m, const float *unit, float *sum,
                               float (*rounded)(float p, float unit))
{
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        float base = m[r] == -INFINITY ? 0.0f : m[r];
        for (int64_t n = 0; n < n_key; n++) {
            float *t = s + n * MLA_ROW_PANEL + r, p = exp2f(*t - base);
            sum[r] += p;
            *t = rounded(p, unit ? unit[r] : 1);
        }
    }
}

static void mla_round_f16_scalar(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    round_panel(s, n_key, m, unit, sum, round_f16);
}

static void mla_round_bf16_scalar(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    round_panel(s, n_key, m, unit, sum, round_bf16);
}

static void mla_round_hif8_scalar(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    round_panel(s, n_key, m, unit, sum, round_hif8);
}

static void mla_round_i8_scalar(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    round_panel(s, n_key, m, unit, sum, round_i8);
}

static void mla_pv_f32_scalar(const float *p, const float *v, int64_t n_key, int32_t n_row, int32_t n_col, float *o,
                              mla_prefetch *ahead)
{
    (void)n_col; /* columns past it are scratch */
    for (int32_t r = 0; r < n_row; r++) {
        float sum[COL_PANEL] = {0};
        for (int64_t n = 0; n < n_key; n++) {
            float weight = p[n * MLA_ROW_PANEL + r];
            for (int c = 0; c < COL_PANEL; c++) {
                sum[c] += weight * v[n * COL_PANEL + c];
            }
        }
        for (int c = 0; c < COL_PANEL; c++) {
            o[r * COL_PANEL + c] += sum[c];
        }
        mla_prefetch_step(ahead);
    }
}

static void mla_pv_rows_bf16_scalar(const float *p, const void *const *row, int64_t n_key, int32_t n_row, int64_t n_col,
                                    float *o, mla_prefetch *ahead)
{
    for (int32_t r = 0; r < n_row; r++) {
        for (int64_t c = 0; c < n_col; c++) {
            float sum = 0;
            for (int64_t n = 0; n < n_key; n++) {
                sum += p[n * MLA_ROW_PANEL + r] * mla_f32_from_bf16(((const uint16_t *)row[n])[c]);
            }
            o[(c / COL_PANEL * MLA_ROW_PANEL + r) * COL_PANEL + c % COL_PANEL] += sum;
        }
        mla_prefetch_step(ahead);
    }
}

static void mla_merge_f32_scalar(float *o, const float *x, const float *a, const float *b, int64_t n_panel,
                                 int32_t n_row)
{
    for (int64_t i = 0; i < n_panel * MLA_ROW_PANEL; i++) {
        int64_t r = i % MLA_ROW_PANEL;
        if (r >= n_row) {
            continue;
        }
        for (int64_t c = i * COL_PANEL; c < (i + 1) * COL_PANEL; c++) {
            o[c] = x ? o[c] * a[r] + x[c] * b[r] : o[c] * a[r];
        }
    }
}

static inline float result_element(const float *o, int64_t c, float factor)
{
    return o[c / COL_PANEL * MLA_ROW_PANEL * COL_PANEL + c % COL_PANEL] * factor;
}

static void mla_store_f32_scalar(const float *o, int64_t d_v, float factor, void *dst)
{
    for (int64_t c = 0; c < d_v; c++) {
        ((float *)dst)[c] = result_element(o, c, factor);
    }
}

static void mla_store_f16_scalar(const float *o, int64_t d_v, float factor, void *dst)
{
    for (int64_t c = 0; c < d_v; c++) {
        ((uint16_t *)dst)[c] = mla_f16_from_f32(result_element(o, c, factor));
    }
}

static void mla_store_bf16_scalar(const float *o, int64_t d_v, float factor, void *dst)
{
    for (int64_t c = 0; c < d_v; c++) {
        ((uint16_t *)dst)[c] = mla_bf16_from_f32(result_element(o, c, factor));
    }
}

static void mla_encode_hif8_scalar(const float *x, int64_t n, bool saturate, uint8_t *code)
{
    for (int64_t i = 0; i < n; i++) {
        code[i] = mla_hif8_from_f32(x[i], saturate);
    }
}

static void mla_decode_hif8_scalar(const uint8_t *code, int64_t n, float *x)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = mla_f32_from_hif8(code[i]);
    }
}

const mla_cpu_kernels mla_kernels_scalar = {
    .isa = "scalar",
    .col_panel = COL_PANEL,
    .qk_columns = 256,
    .load = {mla_load_f32_scalar, mla_load_f16_scalar, mla_load_bf16_scalar, mla_load_hif8_scalar, mla_load_i8_scalar},
    .pack = {mla_pack_f32_scalar, mla_pack_f16_scalar, mla_pack_bf16_scalar, mla_pack_hif8_scalar, mla_pack_i8_scalar},
    .qk = mla_qk_f32_scalar,
    .load_qk = {mla_load_qk_f32_scalar, mla_load_qk_f16_scalar, mla_load_qk_bf16_scalar},
    .softmax = mla_softmax_f32_scalar,
    .peak = mla_peak_f32_scalar,
    .round = {NULL, mla_round_f16_scalar, mla_round_bf16_scalar, mla_round_hif8_scalar, mla_round_i8_scalar},
    .pv = mla_pv_f32_scalar,
    .qk_rows = {[MLA_FORMAT_BF16] = mla_qk_rows_bf16_scalar},
    .pv_rows = {[MLA_FORMAT_BF16] = mla_pv_rows_bf16_scalar},
    .merge = mla_merge_f32_scalar,
    .store = {mla_store_f32_scalar, mla_store_f16_scalar, mla_store_bf16_scalar},
    .hif8_encode = mla_encode_hif8_scalar,
    .hif8_decode = mla_decode_hif8_scalar,
    .fixed = &mla_fixed_kernels_scalar,
};
