/*
 * acl_device_cpu.c - the CPU as a device: its memory is the process's own, and work is done when it is given.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "acl_device.h"
#include "acl_status.h"

static aclError count(int32_t *n)
{
    *n = 1;
    return ACL_SUCCESS;
}

/* calloc() rather than aligned_alloc() and memset(): pages that nobody touches then cost nothing. */
static aclError allocate(int32_t device, size_t size, void **memory, void **base)
{
    (void)device;
    *base = size <= SIZE_MAX - COMPAT_ALIGN ? calloc(1, size + COMPAT_ALIGN) : NULL;
    if (*base == NULL) {
        return compat_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "size = %zu bytes do not fit into memory", size);
    }
    *memory = (char *)*base + (COMPAT_ALIGN - (uintptr_t)*base % COMPAT_ALIGN);
    return ACL_SUCCESS;
}

static aclError release(int32_t device, void *base)
{
    (void)device;
    free(base);
    return ACL_SUCCESS;
}

static aclError copy(int32_t device, void *dst, const void *src, size_t n, void *stream)
{
    (void)device;
    (void)stream;
    memmove(dst, src, n);
    return ACL_SUCCESS;
}

static aclError fill(int32_t device, void *dst, int value, size_t n, void *stream)
{
    (void)device;
    (void)stream;
    memset(dst, value, n);
    return ACL_SUCCESS;
}

static aclError stream_create(int32_t device, void **stream)
{
    (void)device;
    *stream = NULL;
    return ACL_SUCCESS;
}

static void stream_destroy(int32_t device, void *stream)
{
    (void)device;
    (void)stream;
}

static aclError synchronize(int32_t device, void *stream)
{
    (void)device;
    (void)stream;
    return ACL_SUCCESS;
}

static aclError synchronize_all(int32_t device)
{
    (void)device;
    return ACL_SUCCESS;
}

const compat_device_ops compat_device_cpu = {.type = MLA_DEVICE_CPU,
                                             .count = count,
                                             .allocate = allocate,
                                             .release = release,
                                             .allocate_host = allocate,
                                             .release_host = release,
                                             .copy = copy,
                                             .fill = fill,
                                             .stream_create = stream_create,
                                             .stream_destroy = stream_destroy,
                                             .synchronize = synchronize,
                                             .synchronize_all = synchronize_all};
