/*
 * dlpack_abi.h - the part of the DLPack binary interface (major version 1) that this module reads.
 *
 * DLPack is how array libraries lend each other memory. There are two ways in:
 *   - every library: `array.__dlpack__()` returns a capsule that holds a dlpack_managed (named "dltensor", old) or a
 *     dlpack_versioned (named "dltensor_versioned");
 *   - a library that has it: the capsule `type(array).__dlpack_c_exchange_api__` holds a dlpack_exchange, whose
 *     `view` fills in a tensor straight from the Python object, in some tens of nanoseconds.
 */
#ifndef MLA_PYTHON_DLPACK_ABI_H
#define MLA_PYTHON_DLPACK_ABI_H

#include <stdint.h>

#define DLPACK_MAJOR 1

enum { DLPACK_CPU = 1, DLPACK_CUDA = 2, DLPACK_CUDA_HOST = 3, DLPACK_CUDA_MANAGED = 13 };

enum {
    DLPACK_INT = 0,
    DLPACK_UINT = 1,
    DLPACK_FLOAT = 2,
    DLPACK_BFLOAT = 4,
    DLPACK_COMPLEX = 5,
    DLPACK_BOOL = 6,
    DLPACK_FLOAT8_FIRST = 7, /* the 8-bit, 6-bit and 4-bit floats */
    DLPACK_FLOAT4_LAST = 17
};

#define DLPACK_FLAG_READ_ONLY UINT64_C(1)

typedef struct dlpack_version {
    uint32_t major, minor;
} dlpack_version;

typedef struct dlpack_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t dtype_code, dtype_bits;
    uint16_t dtype_lanes;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: contiguous (allowed before DLPack 1.2) */
    uint64_t byte_offset;
} dlpack_tensor;

typedef struct dlpack_managed {
    dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct dlpack_managed *self);
} dlpack_managed;

typedef struct dlpack_versioned {
    dlpack_version version;
    void *context;
    void (*deleter)(struct dlpack_versioned *self);
    uint64_t flags;
    dlpack_tensor tensor;
} dlpack_versioned;

typedef struct dlpack_exchange {
    dlpack_version version;
    struct dlpack_exchange *older; /* a table of an earlier major version, or NULL */
    int (*allocate)(dlpack_tensor *prototype, dlpack_versioned **out, void *context,
                    void (*set_error)(void *context, const char *kind, const char *message));
    int (*export_owned)(void *object, dlpack_versioned **out);
    int (*import_owned)(dlpack_versioned *tensor, void **object);
    int (*view)(void *object, dlpack_tensor *out); /* -1 with a Python error set; may be NULL */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} dlpack_exchange;

#endif
