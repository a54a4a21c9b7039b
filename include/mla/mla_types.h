/*
 * mla_types.h - the plain types of libmla: status, dtype, device, tensor view.
 *
 * Usable from C11 and C++17. Nothing here allocates; a tensor view never owns the memory it points to.
 */
#ifndef MLA_TYPES_H
#define MLA_TYPES_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MLA_API __attribute__((visibility("default")))
#else
#define MLA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What every fallible function returns. After anything but MLA_STATUS_OK, mla_last_error() holds one sentence that
 * names the argument, its value and the rule it broke. Numbers are pinned: a new status is appended. */
typedef enum mla_status {
    MLA_STATUS_OK = 0,
    MLA_STATUS_NULL_POINTER = 1, /* a required pointer or tensor is missing */
    MLA_STATUS_BAD_VALUE = 2,    /* a scalar or enum argument is outside its range */
    MLA_STATUS_BAD_SHAPE = 3,    /* rank or extent of a tensor */
    MLA_STATUS_BAD_STRIDE = 4,   /* stride of a tensor */
    MLA_STATUS_BAD_DTYPE = 5,    /* dtype of a tensor */
    MLA_STATUS_BAD_DEVICE = 6,   /* tensors on different or unusable devices */
    MLA_STATUS_OUT_OF_RANGE = 7, /* a number inside a tensor: a length, a page id, an offset */
    MLA_STATUS_UNSUPPORTED = 8,  /* legal, but no backend of this build runs it */
    MLA_STATUS_STALE_PLAN = 9,   /* the plan was built for another problem */
    MLA_STATUS_WORKSPACE_TOO_SMALL = 10,
    MLA_STATUS_OUT_OF_MEMORY = 11,
    MLA_STATUS_INTERNAL = 12 /* a fault of libmla itself */
} mla_status;

/* Element types. Numbers are pinned: a new dtype is appended. */
typedef enum mla_dtype {
    MLA_DTYPE_NONE = 0,
    MLA_DTYPE_F32 = 1,
    MLA_DTYPE_F16 = 2,  /* IEEE binary16 */
    MLA_DTYPE_BF16 = 3, /* upper half of binary32 */
    MLA_DTYPE_I32 = 4,
    MLA_DTYPE_I64 = 5, /* recognised so that it can be refused by name */
    MLA_DTYPE_I8 = 6,
    MLA_DTYPE_U8 = 7,
    MLA_DTYPE_HIF8 = 8 /* HiFloat8: 8 bits, 1 to 3 of them fraction; 2^-22 .. 2^15; exact in f16 and bf16 */
} mla_dtype;

typedef enum mla_device_type { MLA_DEVICE_CPU = 0, MLA_DEVICE_CUDA = 1 } mla_device_type;

typedef struct mla_device {
    mla_device_type type;
    int32_t id; /* ordinal among devices of this type; 0 for the CPU */
} mla_device;

#define MLA_MAX_NDIM 6

/*
 * A strided view of memory that somebody else owns. Dimensions and strides are stored inline, so a view can be copied
 * and outlives nothing but the memory itself.
 *
 * An all-zero mla_tensor (data NULL, ndim 0) means "absent"; every optional tensor of the API uses this.
 * libmla writes only through tensors documented as outputs.
 */
typedef struct mla_tensor {
    void *data; /* address of element [0][0]...; need only be aligned to the element */
    mla_dtype dtype;
    mla_device device;
    int32_t ndim;                 /* 0..MLA_MAX_NDIM */
    int64_t dim[MLA_MAX_NDIM];    /* extents, >= 0 */
    int64_t stride[MLA_MAX_NDIM]; /* in elements; may be 0 (broadcast) or, for inputs, anything the memory allows */
    const char *name;             /* used in error sentences; NULL: the field's own name is used */
} mla_tensor;

/* A contiguous row-major view on the CPU. dim has ndim entries. Never fails: an ndim outside 0..MLA_MAX_NDIM gives a
 * view that every check refuses. */
MLA_API mla_tensor mla_tensor_make(void *data, mla_dtype dtype, int32_t ndim, const int64_t *dim);

/* Size of one element in bytes; 0 for MLA_DTYPE_NONE and unknown numbers. */
MLA_API size_t mla_dtype_size(mla_dtype dtype);

/* "f32", "bf16", ...; "none" or "unknown" otherwise. Static storage. */
MLA_API const char *mla_dtype_name(mla_dtype dtype);

/* "MLA_STATUS_BAD_SHAPE", ...; "MLA_STATUS_UNKNOWN" for other numbers. Static storage. */
MLA_API const char *mla_status_name(mla_status status);

#ifdef __cplusplus
}
#endif

#endif
