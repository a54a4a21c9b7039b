/*
 * cuda_dense_sm90.h - what the host sides of the dense decode kernels for Hopper share.
 */
#ifndef MLA_CUDA_DENSE_SM90_H
#define MLA_CUDA_DENSE_SM90_H

#include "cuda_variant.h"

/* Is it dense decode as these kernels know it, on a GPU that has what they need, keys and o where they can be reached?
 * Says nothing about q and the number of rows. */
bool mla_dense_sm90_accepts(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape);

/* Can TMA read it? Addresses and strides in multiples of 16 bytes, below 2^40. */
bool mla_dense_sm90_is_tiled(const void *data, const int64_t *stride, const int64_t *extent, int32_t n);

/* Describes a 16-bit tensor to TMA, innermost dim first and side by side: dim[rank], stride[rank - 1] in elements, box[rank]
 * with 64 columns. Boxes get the 128-byte swizzle; what lies beyond the tensor is zero. */
mla_status mla_dense_sm90_map(const mla_cuda_driver *driver, cuda_tensor_map *map, mla_dtype dtype, void *data,
                              int32_t rank, const int64_t *dim, const int64_t *stride, const uint32_t *box);

#endif
