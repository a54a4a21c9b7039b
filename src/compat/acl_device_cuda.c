/*
 * acl_device_cuda.c - NVIDIA GPUs as devices, through what libmla offers every program (mla_gpu.h).
 */
#include <string.h>

#include "acl_device.h"
#include "acl_status.h"
#include "mla/mla.h"
#include "mla/mla_gpu.h"

static aclError forward(mla_status status)
{
    switch (status) {
    case MLA_STATUS_OK: return ACL_SUCCESS;
    case MLA_STATUS_OUT_OF_MEMORY: return compat_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "%s", mla_last_error());
    case MLA_STATUS_BAD_DEVICE: return compat_fail(ACL_ERROR_RT_INVALID_DEVICEID, "%s", mla_last_error());
    default: return compat_fail(ACL_ERROR_FAILURE, "%s", mla_last_error());
    }
}

static aclError count(int32_t *n)
{
    *n = (int32_t)mla_gpu_list(NULL, 0);
    return *n > 0 ? ACL_SUCCESS : forward(MLA_STATUS_UNSUPPORTED);
}

static aclError allocate(int32_t device, size_t size, void **memory, void **base)
{
    COMPAT_TRY(forward(mla_gpu_allocate(device, size, base)));
    mla_status status = mla_gpu_fill(device, *base, 0, size, NULL);
    if (status == MLA_STATUS_OK) {
        status = mla_gpu_synchronize(device, NULL); /* whatever stream it is used on first */
    }
    aclError error = forward(status);
    if (error != ACL_SUCCESS) {
        (void)mla_gpu_free(device, *base);
        return error;
    }
    *memory = *base;
    return ACL_SUCCESS;
}

static aclError release(int32_t device, void *base)
{
    return forward(mla_gpu_free(device, base));
}

static aclError allocate_host(int32_t device, size_t size, void **memory, void **base)
{
    COMPAT_TRY(forward(mla_gpu_allocate_host(device, size, base)));
    memset(*base, 0, size);
    *memory = *base;
    return ACL_SUCCESS;
}

static aclError release_host(int32_t device, void *base)
{
    return forward(mla_gpu_free_host(device, base));
}

static aclError copy(int32_t device, void *dst, const void *src, size_t n, void *stream)
{
    return forward(mla_gpu_copy(device, dst, src, n, stream));
}

static aclError fill(int32_t device, void *dst, int value, size_t n, void *stream)
{
    return forward(mla_gpu_fill(device, dst, value, n, stream));
}

static aclError stream_create(int32_t device, void **stream)
{
    return forward(mla_gpu_stream_create(device, stream));
}

static void stream_destroy(int32_t device, void *stream)
{
    if (stream != NULL) {
        (void)mla_gpu_synchronize(device, stream);
        (void)mla_gpu_stream_destroy(device, stream);
    }
}

static aclError synchronize(int32_t device, void *stream)
{
    return forward(mla_gpu_synchronize(device, stream));
}

static aclError synchronize_all(int32_t device)
{
    return forward(mla_gpu_synchronize_all(device));
}

const compat_device_ops compat_device_cuda = {.type = MLA_DEVICE_CUDA,
                                              .count = count,
                                              .allocate = allocate,
                                              .release = release,
                                              .allocate_host = allocate_host,
                                              .release_host = release_host,
                                              .copy = copy,
                                              .fill = fill,
                                              .stream_create = stream_create,
                                              .stream_destroy = stream_destroy,
                                              .synchronize = synchronize,
                                              .synchronize_all = synchronize_all};
