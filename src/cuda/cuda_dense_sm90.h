/*
 * cuda_dense_sm90.h - what the host sides of the dense decode kernels for Hopper share.
 */
#ifndef MLA_CUDA_DENSE_SM90_H
#define MLA_CUDA_DENSE_SM90_H

#include "cuda_variant.h"

/* Is it dense decode as these kernels know it, on a GPU that has what they need, keys and o where they can be reached?
 * Says nothing about q and the number of rows. */
bool mla_dense_sm90_accepts(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape);

/* What they compute in: probabilities take the dtype of q. */
mla_arithmetic mla_dense_sm90_arithmetic(const mla_problem *problem);

/* Can TMA read it? Addresses and strides in multiples of 16 bytes, below 2^40. */
bool mla_dense_sm90_is_tiled(const void *data, const int64_t *stride, const int64_t *extent, int32_t n);

/* Describes a 16-bit tensor to TMA, innermost dim first and side by side: dim[rank], stride[rank - 1] in elements, box[rank]
 * with 64 columns. Boxes get the 128-byte swizzle; what lies beyond the tensor is zero. `alone`: boxes that lie side by side
 * are not read together, so that the cache shall not fetch more than a box's 128 bytes of a row. */
mla_status mla_dense_sm90_map(const mla_cuda_driver *driver, cuda_tensor_map *map, mla_dtype dtype, void *data,
                              int32_t rank, const int64_t *dim, const int64_t *stride, const uint32_t *box, bool alone);

/* Queues a kernel that begins while the one before it in the stream ends. */
mla_status mla_dense_sm90_launch(const mla_cuda_driver *driver, cuda_function function, int64_t grid, uint32_t threads,
                                 uint32_t shared_bytes, cuda_stream stream, void **parameters, const char *doing);

#endif
