/*
 * cuda_ascend.h - the kernels of kernels/ascend.cu. Each is queued on a stream of GPU `ordinal`; all addresses are in
 * its memory. Errors: those of mla_cuda_device_get() and of the launch.
 */
#ifndef MLA_CUDA_ASCEND_LAUNCH_H
#define MLA_CUDA_ASCEND_LAUNCH_H

#include "core/status.h"
#include "kernels/ascend.h"

mla_status mla_cuda_ascend_lengths(int32_t ordinal, const mla_cuda_lengths *parameters, void *stream);
mla_status mla_cuda_ascend_clear(int32_t ordinal, const mla_cuda_unowned *parameters, void *stream);
mla_status mla_cuda_ascend_metadata_words(int32_t ordinal, const mla_cuda_ascend_metadata *parameters, void *stream);

/* to[0 .. n) on the GPU become value[0 .. n), which is host memory and may go when the call returns. */
mla_status mla_cuda_ascend_send(int32_t ordinal, int32_t *to, const int32_t *value, int64_t n, void *stream);

mla_status mla_cuda_atb_tail_mask(int32_t ordinal, const mla_cuda_atb_tail *parameters, void *stream);
mla_status mla_cuda_atb_scaled_mask(int32_t ordinal, const mla_cuda_atb_mask *parameters, void *stream);

#endif
