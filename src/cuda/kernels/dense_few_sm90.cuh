/*
 * dense_few_sm90.cuh - what the decode kernel for few rows and the kernel that folds its pieces share.
 */
#ifndef MLA_DENSE_FEW_SM90_CUH
#define MLA_DENSE_FEW_SM90_CUH

#include "dense_few_sm90.h"
#include "dense_line_sm90.cuh"
#include "sm90_ptx.cuh"

/* An item of the line is a request and a kv head. */
__device__ __forceinline__ line_input few_line(const dense_few_sm90_args &a)
{
    return {a.length, a.n_seq, a.max_length, a.n_kv_head, a.n_part, a.item_cost, 1};
}

/* In arrived[]. The decode kernel and the one that folds leave nothing of it behind when a call ends. */
constexpr uint64_t few_arrived_tag = 0x6d6c612066657721ull;

/* One piece more in a sum of pieces. Of a piece without keys, whose weight is zero, nothing is touched. */
__device__ __forceinline__ float few_add(float sum, float weight, float x)
{
    return weight == 0.0f ? sum : fmaf(weight, x, sum);
}

/* Token and head of a row of an item. */
__device__ __forceinline__ int64_t few_row_offset(const dense_few_sm90_args &a, const int64_t (&stride)[3], int request,
                                                  int kv_head, int row)
{
    const int token = a.n_q == 1 ? 0 : row / a.head_per_kv;
    const int head = kv_head * a.head_per_kv + row - token * a.head_per_kv;
    return request * stride[0] + token * stride[1] + head * stride[2];
}

/*
 * Four blocks of 8 columns and 8 rows, as accumulators have them: block k in v[k], two rows of one column a word, are
 * columns 64 (pair * 2 + k / 2) + 16 warp + 8 (k % 2) on. Writes them to o, 16 bytes a lane.
 */
template <typename T>
__device__ __forceinline__ void few_write(const dense_few_sm90_args &a, uint32_t (&v)[4], int request, int kv_head,
                                          int first_row, int pair, int warp, int lane)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        v[k] = transpose_matrix(v[k]);
    }
    quad_transpose(v, lane);
    const int row = first_row + lane / 4, column = (pair * 2 + (lane >> 1 & 1)) * 64 + warp * 16 + (lane & 1) * 8;
    if (row < a.n_row) {
        T *to = static_cast<T *>(a.o) + few_row_offset(a, a.o_stride, request, kv_head, row) + column;
        *reinterpret_cast<uint4 *>(to) = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

#endif
