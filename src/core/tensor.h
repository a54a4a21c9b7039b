/*
 * tensor.h - the rules of a single tensor, each with its sentence.
 *
 * The problem checker and the doors are written in these words; they know nothing of attention.
 */
#ifndef MLA_CORE_TENSOR_H
#define MLA_CORE_TENSOR_H

#include <stdbool.h>

#include "status.h"

/* A tensor and what sentences call it: its own name, else "path", else "segment[i].path". Without a tensor: a number
 * called `path`. */
typedef struct mla_field {
    const mla_tensor *tensor;
    const char *path;
    int32_t segment; /* -1: none */
} mla_field;

/* A label by value, to be used within one expression: mla_fail(..., "%s = 3", mla_field_label(&field).text). */
typedef struct mla_label {
    char text[64];
} mla_label;

mla_label mla_field_label(const mla_field *field);

/* A size that others are compared with, and where it came from: dim[axis] of a field, minus `less`. */
typedef struct mla_extent {
    int64_t value; /* MLA_ANY: whatever it is */
    mla_field of;
    int32_t axis, less;
} mla_extent;

#define MLA_ANY (-1)

static inline mla_extent mla_any_extent(void)
{
    return (mla_extent){.value = MLA_ANY};
}

static inline mla_extent mla_dim_extent(mla_field of, int32_t axis)
{
    return (mla_extent){.value = of.tensor->dim[axis], .of = of, .axis = axis};
}

/* A size that is not a dim: "d_v". */
static inline mla_extent mla_number_extent(const char *name, int64_t value)
{
    return (mla_extent){.value = value, .of = {.path = name, .segment = -1}};
}

/* Sets of dtypes, one bit each. */
#define MLA_DTYPE_BIT(dtype) (1u << (dtype))
#define MLA_DTYPES_16BIT (MLA_DTYPE_BIT(MLA_DTYPE_F16) | MLA_DTYPE_BIT(MLA_DTYPE_BF16))
#define MLA_DTYPES_FLOAT (MLA_DTYPE_BIT(MLA_DTYPE_F32) | MLA_DTYPES_16BIT)
#define MLA_DTYPES_8BIT (MLA_DTYPE_BIT(MLA_DTYPE_I8) | MLA_DTYPE_BIT(MLA_DTYPE_HIF8))

/* Rank, dims, sizes in 64 bits, device, address and alignment. The other checks and questions below may only be asked
 * about a tensor that passed this one. */
mla_status mla_field_check(const mla_field *field);

/* On the device of the other one. */
mla_status mla_field_check_device(const mla_field *field, const mla_field *other);

mla_status mla_field_check_dtype(const mla_field *field, unsigned dtypes);

/* An operand of a helper that works in host memory: there at all, mla_field_check(), in host memory, of these
 * dtypes. */
mla_status mla_field_check_operand(const mla_field *field, unsigned dtypes);
#define MLA_DTYPES_ANY (~0u)

/* Rank and dims; `layout` is the notation of the header, "[n_seq][n_q][n_head][d]". */
mla_status mla_field_check_dims(const mla_field *field, const char *layout, int32_t ndim, const mla_extent *extent);

/* Rank ndim and the first dims of the other one. */
mla_status mla_field_check_dims_of(const mla_field *field, const char *layout, int32_t ndim, const mla_field *other);

/* Innermost stride 1. */
mla_status mla_field_check_inner(const mla_field *field);

/* Row-major without a gap. */
mla_status mla_field_check_contiguous(const mla_field *field);

/* Strides of an output: positive, so that no two elements share memory by broadcasting or reversal. */
mla_status mla_field_check_output(const mla_field *field);

/* The output and another tensor do not share memory, as far as mla_problem.h promises to notice. */
mla_status mla_field_check_apart(const mla_field *output, const mla_field *other);

bool mla_tensor_empty(const mla_tensor *tensor); /* some dim is 0 */

#endif
