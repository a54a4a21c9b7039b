/*
 * strided.c - runs of numbers in and out of strided tensors.
 */
#include "strided.h"

#include <math.h>
#include <string.h>

#include "scalar/convert.h"

int64_t mla_run_count(const mla_tensor *t)
{
    int64_t count = 1;
    for (int32_t i = 0; i < t->ndim - 1; i++) {
        count *= t->dim[i];
    }
    return count;
}

int64_t mla_run_begin(const mla_tensor *t, int64_t index)
{
    int64_t at = 0;
    for (int32_t i = t->ndim - 2; i >= 0; i--) {
        at += index % t->dim[i] * t->stride[i];
        index /= t->dim[i];
    }
    return at;
}

void mla_run_load(const mla_tensor *t, int64_t at, int64_t n, float *x)
{
    int64_t stride = t->stride[t->ndim - 1];
    if (t->dtype == MLA_DTYPE_F32 && stride == 1) {
        memcpy(x, (const float *)t->data + at, (size_t)n * sizeof *x);
    } else if (t->dtype == MLA_DTYPE_F32) {
        for (int64_t i = 0; i < n; i++) {
            x[i] = ((const float *)t->data)[at + i * stride];
        }
    } else if (t->dtype == MLA_DTYPE_F16) {
        for (int64_t i = 0; i < n; i++) {
            x[i] = mla_f32_from_f16(((const uint16_t *)t->data)[at + i * stride]);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            x[i] = mla_f32_from_bf16(((const uint16_t *)t->data)[at + i * stride]);
        }
    }
}

/* fp32, rounded so that rounding it again, to 16 bits, is rounding x once: towards zero, the last bit set if anything
 * was lost. */
static float odd_f32(double x)
{
    float nearest = (float)x;
    uint32_t bits = mla_bits_from_f32(nearest);
    if (isnan(x) || (double)nearest == x) {
        return nearest;
    }
    return mla_f32_from_bits((fabs((double)nearest) > fabs(x) ? bits - 1 : bits) | 1u);
}

void mla_run_store(const mla_tensor *t, int64_t at, int64_t n, const double *x)
{
    int64_t stride = t->stride[t->ndim - 1];
    if (t->dtype == MLA_DTYPE_F32) {
        for (int64_t i = 0; i < n; i++) {
            ((float *)t->data)[at + i * stride] = (float)x[i];
        }
    } else if (t->dtype == MLA_DTYPE_F16) {
        for (int64_t i = 0; i < n; i++) {
            ((uint16_t *)t->data)[at + i * stride] = mla_f16_from_f32(odd_f32(x[i]));
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            ((uint16_t *)t->data)[at + i * stride] = mla_bf16_from_f32(odd_f32(x[i]));
        }
    }
}
