/*
 * cuda_device.h - the GPUs of the process: facts, contexts, loaded kernels.
 */
#ifndef MLA_CUDA_DEVICE_H
#define MLA_CUDA_DEVICE_H

#include <stdbool.h>

#include "cuda_driver.h"

/* One GPU. Made on first use, never released: kernels stay loaded in its primary context, the one that the CUDA run
 * time and frameworks use. */
typedef struct mla_cuda_device {
    const mla_cuda_driver *driver;
    int32_t ordinal;
    cuda_device_id id;
    cuda_context context;
    char name[96];
    size_t memory_bytes;
    int32_t compute_capability; /* 90 for 9.0 */
    int32_t n_sm;
    int32_t l2_bytes;
    int32_t max_shared_bytes; /* that one block may ask for */
    bool memory_pools;        /* cuMemAllocAsync() works */
} mla_cuda_device;

/* Thread-safe. Errors: UNSUPPORTED (no driver, no GPU, a build without kernels), BAD_DEVICE (no such ordinal). */
mla_status mla_cuda_device_get(int32_t ordinal, const mla_cuda_device **device);

/* How many GPUs the driver offers. Errors: UNSUPPORTED without a driver or GPU. */
mla_status mla_cuda_device_count(int32_t *count);

/* Facts of a GPU without making a context on it: ordinal, name, memory, capability, n_sm. */
mla_status mla_cuda_device_describe(int32_t ordinal, mla_cuda_device *facts);

/* Makes the device's context current in this thread; *pushed remembers whether there is something to undo. Every enter
 * needs its leave. */
mla_status mla_cuda_enter(const mla_cuda_device *device, bool *pushed);
void mla_cuda_leave(const mla_cuda_device *device, bool pushed);

/* Device memory in the order of a stream, from the GPU's own pool. UNSUPPORTED for a GPU that has none. */
mla_status mla_cuda_pool_allocate(int32_t ordinal, size_t bytes, void *stream, void **memory);
void mla_cuda_pool_release(int32_t ordinal, void *memory, void *stream);

/*
 * The kernel `function` of kernels/<image>.cu, which may use up to shared_bytes of dynamic shared memory. Loads the
 * image on first use, so it belongs into plans, not into runs. Both names must be static: they are kept.
 * Errors: UNSUPPORTED when the image does not run on this GPU or under this driver.
 */
mla_status mla_cuda_kernel_get(const mla_cuda_device *device, const char *image, const char *function,
                               int32_t shared_bytes, cuda_function *kernel);

/* All of a multiprocessor's memory as shared memory while the kernel runs. Asked of the driver once. */
mla_status mla_cuda_kernel_fill_shared(const mla_cuda_device *device, cuda_function kernel);

#endif
