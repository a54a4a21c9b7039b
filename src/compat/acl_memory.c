/*
 * acl_memory.c - memory and copies.
 */
#include <stdlib.h>

#include "acl/acl_rt.h"
#include "acl_device.h"
#include "acl_registry.h"
#include "acl_status.h"
#include "acl_stream.h"

typedef struct memory_block {
    compat_object object;
    void *base;
    int32_t device; /* whose it is; of host memory, through which it was made */
} memory_block;

static aclError allocate(const char *name, void **pointer, size_t size, compat_kind kind)
{
    if (pointer == NULL) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "%s is NULL", name);
    }
    *pointer = NULL;
    if (size == 0) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "size = 0 must be at least 1");
    }
    const compat_device_ops *ops;
    COMPAT_TRY(compat_device(&ops));
    memory_block *block = malloc(sizeof *block);
    if (block == NULL) {
        return compat_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "size = %zu bytes do not fit into memory", size);
    }
    void *memory = NULL;
    block->device = compat_current_device();
    aclError error =
        (kind == COMPAT_DEVICE_MEMORY ? ops->allocate : ops->allocate_host)(block->device, size, &memory, &block->base);
    if (error != ACL_SUCCESS) {
        free(block);
        return error;
    }
    compat_register(&block->object, kind, memory);
    *pointer = memory;
    return ACL_SUCCESS;
}

static aclError release(const char *name, void *pointer, compat_kind kind, const char *from)
{
    memory_block *block = compat_take(kind, pointer);
    if (block == NULL) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "%s = %p is not from %s, or was freed before", name, pointer, from);
    }
    const compat_device_ops *ops = compat_device_known();
    aclError error = (kind == COMPAT_DEVICE_MEMORY ? ops->release : ops->release_host)(block->device, block->base);
    free(block);
    return error;
}

aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    const int bands = ACL_MEM_TYPE_LOW_BAND_WIDTH | ACL_MEM_TYPE_HIGH_BAND_WIDTH;
    if (((int)policy & ~bands) < ACL_MEM_MALLOC_HUGE_FIRST || ((int)policy & ~bands) > ACL_MEM_MALLOC_NORMAL_ONLY_P2P) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "policy = %d is not an aclrtMemMallocPolicy", (int)policy);
    }
    return allocate("devPtr", devPtr, size, COMPAT_DEVICE_MEMORY);
}

aclError aclrtFree(void *devPtr)
{
    return release("devPtr", devPtr, COMPAT_DEVICE_MEMORY, "aclrtMalloc()");
}

aclError aclrtMallocHost(void **hostPtr, size_t size)
{
    return allocate("hostPtr", hostPtr, size, COMPAT_HOST_MEMORY);
}

aclError aclrtFreeHost(void *hostPtr)
{
    return release("hostPtr", hostPtr, COMPAT_HOST_MEMORY, "aclrtMallocHost()");
}

static aclError check_copy(const void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind)
{
    if ((int)kind < ACL_MEMCPY_HOST_TO_HOST || (int)kind > ACL_MEMCPY_DEFAULT) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "kind = %d is not an aclrtMemcpyKind", (int)kind);
    }
    if (count > destMax) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "count = %zu exceeds destMax = %zu", count, destMax);
    }
    if (count > 0 && (dst == NULL || src == NULL)) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "%s is NULL, but count = %zu", dst == NULL ? "dst" : "src", count);
    }
    return ACL_SUCCESS;
}

/* Copies on the current device's default stream, which has done everything else given to it before. */
aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind)
{
    const compat_device_ops *ops;
    COMPAT_TRY(check_copy(dst, destMax, src, count, kind));
    COMPAT_TRY(compat_device(&ops));
    if (count == 0) {
        return ACL_SUCCESS;
    }
    COMPAT_TRY(ops->copy(compat_current_device(), dst, src, count, NULL));
    return ops->synchronize(compat_current_device(), NULL);
}

typedef struct copy_work {
    void *dst;
    const void *src;
    size_t count;
} copy_work;

static int32_t run_copy(void *data, const compat_place *place)
{
    const copy_work *work = data;
    return work->count == 0
               ? ACL_SUCCESS
               : compat_device_known()->copy(place->device, work->dst, work->src, work->count, place->stream);
}

aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream)
{
    COMPAT_TRY(check_copy(dst, destMax, src, count, kind));
    copy_work work = {dst, src, count};
    return compat_stream_launch(stream, run_copy, &work);
}

aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count)
{
    if (count > maxCount) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "count = %zu exceeds maxCount = %zu", count, maxCount);
    }
    if (count > 0 && devPtr == NULL) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "devPtr is NULL, but count = %zu", count);
    }
    const compat_device_ops *ops;
    COMPAT_TRY(compat_device(&ops));
    if (count == 0) {
        return ACL_SUCCESS;
    }
    COMPAT_TRY(ops->fill(compat_current_device(), devPtr, (int)((uint32_t)value & 0xff), count, NULL));
    return ops->synchronize(compat_current_device(), NULL);
}
