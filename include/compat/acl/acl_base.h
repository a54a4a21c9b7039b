/*
 * acl_base.h - the plain types and numbers of the Ascend Computing Language, as libmla_compat provides them.
 *
 * These headers let a program written for an Ascend NPU compile unmodified and run on this machine: its "device memory"
 * is host memory, its streams execute in order. Names and numbers are those of CANN; what each function promises here
 * is said beside it. Usable from C11 and C++17.
 *
 * Every function may be called from any thread. A NULL, freed or foreign handle gives an error code, never a crash, as
 * far as that can be known: handles are looked up, not followed.
 */
#ifndef MLA_COMPAT_ACL_BASE_H
#define MLA_COMPAT_ACL_BASE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MLA_COMPAT_API __attribute__((visibility("default")))
#else
#define MLA_COMPAT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef void *aclrtStream;
typedef void *aclrtContext;

/* ---- status ------------------------------------------------------------------------------------------------------ */

typedef int aclError;

#define ACL_SUCCESS 0
#define ACL_ERROR_NONE 0
#define ACL_ERROR_INVALID_PARAM 100000
#define ACL_ERROR_UNINITIALIZE 100001
#define ACL_ERROR_REPEAT_INITIALIZE 100002
#define ACL_ERROR_RT_INVALID_DEVICEID 107001
#define ACL_ERROR_BAD_ALLOC 200000
#define ACL_ERROR_RT_MEMORY_ALLOCATION 207001
#define ACL_ERROR_FAILURE 500000
#define ACL_ERROR_RT_AICORE_EXCEPTION 507015 /* a stream's error: an operator met a bad value in device memory */
#define ACL_ERROR_RT_AICPU_EXCEPTION 507018  /* a stream's error: as above, for a metadata operator */

/* ---- data types and formats -------------------------------------------------------------------------------------- */

typedef enum aclDataType {
    ACL_DT_UNDEFINED = -1,
    ACL_FLOAT = 0,
    ACL_FLOAT16 = 1,
    ACL_INT8 = 2,
    ACL_INT32 = 3,
    ACL_UINT8 = 4,
    ACL_INT16 = 6,
    ACL_UINT16 = 7,
    ACL_UINT32 = 8,
    ACL_INT64 = 9,
    ACL_UINT64 = 10,
    ACL_DOUBLE = 11,
    ACL_BOOL = 12,
    ACL_STRING = 13,
    ACL_COMPLEX64 = 16,
    ACL_COMPLEX128 = 17,
    ACL_BF16 = 27,
    ACL_INT4 = 29,
    ACL_UINT1 = 30,
    ACL_COMPLEX32 = 33,
    ACL_HIFLOAT8 = 34,
    ACL_FLOAT8_E5M2 = 35,
    ACL_FLOAT8_E4M3FN = 36,
    ACL_FLOAT8_E8M0 = 37,
    ACL_FLOAT6_E3M2 = 38,
    ACL_FLOAT6_E2M3 = 39,
    ACL_FLOAT4_E2M1 = 40,
    ACL_FLOAT4_E1M2 = 41,
    ACL_HIFLOAT4 = 42
} aclDataType;

typedef enum aclFormat {
    ACL_FORMAT_UNDEFINED = -1,
    ACL_FORMAT_NCHW = 0,
    ACL_FORMAT_NHWC = 1,
    ACL_FORMAT_ND = 2,
    ACL_FORMAT_NC1HWC0 = 3,
    ACL_FORMAT_FRACTAL_Z = 4,
    ACL_FORMAT_FRACTAL_NZ = 29,
    ACL_FORMAT_NCDHW = 30
} aclFormat;

/* Bytes of one element; 0 for types of less than a byte or without a size of their own, and for unknown numbers. */
MLA_COMPAT_API size_t aclDataTypeSize(aclDataType dataType);

#ifdef __cplusplus
}
#endif

#endif
