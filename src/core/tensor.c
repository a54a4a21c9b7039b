/*
 * tensor.c - tensor views and the rules that hold for each of them alone.
 */
#include "tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "shape.h"

/* ---- public ------------------------------------------------------------------------------------------------------ */

mla_tensor mla_tensor_make(void *data, mla_dtype dtype, int32_t ndim, const int64_t *dim)
{
    mla_tensor t = {.data = data, .dtype = dtype, .ndim = ndim};
    if (ndim < 0 || ndim > MLA_MAX_NDIM || (ndim > 0 && dim == NULL)) {
        t.ndim = -1;
        return t;
    }
    int64_t stride = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        t.dim[i] = dim[i];
        t.stride[i] = stride;
        if (dim[i] > 1 && __builtin_mul_overflow(stride, dim[i], &stride)) {
            stride = INT64_MAX; /* the check refuses the size */
        }
    }
    return t;
}

size_t mla_dtype_size(mla_dtype dtype)
{
    switch (dtype) {
    case MLA_DTYPE_NONE: return 0;
    case MLA_DTYPE_F32:
    case MLA_DTYPE_I32: return 4;
    case MLA_DTYPE_F16:
    case MLA_DTYPE_BF16: return 2;
    case MLA_DTYPE_I64: return 8;
    case MLA_DTYPE_I8:
    case MLA_DTYPE_U8:
    case MLA_DTYPE_HIF8: return 1;
    }
    return 0;
}

const char *mla_dtype_name(mla_dtype dtype)
{
    switch (dtype) {
    case MLA_DTYPE_NONE: return "none";
    case MLA_DTYPE_F32: return "f32";
    case MLA_DTYPE_F16: return "f16";
    case MLA_DTYPE_BF16: return "bf16";
    case MLA_DTYPE_I32: return "i32";
    case MLA_DTYPE_I64: return "i64";
    case MLA_DTYPE_I8: return "i8";
    case MLA_DTYPE_U8: return "u8";
    case MLA_DTYPE_HIF8: return "hif8";
    }
    return "unknown";
}

/* ---- labels ------------------------------------------------------------------------------------------------------ */

mla_label mla_field_label(const mla_field *field)
{
    mla_label label;
    if (field->tensor != NULL && field->tensor->name != NULL) {
        snprintf(label.text, sizeof label.text, "%s", field->tensor->name);
    } else if (field->segment >= 0) {
        snprintf(label.text, sizeof label.text, "segment[%" PRId32 "].%s", field->segment, field->path);
    } else {
        snprintf(label.text, sizeof label.text, "%s", field->path);
    }
    return label;
}

/* "q.dim[0] = 3", "q_begin.dim[0] - 1 = 3", "d_v = 512" */
static mla_label extent_label(const mla_extent *extent)
{
    mla_label label, of = mla_field_label(&extent->of);
    if (extent->of.tensor == NULL) {
        snprintf(label.text, sizeof label.text, "%.30s = %" PRId64, of.text, extent->value);
    } else if (extent->less == 0) {
        snprintf(label.text, sizeof label.text, "%.30s.dim[%" PRId32 "] = %" PRId64, of.text, extent->axis,
                 extent->value);
    } else {
        snprintf(label.text, sizeof label.text, "%.24s.dim[%" PRId32 "] - %" PRId32 " = %" PRId64, of.text,
                 extent->axis, extent->less, extent->value);
    }
    return label;
}

/* ---- one tensor alone -------------------------------------------------------------------------------------------- */

bool mla_tensor_empty(const mla_tensor *tensor)
{
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->dim[i] == 0) {
            return true;
        }
    }
    return false;
}

/* Elements, and how far the lowest and the highest one lie from element 0, in bytes. False when any of it, or the
 * distance between the two, leaves int64. */
static bool tensor_extent(const mla_tensor *t, int64_t *count, int64_t *low, int64_t *high)
{
    int64_t size = (int64_t)mla_dtype_size(t->dtype);
    *count = 1;
    *low = 0;
    *high = size - 1;
    if (mla_tensor_empty(t)) {
        *count = 0;
        return true;
    }
    for (int32_t i = 0; i < t->ndim; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(*count, t->dim[i], count) ||
            __builtin_mul_overflow(t->dim[i] - 1, t->stride[i], &reach) ||
            __builtin_mul_overflow(reach, size, &reach)) {
            return false;
        }
        int64_t *end = reach < 0 ? low : high;
        if (__builtin_add_overflow(*end, reach, end)) {
            return false;
        }
    }
    int64_t distance;
    return !__builtin_sub_overflow(*high, *low, &distance) && distance < INT64_MAX &&
           !__builtin_mul_overflow(*count, size, &distance);
}

mla_status mla_field_check(const mla_field *field)
{
    const mla_tensor *t = field->tensor;
    if (t->ndim < 1 || t->ndim > MLA_MAX_NDIM) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.ndim = %" PRId32 " must be between 1 and %d",
                        mla_field_label(field).text, t->ndim, MLA_MAX_NDIM);
    }
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->dim[i] < 0) {
            return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[%" PRId32 "] = %" PRId64 " is negative",
                            mla_field_label(field).text, i, t->dim[i]);
        }
    }
    size_t size = mla_dtype_size(t->dtype);
    if (size == 0) {
        return mla_fail(MLA_STATUS_BAD_DTYPE, "%s.dtype = %d is not a dtype", mla_field_label(field).text,
                        (int)t->dtype);
    }
    int64_t count, low, high;
    if (!tensor_extent(t, &count, &low, &high)) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s reaches over more bytes than 63 bits count",
                        mla_field_label(field).text);
    }
    int device = (int)t->device.type;
    if (device != MLA_DEVICE_CPU && device != MLA_DEVICE_CUDA) {
        return mla_fail(MLA_STATUS_BAD_DEVICE, "%s.device.type = %d is not a device type", mla_field_label(field).text,
                        device);
    }
    if (t->device.id < 0 || (device == MLA_DEVICE_CPU && t->device.id != 0)) {
        return mla_fail(MLA_STATUS_BAD_DEVICE, "%s.device.id = %" PRId32 " is not a device of type %d",
                        mla_field_label(field).text, t->device.id, device);
    }
    if (count == 0) {
        return MLA_STATUS_OK;
    }
    if (t->data == NULL) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "%s.data is NULL, but there are %" PRId64 " elements",
                        mla_field_label(field).text, count);
    }
    if ((uintptr_t)t->data % size != 0) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "%s.data = %p is not aligned to its %zu-byte elements",
                        mla_field_label(field).text, t->data, size);
    }
    return MLA_STATUS_OK;
}

/* In host memory. */
static mla_status check_host(const mla_field *field)
{
    const mla_device *device = &field->tensor->device;
    if (device->type != MLA_DEVICE_CPU) {
        return mla_fail(MLA_STATUS_BAD_DEVICE, "%s is on device %d:%" PRId32 ", but must be in host memory",
                        mla_field_label(field).text, (int)device->type, device->id);
    }
    return MLA_STATUS_OK;
}

mla_status mla_field_check_device(const mla_field *field, const mla_field *other)
{
    const mla_device *device = &field->tensor->device, *wanted = &other->tensor->device;
    if (device->type == wanted->type && device->id == wanted->id) {
        return MLA_STATUS_OK;
    }
    return mla_fail(MLA_STATUS_BAD_DEVICE, "%s is on device %d:%" PRId32 ", but %s is on device %d:%" PRId32,
                    mla_field_label(field).text, (int)device->type, device->id, mla_field_label(other).text,
                    (int)wanted->type, wanted->id);
}

mla_status mla_field_check_operand(const mla_field *field, unsigned dtypes)
{
    if (field->tensor == NULL) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "%s is NULL", field->path);
    }
    MLA_TRY(mla_field_check(field));
    MLA_TRY(check_host(field));
    return mla_field_check_dtype(field, dtypes);
}

mla_status mla_field_check_dtype(const mla_field *field, unsigned dtypes)
{
    if (dtypes & MLA_DTYPE_BIT(field->tensor->dtype)) {
        return MLA_STATUS_OK;
    }
    char allowed[64] = "";
    size_t used = 0;
    for (int d = MLA_DTYPE_F32; d <= MLA_DTYPE_HIF8; d++) {
        if (dtypes & MLA_DTYPE_BIT(d)) {
            bool last = dtypes >> (d + 1) == 0;
            used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%s%s",
                                     used == 0 ? ""
                                     : last    ? " or "
                                               : ", ",
                                     mla_dtype_name((mla_dtype)d));
        }
    }
    return mla_fail(MLA_STATUS_BAD_DTYPE, "%s.dtype = %s must be %s", mla_field_label(field).text,
                    mla_dtype_name(field->tensor->dtype), allowed);
}

mla_status mla_field_check_dims(const mla_field *field, const char *layout, int32_t ndim, const mla_extent *extent)
{
    const mla_tensor *t = field->tensor;
    if (t->ndim != ndim) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.ndim = %" PRId32 " must be %" PRId32 ": %s",
                        mla_field_label(field).text, t->ndim, ndim, layout);
    }
    for (int32_t i = 0; i < ndim; i++) {
        if (extent[i].value != MLA_ANY && t->dim[i] != extent[i].value) {
            return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[%" PRId32 "] = %" PRId64 " differs from %s: %s",
                            mla_field_label(field).text, i, t->dim[i], extent_label(&extent[i]).text, layout);
        }
    }
    return MLA_STATUS_OK;
}

mla_status mla_field_check_dims_of(const mla_field *field, const char *layout, int32_t ndim, const mla_field *other)
{
    mla_extent extent[MLA_MAX_NDIM];
    for (int32_t i = 0; i < ndim; i++) {
        extent[i] = mla_dim_extent(*other, i);
    }
    return mla_field_check_dims(field, layout, ndim, extent);
}

mla_status mla_field_check_inner(const mla_field *field)
{
    const mla_tensor *t = field->tensor;
    int32_t last = t->ndim - 1;
    if (t->dim[last] > 1 && t->stride[last] != 1 && !mla_tensor_empty(t)) {
        return mla_fail(MLA_STATUS_BAD_STRIDE,
                        "%s.stride[%" PRId32 "] = %" PRId64 " must be 1: the innermost dimension is contiguous",
                        mla_field_label(field).text, last, t->stride[last]);
    }
    return MLA_STATUS_OK;
}

mla_status mla_field_check_contiguous(const mla_field *field)
{
    const mla_tensor *t = field->tensor;
    int64_t stride = 1;
    for (int32_t i = t->ndim - 1; i >= 0 && !mla_tensor_empty(t); i--) {
        if (t->dim[i] > 1 && t->stride[i] != stride) {
            return mla_fail(MLA_STATUS_BAD_STRIDE,
                            "%s.stride[%" PRId32 "] = %" PRId64 " must be %" PRId64 ": the tensor is contiguous",
                            mla_field_label(field).text, i, t->stride[i], stride);
        }
        stride *= t->dim[i];
    }
    return MLA_STATUS_OK;
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

mla_status mla_field_check_output(const mla_field *field)
{
    const mla_tensor *t = field->tensor;
    for (int32_t i = 0; i < t->ndim && !mla_tensor_empty(t); i++) {
        if (t->dim[i] > 1 && t->stride[i] <= 0) {
            return mla_fail(MLA_STATUS_BAD_STRIDE,
                            "%s.stride[%" PRId32 "] = %" PRId64 " must be positive for an output",
                            mla_field_label(field).text, i, t->stride[i]);
        }
    }
    return MLA_STATUS_OK;
}

/* The bytes a tensor covers without a hole, in whatever order of dims. False when it has holes, or two elements in one
 * place. */
static bool dense_bytes(const mla_tensor *t, uintptr_t *begin, uintptr_t *end)
{
    int64_t count, low, high;
    if (!tensor_extent(t, &count, &low, &high) || high - low + 1 != count * (int64_t)mla_dtype_size(t->dtype)) {
        return false;
    }
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->dim[i] > 1 && t->stride[i] == 0) {
            return false;
        }
    }
    *begin = (uintptr_t)t->data + (uintptr_t)low;
    *end = (uintptr_t)t->data + (uintptr_t)high + 1;
    return true;
}

mla_status mla_field_check_apart(const mla_field *output, const mla_field *other)
{
    const mla_tensor *a = output->tensor, *b = other->tensor;
    if (mla_tensor_empty(a) || mla_tensor_empty(b)) {
        return MLA_STATUS_OK;
    }
    uintptr_t begin, end, first = (uintptr_t)a->data, second = (uintptr_t)b->data;
    bool overlap = first == second;
    overlap = overlap || (dense_bytes(b, &begin, &end) && begin <= first && first < end);
    overlap = overlap || (dense_bytes(a, &begin, &end) && begin <= second && second < end);
    if (overlap) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "%s.data = %p overlaps %s: an output shares no memory with other tensors",
                        mla_field_label(output).text, a->data, mla_field_label(other).text);
    }
    return MLA_STATUS_OK;
}
