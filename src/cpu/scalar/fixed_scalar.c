/*
 * fixed_scalar.c - the fixed-point kernels in plain C.
 */
#include "fixed_scalar.h"

#include <math.h>

enum { COL_PANEL = MLA_SCALAR_COL_PANEL };

static void mla_fixed_norm_scalar(const void *x, const float *unfold, int64_t n_col, float *y, float *square,
                                  float *largest)
{
    const float *from = x;
    for (int64_t c = 0; c < n_col; c++) {
        y[c] = unfold ? from[c] * unfold[c] : from[c];
        *square += y[c] * y[c];
        *largest = fabsf(y[c]) > *largest ? fabsf(y[c]) : *largest;
    }
}

static inline int16_t integer(float x)
{
    return x >= -32768 && x <= 32767 ? (int16_t)lrintf(x) : 0; /* only NaN is not: what it makes is not used */
}

static void mla_fixed_keys_scalar(const mla_fixed_key *even, const mla_fixed_key *odd, int64_t n_col, int64_t n_value,
                                  int16_t *v, int64_t panel_stride)
{
    for (int64_t c = 0; c < n_col; c++) {
        int16_t pair[2] = {integer(even->y[c] * even->factor), odd ? integer(odd->y[c] * odd->factor) : 0};
        even->k[c] = pair[0];
        if (odd) {
            odd->k[c] = pair[1];
        }
        if (c < n_value) {
            int16_t *to = v + c / COL_PANEL * panel_stride + c % COL_PANEL * 2;
            to[0] = pair[0];
            to[1] = pair[1];
        }
    }
}

static void mla_fixed_query_scalar(const float *q, const float *fold, int64_t n_col, int16_t *to, float *unit)
{
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        float square = 0, largest = 0, factor;
        for (int64_t c = 0; c < n_col; c++) {
            float y = q[c * MLA_ROW_PANEL + r] * fold[c], size = fabsf(y);
            square += y * y;
            largest = size > largest ? size : largest;
        }
        bool sound = mla_fixed_factor(square, largest, &factor);
        for (int64_t c = 0; c < (n_col + 1) / 2 * 2; c++) {
            float y = c < n_col && sound ? q[c * MLA_ROW_PANEL + r] * fold[c] * factor : 0;
            to[c / 2 * (2 * MLA_ROW_PANEL) + r * 2 + c % 2] = integer(y);
        }
        unit[r] = !sound ? NAN : factor > 0 ? 1 / factor : 0;
    }
}

static void mla_fixed_qk_scalar(const int16_t *q, const int16_t *k, int64_t k_stride, int64_t n_pair, int64_t n_key,
                                const float *unit, float *s, mla_prefetch *ahead)
{
    for (int64_t n = 0; n < n_key; n++, k += k_stride) {
        int32_t sum[MLA_ROW_PANEL] = {0};
        for (int64_t c = 0; c < n_pair; c++) {
            for (int r = 0; r < MLA_ROW_PANEL; r++) {
                const int16_t *x = q + (c * MLA_ROW_PANEL + r) * 2;
                sum[r] += x[0] * k[2 * c] + x[1] * k[2 * c + 1];
            }
        }
        for (int r = 0; r < MLA_ROW_PANEL; r++) {
            s[n * MLA_ROW_PANEL + r] = (float)sum[r] * unit[n];
        }
        mla_prefetch_step(ahead);
    }
}

static void mla_fixed_p_scalar(const float *p, int64_t n_key, const float *unit, const float *largest, int16_t *to,
                               float *weight)
{
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        float top = 0, sum = 0;
        for (int64_t n = 0; n < n_key; n++) {
            float x = p[n * MLA_ROW_PANEL + r];
            top = x * unit[n] > top ? x * unit[n] : top;
            sum += x * largest[n];
        }
        float factor = mla_fixed_p_factor(top, sum);
        for (int64_t n = 0; n < (n_key + 1) / 2 * 2; n++) {
            float x = n < n_key ? p[n * MLA_ROW_PANEL + r] * unit[n] * factor : 0;
            to[n / 2 * (2 * MLA_ROW_PANEL) + r * 2 + n % 2] = integer(x);
        }
        weight[r] = factor > 0 ? 1 / factor : 0;
    }
}

static void mla_fixed_pv_scalar(const int16_t *p, const int16_t *v, int64_t n_pair, int32_t n_row, int32_t n_col,
                                const float *weight, const float *fold, float *o, mla_prefetch *ahead)
{
    for (int32_t r = 0; r < n_row; r++) {
        int32_t sum[COL_PANEL] = {0};
        for (int64_t n = 0; n < n_pair; n++) {
            const int16_t *x = p + (n * MLA_ROW_PANEL + r) * 2, *y = v + n * COL_PANEL * 2;
            for (int32_t c = 0; c < n_col; c++) {
                sum[c] += x[0] * y[2 * c] + x[1] * y[2 * c + 1];
            }
        }
        for (int32_t c = 0; c < n_col; c++) {
            o[r * COL_PANEL + c] += (float)sum[c] * fold[c] * weight[r];
        }
        mla_prefetch_step(ahead);
    }
}

const mla_fixed_kernels mla_fixed_kernels_scalar = {
    .norm = {mla_fixed_norm_scalar},
    .keys = mla_fixed_keys_scalar,
    .query = mla_fixed_query_scalar,
    .qk = mla_fixed_qk_scalar,
    .p = mla_fixed_p_scalar,
    .pv = mla_fixed_pv_scalar,
};
