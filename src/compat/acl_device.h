/*
 * acl_device.h - what the runtime asks of the kind of device behind it: the CPU, or NVIDIA GPUs.
 *
 * One table per kind; the runtime above it knows no other difference. The environment variable MLA_DEVICE says which one
 * a process has: "cpu" (the default) or "cuda".
 */
#ifndef MLA_COMPAT_ACL_DEVICE_H
#define MLA_COMPAT_ACL_DEVICE_H

#include <stddef.h>

#include "acl/acl_base.h"
#include "mla/mla_types.h"

/* Every function returns ACL_SUCCESS, or an error after compat_fail(). `device`: 0 .. count - 1. */
typedef struct compat_device_ops {
    mla_device_type type;
    aclError (*count)(int32_t *count);
    /* Device memory: zero-filled, aligned to COMPAT_ALIGN. `base` is what release() gets. */
    aclError (*allocate)(int32_t device, size_t size, void **memory, void **base);
    aclError (*release)(int32_t device, void *base);
    /* The same for host memory. */
    aclError (*allocate_host)(int32_t device, size_t size, void **memory, void **base);
    aclError (*release_host)(int32_t device, void *base);
    /* Any memory to any memory; memory of the device. Queued on the stream. */
    aclError (*copy)(int32_t device, void *dst, const void *src, size_t count, void *stream);
    aclError (*fill)(int32_t device, void *dst, int value, size_t count, void *stream);
    /* A queue of the device's own behind a stream; NULL is the default one, which is always there. */
    aclError (*stream_create)(int32_t device, void **stream);
    void (*stream_destroy)(int32_t device, void *stream); /* once its work is done */
    aclError (*synchronize)(int32_t device, void *stream);
    aclError (*synchronize_all)(int32_t device);
} compat_device_ops;

#define COMPAT_ALIGN 64

/* The kind of device of this process. ACL_ERROR_INVALID_PARAM, with a sentence, for another word in MLA_DEVICE. */
aclError compat_device(const compat_device_ops **ops);

/* The table alone, for who knows that it is there because he holds something of it. */
const compat_device_ops *compat_device_known(void);

/* The device of the calling thread: that of its last aclrtSetDevice() or context, else 0. */
int32_t compat_current_device(void);

extern const compat_device_ops compat_device_cpu, compat_device_cuda;

#endif
