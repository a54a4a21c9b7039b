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

/* Are the two pieces of an item that is cut once folded by the decode kernel, if time allows? With fewer rows they are
 * small, and what is said and asked about them takes longer than it saves. */
template <int rows> constexpr bool few_folds_pairs = rows >= 32;

/* Token and head of a row of an item. */
__device__ __forceinline__ int64_t few_row_offset(const dense_few_sm90_args &a, const int64_t (&stride)[3], int request,
                                                  int kv_head, int row)
{
    const int token = a.n_q == 1 ? 0 : row / a.head_per_kv;
    const int head = kv_head * a.head_per_kv + row - token * a.head_per_kv;
    return request * stride[0] + token * stride[1] + head * stride[2];
}

#endif
