/*
 * cuda_memory.c - memory and streams for programs without CUDA: mla_gpu.h over the driver.
 */
#include "mla/mla_gpu.h"

#include <string.h>

#include "cuda_device.h"

enum { POINTER_ATTRIBUTE_MEMORY_TYPE = 2, MEMORY_TYPE_DEVICE = 2, HOST_ALLOC_PORTABLE = 1, STREAM_NON_BLOCKING = 1 };

/* The GPU with its context current; a leave() for every success. */
typedef struct entered {
    const mla_cuda_device *device;
    const mla_cuda_driver *driver;
    bool pushed;
} entered;

static mla_status enter(int32_t gpu, entered *e)
{
    MLA_TRY(mla_cuda_device_get(gpu, &e->device));
    e->driver = e->device->driver;
    return mla_cuda_enter(e->device, &e->pushed);
}

static mla_status leave(const entered *e, cuda_result result, const char *doing)
{
    mla_status status = mla_cuda_check(e->driver, result, doing);
    mla_cuda_leave(e->device, e->pushed);
    return status;
}

static mla_status check_request(size_t bytes, const void *place, const char *name)
{
    if (place == NULL) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "%s is NULL", name);
    }
    return bytes > 0 ? MLA_STATUS_OK : mla_fail(MLA_STATUS_BAD_VALUE, "bytes = 0 must be at least 1");
}

mla_status mla_gpu_allocate(int32_t gpu, size_t bytes, void **memory)
{
    entered e;
    cuda_address address = 0;
    MLA_TRY(check_request(bytes, memory, "memory"));
    *memory = NULL;
    MLA_TRY(enter(gpu, &e));
    MLA_TRY(leave(&e, e.driver->cuMemAlloc_v2(&address, bytes), "allocating device memory"));
    *memory = (void *)(uintptr_t)address;
    return MLA_STATUS_OK;
}

mla_status mla_gpu_free(int32_t gpu, void *memory)
{
    entered e;
    if (memory == NULL) {
        return MLA_STATUS_OK;
    }
    MLA_TRY(enter(gpu, &e));
    return leave(&e, e.driver->cuMemFree_v2((cuda_address)(uintptr_t)memory), "freeing device memory");
}

mla_status mla_gpu_allocate_host(int32_t gpu, size_t bytes, void **memory)
{
    entered e;
    void *pinned = NULL;
    MLA_TRY(check_request(bytes, memory, "memory"));
    *memory = NULL;
    MLA_TRY(enter(gpu, &e));
    MLA_TRY(leave(&e, e.driver->cuMemHostAlloc(&pinned, bytes, HOST_ALLOC_PORTABLE), "allocating pinned memory"));
    *memory = pinned;
    return MLA_STATUS_OK;
}

mla_status mla_gpu_free_host(int32_t gpu, void *memory)
{
    entered e;
    if (memory == NULL) {
        return MLA_STATUS_OK;
    }
    MLA_TRY(enter(gpu, &e));
    return leave(&e, e.driver->cuMemFreeHost(memory), "freeing pinned memory");
}

mla_status mla_gpu_copy(int32_t gpu, void *to, const void *from, size_t bytes, void *stream)
{
    entered e;
    if (bytes == 0) {
        return MLA_STATUS_OK;
    }
    MLA_TRY(enter(gpu, &e));
    return leave(&e,
                 e.driver->cuMemcpyAsync((cuda_address)(uintptr_t)to, (cuda_address)(uintptr_t)from, bytes,
                                         (cuda_stream)stream),
                 "queueing a copy");
}

mla_status mla_gpu_fill(int32_t gpu, void *memory, int value, size_t bytes, void *stream)
{
    entered e;
    if (bytes == 0) {
        return MLA_STATUS_OK;
    }
    MLA_TRY(enter(gpu, &e));
    return leave(&e,
                 e.driver->cuMemsetD8Async((cuda_address)(uintptr_t)memory, (unsigned char)value, bytes,
                                           (cuda_stream)stream),
                 "queueing a fill");
}

bool mla_gpu_owns(const void *address)
{
    const mla_cuda_driver *driver;
    unsigned type = 0;
    int attribute = POINTER_ATTRIBUTE_MEMORY_TYPE;
    void *value = &type;
    /* the plural: the other one takes memory that it does not know for an error */
    return mla_cuda_driver_get(&driver) == MLA_STATUS_OK &&
           driver->cuPointerGetAttributes(1, &attribute, &value, (cuda_address)(uintptr_t)address) == CUDA_RESULT_OK &&
           type == MEMORY_TYPE_DEVICE;
}

mla_status mla_gpu_stream_create(int32_t gpu, void **stream)
{
    entered e;
    cuda_stream fresh = NULL;
    MLA_TRY(check_request(1, stream, "stream"));
    *stream = NULL;
    MLA_TRY(enter(gpu, &e));
    MLA_TRY(leave(&e, e.driver->cuStreamCreate(&fresh, STREAM_NON_BLOCKING), "making a stream"));
    *stream = fresh;
    return MLA_STATUS_OK;
}

mla_status mla_gpu_stream_destroy(int32_t gpu, void *stream)
{
    entered e;
    MLA_TRY(check_request(1, stream, "stream"));
    MLA_TRY(enter(gpu, &e));
    return leave(&e, e.driver->cuStreamDestroy_v2((cuda_stream)stream), "destroying a stream");
}

mla_status mla_gpu_synchronize(int32_t gpu, void *stream)
{
    entered e;
    MLA_TRY(enter(gpu, &e));
    return leave(&e, e.driver->cuStreamSynchronize((cuda_stream)stream), "the work of a stream");
}

mla_status mla_gpu_synchronize_all(int32_t gpu)
{
    entered e;
    MLA_TRY(enter(gpu, &e));
    return leave(&e, e.driver->cuCtxSynchronize(), "the work of a GPU");
}
