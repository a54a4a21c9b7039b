/*
 * mla_gpu.h - memory and streams of NVIDIA GPUs, for programs that bring no CUDA of their own.
 *
 * Whoever has the CUDA run time or a framework needs none of this: libmla takes any CUstream (or cudaStream_t) and any
 * device memory of the GPU's primary context, and what these functions hand out is just that. They are what examples,
 * and the acl runtime of libmla_compat, are written with.
 *
 * gpu: 0 .. mla_gpu_list() - 1, the id of the tensors' mla_device. stream: of that GPU; NULL its default stream, which
 * is not in step with those of mla_gpu_stream_create(). Every function may be called from any thread, whatever context is
 * current there.
 *
 * Errors everywhere: UNSUPPORTED without a driver, a GPU or kernels in this build, BAD_DEVICE for another gpu,
 * OUT_OF_MEMORY, and INTERNAL with the driver's words, which may be about work that was queued earlier.
 */
#ifndef MLA_GPU_H
#define MLA_GPU_H

#include <stdbool.h>

#include "mla_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Device memory, aligned to 256 bytes; its contents are undefined. bytes >= 1. *memory is NULL after a failure. Freeing
 * waits for the GPU. NULL may be freed. */
MLA_API mla_status mla_gpu_allocate(int32_t gpu, size_t bytes, void **memory);
MLA_API mla_status mla_gpu_free(int32_t gpu, void *memory);

/* Host memory that the GPU reaches by itself ("pinned"), so that copies run beside the host. */
MLA_API mla_status mla_gpu_allocate_host(int32_t gpu, size_t bytes, void **memory);
MLA_API mla_status mla_gpu_free_host(int32_t gpu, void *memory);

/* Queues a copy between any two places in host or device memory that do not overlap. Host memory that is not pinned may
 * be changed, or is complete, when the call returns; of pinned memory, when the stream has come so far. */
MLA_API mla_status mla_gpu_copy(int32_t gpu, void *to, const void *from, size_t bytes, void *stream);

/* Queues setting bytes of device memory to the low 8 bits of value. */
MLA_API mla_status mla_gpu_fill(int32_t gpu, void *memory, int value, size_t bytes, void *stream);

/* Is the address in the memory of a GPU, where the host cannot read? False where there is no driver. */
MLA_API bool mla_gpu_owns(const void *address);

MLA_API mla_status mla_gpu_stream_create(int32_t gpu, void **stream);
MLA_API mla_status mla_gpu_stream_destroy(int32_t gpu, void *stream); /* its work still ends; not for NULL */

/* Wait for the work of a stream, of a whole GPU. */
MLA_API mla_status mla_gpu_synchronize(int32_t gpu, void *stream);
MLA_API mla_status mla_gpu_synchronize_all(int32_t gpu);

#ifdef __cplusplus
}
#endif

#endif
