/*
 * hif8.c - the public functions of HiFloat8.
 */
#include <float.h>
#include <math.h>

#include "kernels.h"
#include "mla/mla_formats.h"
#include "scalar/hif8.h"
#include "strided.h"

float mla_hif8_decode(uint8_t code)
{
    return mla_f32_from_hif8(code);
}

uint8_t mla_hif8_encode(float x, mla_hif8_mode mode)
{
    return mla_hif8_from_f32(x, mode == MLA_HIF8_SATURATE);
}

static mla_status check_mode(mla_hif8_mode mode)
{
    if (mode != MLA_HIF8_ROUND && mode != MLA_HIF8_SATURATE) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "mode = %d is not an mla_hif8_mode", (int)mode);
    }
    return MLA_STATUS_OK;
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

static mla_status check_arrays(const float *x, const uint8_t *code, int64_t n, mla_hif8_mode mode)
{
    MLA_TRY(check_mode(mode));
    if (n < 0 || n > INT64_MAX / (int64_t)sizeof *x) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "n = %lld must be between 0 and 2^61 - 1", (long long)n);
    }
    if (n == 0) {
        return MLA_STATUS_OK;
    }
    if (!x || !code) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "%s is NULL but n = %lld", x ? "code" : "x", (long long)n);
    }
    uintptr_t x_at = (uintptr_t)x, code_at = (uintptr_t)code;
    if (code_at < x_at + (uintptr_t)n * sizeof *x && x_at < code_at + (uintptr_t)n) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "code = %p overlaps x = %p", (const void *)code, (const void *)x);
    }
    return MLA_STATUS_OK;
}

static void decode_run(const mla_cpu_kernels *kernels, const uint8_t *code, int64_t n, mla_hif8_mode mode, float *x)
{
    kernels->hif8_decode(code, n, x);
    for (int64_t i = 0; mode == MLA_HIF8_SATURATE && i < n; i++) {
        x[i] = isnan(x[i]) ? 0 : isinf(x[i]) ? copysignf(0x1p15f, x[i]) : x[i];
    }
}

mla_status mla_hif8_encode_array(const float *x, int64_t n, mla_hif8_mode mode, uint8_t *code)
{
    MLA_TRY(check_arrays(x, code, n, mode));
    const mla_cpu_kernels *kernels = mla_cpu_kernels_selected();
    if (!kernels) {
        return MLA_STATUS_BAD_VALUE;
    }
    kernels->hif8_encode(x, n, mode == MLA_HIF8_SATURATE, code);
    return MLA_STATUS_OK;
}

mla_status mla_hif8_decode_array(const uint8_t *code, int64_t n, mla_hif8_mode mode, float *x)
{
    MLA_TRY(check_arrays(x, code, n, mode));
    const mla_cpu_kernels *kernels = mla_cpu_kernels_selected();
    if (!kernels) {
        return MLA_STATUS_BAD_VALUE;
    }
    decode_run(kernels, code, n, mode, x);
    return MLA_STATUS_OK;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

#define CODE_DTYPES (MLA_DTYPE_BIT(MLA_DTYPE_HIF8) | MLA_DTYPE_BIT(MLA_DTYPE_U8))

/* fp32 bits of magnitudes are ordered as the magnitudes are; those that are not finite count as 0. */
static void note_largest(const float *x, int64_t n, int32_t largest[MLA_RUN_STEP])
{
    for (int64_t i = 0; i < n; i += MLA_RUN_STEP) {
        for (int64_t k = 0; k < MLA_RUN_STEP; k++) {
            int32_t size = (int32_t)(mla_bits_from_f32(x[i + k]) & 0x7fffffff);
            size = size < MLA_HIF8_BITS_INFINITY ? size : 0;
            largest[k] = size > largest[k] ? size : largest[k];
        }
    }
}

mla_status mla_hif8_find_descale(const mla_tensor *x, float *descale)
{
    mla_field field = {x, "x", -1};
    MLA_TRY(mla_field_check_operand(&field, MLA_DTYPES_FLOAT));
    if (!descale) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "descale is NULL");
    }
    float run[MLA_RUN] = {0};
    int32_t largest[MLA_RUN_STEP] = {0};
    int64_t n_run = mla_run_count(x), width = x->dim[x->ndim - 1];
    for (int64_t r = 0; r < n_run; r++) {
        int64_t begin = mla_run_begin(x, r);
        for (int64_t c = 0; c < width; c += MLA_RUN) {
            int64_t n = width - c < MLA_RUN ? width - c : MLA_RUN;
            mla_run_load(x, begin + c * x->stride[x->ndim - 1], n, run);
            note_largest(run, n, largest); /* behind a run lies an earlier one, or 0 */
        }
    }
    int32_t bits = 0;
    for (int64_t k = 0; k < MLA_RUN_STEP; k++) {
        bits = largest[k] > bits ? largest[k] : bits;
    }
    /* the largest is m * 2^exponent with 1/2 <= m < 1; 15.5 is 31/32 * 2^4 */
    int exponent;
    float m = frexpf(mla_f32_from_bits((uint32_t)bits), &exponent);
    exponent = exponent - 4 + (m >= 31.0f / 32);
    *descale = bits == 0 ? 1 : ldexpf(1, exponent < -126 ? -126 : exponent);
    return MLA_STATUS_OK;
}

static mla_status check_pair(const mla_tensor *x, float descale, mla_hif8_mode mode, const mla_tensor *code,
                             bool to_code)
{
    mla_field x_field = {x, "x", -1}, code_field = {code, "code", -1};
    MLA_TRY(mla_field_check_operand(&x_field, MLA_DTYPES_FLOAT));
    MLA_TRY(mla_field_check_operand(&code_field, CODE_DTYPES));
    MLA_TRY(check_mode(mode));
    if (!(descale > 0 && descale <= FLT_MAX)) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "descale = %g must be finite and positive", (double)descale);
    }
    const mla_field *in = to_code ? &x_field : &code_field, *out = to_code ? &code_field : &x_field;
    MLA_TRY(mla_field_check_dims_of(out, "x and code have the same dims", in->tensor->ndim, in));
    MLA_TRY(mla_field_check_output(out));
    return mla_field_check_apart(out, in);
}

/* Where one run of x and its codes lie, in elements. */
typedef struct place {
    int64_t x, code, n;
} place;

static place run_place(const mla_tensor *x, const mla_tensor *code, int64_t run, int64_t column)
{
    int32_t last = x->ndim - 1;
    int64_t left = x->dim[last] - column;
    return (place){.x = mla_run_begin(x, run) + column * x->stride[last],
                   .code = mla_run_begin(code, run) + column * code->stride[last],
                   .n = left < MLA_RUN ? left : MLA_RUN};
}

static void divide(float *x, int64_t n, float descale)
{
    for (int64_t i = 0; i < n; i += MLA_RUN_STEP) {
        for (int64_t k = 0; k < MLA_RUN_STEP; k++) {
            x[i + k] /= descale;
        }
    }
}

/* Exact: 4 bits times 24. */
static void multiply(const float *x, int64_t n, float descale, double *product)
{
    for (int64_t i = 0; i < n; i += MLA_RUN_STEP) {
        for (int64_t k = 0; k < MLA_RUN_STEP; k++) {
            product[i + k] = (double)x[i + k] * (double)descale;
        }
    }
}

mla_status mla_hif8_quantize(const mla_tensor *x, float descale, mla_hif8_mode mode, const mla_tensor *code)
{
    MLA_TRY(check_pair(x, descale, mode, code, true));
    const mla_cpu_kernels *kernels = mla_cpu_kernels_selected();
    if (!kernels) {
        return MLA_STATUS_BAD_VALUE;
    }
    float run[MLA_RUN] = {0};
    uint8_t run_code[MLA_RUN];
    int64_t n_run = mla_run_count(x), width = x->dim[x->ndim - 1], stride = code->stride[code->ndim - 1];
    for (int64_t r = 0; r < n_run; r++) {
        for (int64_t c = 0; c < width; c += MLA_RUN) {
            place at = run_place(x, code, r, c);
            mla_run_load(x, at.x, at.n, run);
            divide(run, at.n, descale);
            kernels->hif8_encode(run, at.n, mode == MLA_HIF8_SATURATE, run_code);
            for (int64_t i = 0; i < at.n; i++) {
                ((uint8_t *)code->data)[at.code + i * stride] = run_code[i];
            }
        }
    }
    return MLA_STATUS_OK;
}

mla_status mla_hif8_dequantize(const mla_tensor *code, float descale, mla_hif8_mode mode, const mla_tensor *x)
{
    MLA_TRY(check_pair(x, descale, mode, code, false));
    const mla_cpu_kernels *kernels = mla_cpu_kernels_selected();
    if (!kernels) {
        return MLA_STATUS_BAD_VALUE;
    }
    float run[MLA_RUN] = {0};
    double product[MLA_RUN];
    uint8_t run_code[MLA_RUN];
    int64_t n_run = mla_run_count(x), width = x->dim[x->ndim - 1], stride = code->stride[code->ndim - 1];
    for (int64_t r = 0; r < n_run; r++) {
        for (int64_t c = 0; c < width; c += MLA_RUN) {
            place at = run_place(x, code, r, c);
            for (int64_t i = 0; i < at.n; i++) {
                run_code[i] = ((const uint8_t *)code->data)[at.code + i * stride];
            }
            decode_run(kernels, run_code, at.n, mode, run);
            multiply(run, at.n, descale, product);
            mla_run_store(x, at.x, at.n, product);
        }
    }
    return MLA_STATUS_OK;
}
