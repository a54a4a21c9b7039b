/*
 * acl_rt.h - the runtime: device, context, stream, memory.
 *
 * The environment variable MLA_DEVICE, read once, says what a device is:
 *
 *   cpu   (the default) There is one device, number 0, and its memory is host memory: a pointer of aclrtMalloc() may be
 *         read and written like any other. Work given to a stream has been done when the call returns.
 *   cuda  Every NVIDIA GPU is a device. aclrtMalloc() gives device memory, which the host cannot touch, aclrtMallocHost()
 *         pinned host memory, and streams are CUDA streams: work is queued, and results are there after a
 *         synchronisation. Tensors and the memory of a call are those of the calling thread's current device.
 *
 * The direction of a copy is found out from the addresses; the kind is checked and has no effect. What goes wrong while
 * work runs is the stream's error, and aclrtSynchronizeStream() reports it.
 *
 * Errors everywhere: ACL_ERROR_INVALID_PARAM for a NULL, freed or foreign argument, or for another word in MLA_DEVICE,
 * ACL_ERROR_RT_INVALID_DEVICEID for a device that is not there, ACL_ERROR_FAILURE with cuda where there is no driver or
 * no GPU; aclGetRecentErrMsg() then holds a sentence.
 */
#ifndef MLA_COMPAT_ACL_RT_H
#define MLA_COMPAT_ACL_RT_H

#include "acl_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum aclrtMemMallocPolicy {
    ACL_MEM_MALLOC_HUGE_FIRST = 0,
    ACL_MEM_MALLOC_HUGE_ONLY = 1,
    ACL_MEM_MALLOC_NORMAL_ONLY = 2,
    ACL_MEM_MALLOC_HUGE_FIRST_P2P = 3,
    ACL_MEM_MALLOC_HUGE_ONLY_P2P = 4,
    ACL_MEM_MALLOC_NORMAL_ONLY_P2P = 5,
    ACL_MEM_TYPE_LOW_BAND_WIDTH = 0x0100,
    ACL_MEM_TYPE_HIGH_BAND_WIDTH = 0x1000
} aclrtMemMallocPolicy;

typedef enum aclrtMemcpyKind {
    ACL_MEMCPY_HOST_TO_HOST = 0,
    ACL_MEMCPY_HOST_TO_DEVICE = 1,
    ACL_MEMCPY_DEVICE_TO_HOST = 2,
    ACL_MEMCPY_DEVICE_TO_DEVICE = 3,
    ACL_MEMCPY_DEFAULT = 4
} aclrtMemcpyKind;

/* ---- device and context ------------------------------------------------------------------------------------------ */

MLA_COMPAT_API aclError aclrtGetDeviceCount(uint32_t *count);
MLA_COMPAT_API aclError aclrtSetDevice(int32_t deviceId);
MLA_COMPAT_API aclError aclrtGetDevice(int32_t *deviceId);
MLA_COMPAT_API aclError aclrtResetDevice(int32_t deviceId); /* memory, streams and tensors stay as they are */

/* A context is its device's number: making one, or making one current, makes that the calling thread's device. Every
 * thread can use every stream and all memory. */
MLA_COMPAT_API aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId);
MLA_COMPAT_API aclError aclrtSetCurrentContext(aclrtContext context);
MLA_COMPAT_API aclError aclrtDestroyContext(aclrtContext context);

/* ---- stream ------------------------------------------------------------------------------------------------------ */

/* A stream runs one piece of work after the other, whichever threads bring it. NULL is the default stream, which is
 * always there. */
MLA_COMPAT_API aclError aclrtCreateStream(aclrtStream *stream);
MLA_COMPAT_API aclError aclrtDestroyStream(aclrtStream stream); /* waits for its work; an unreported error is lost */

/*
 * Waits for the stream's work. If some of it failed since the last call, returns why, with the sentence for
 * aclGetRecentErrMsg() of the calling thread, and clears it. Work that came after the failed piece was not run.
 */
MLA_COMPAT_API aclError aclrtSynchronizeStream(aclrtStream stream);

/* Waits for all work of the thread's current device. Errors of streams stay theirs. */
MLA_COMPAT_API aclError aclrtSynchronizeDevice(void);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/*
 * size >= 1 bytes, filled with zero and aligned to 64 bytes; the policy is checked and has no effect. Release with
 * aclrtFree(), which works after aclFinalize() too. Errors: ACL_ERROR_RT_MEMORY_ALLOCATION, *devPtr is then NULL.
 */
MLA_COMPAT_API aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
MLA_COMPAT_API aclError aclrtFree(void *devPtr);

/* The same for host memory. */
MLA_COMPAT_API aclError aclrtMallocHost(void **hostPtr, size_t size);
MLA_COMPAT_API aclError aclrtFreeHost(void *hostPtr);

/* count bytes, at most destMax; dst and src may be NULL when count is 0. Any memory is fine. On the CPU dst and src may
 * overlap. */
MLA_COMPAT_API aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind);
MLA_COMPAT_API aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind,
                                         aclrtStream stream);

/* Sets count bytes, at most maxCount, to the low 8 bits of value. */
MLA_COMPAT_API aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count);

#ifdef __cplusplus
}
#endif

#endif
