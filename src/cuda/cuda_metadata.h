/*
 * cuda_metadata.h - the flash_mla door's scheduler on the GPU.
 */
#ifndef MLA_CUDA_METADATA_H
#define MLA_CUDA_METADATA_H

#include "core/status.h"

/* Queues the schedule of lengths [b] over n_part parts: parts [n_part][8], num_splits [b + 1], all i32 and contiguous
 * in the memory of GPU `ordinal`. Errors: those of mla_cuda_device_get() and of the launch. */
mla_status mla_cuda_flash_mla_metadata(int32_t ordinal, const int32_t *lengths, int64_t b, int64_t n_part,
                                       int32_t *parts, int32_t *num_splits, void *stream);

/* Multiprocessors of a GPU. */
mla_status mla_cuda_multiprocessors(int32_t ordinal, int32_t *n_sm);

#endif
