/*
 * dense_combine_sm90.cu - folds the pieces of requests that many thread blocks of the decode kernel have computed.
 */
#include "dense_line_sm90.cuh"
#include "dense_sm90.h"
#include "sm90_ptx.cuh"

namespace {

constexpr int most_pieces = DENSE_SM90_MAX_PART; /* of one request */

/* Weights of a piece's 16 rows, one number apart from the next piece's, so that neither way through them meets itself in
 * a bank. */
using row_numbers = float[17];

/*
 * A CTA folds `combine_columns` (1, 8, 16 or 64) of the 64 blocks of 8 columns of 16 rows: its 8 warps take one block after
 * the other, or all the pieces of a single block. Pieces lie in the order of the accumulators, so every load is 512
 * contiguous bytes.
 */

/* Pieces begin, begin + step, ... of one block of columns, both operations rounded, as in the decode kernel. */
__device__ __forceinline__ float4 fold(const float4 *from, int64_t stride, const row_numbers *weight, int first_cut,
                                       int begin, int n, int step, int lane)
{
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int i = begin; i < n; i += step) {
        const float4 x = __ldcg(from + line_piece(first_cut, i) * stride);
        const float w0 = weight[i][lane / 4], w1 = weight[i][lane / 4 + 8];
        const float4 p = make_float4(__fmul_rn(w0, x.x), __fmul_rn(w0, x.y), __fmul_rn(w1, x.z), __fmul_rn(w1, x.w));
        o = i == begin
                ? p
                : make_float4(__fadd_rn(o.x, p.x), __fadd_rn(o.y, p.y), __fadd_rn(o.z, p.z), __fadd_rn(o.w, p.w));
    }
    return o;
}

template <typename T>
__device__ __forceinline__ void write(const dense_sm90_args &a, float4 o, int request, int kv_head, int first_token,
                                      int first_row, int column, int lane)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = first_row + lane / 4 + 8 * i, token = first_token + r / a.head_per_kv,
                  head = kv_head * a.head_per_kv + r % a.head_per_kv;
        if (r < a.row_per_token && token < a.n_q) {
            T *to = static_cast<T *>(a.o) + request * a.o_stride[0] + token * a.o_stride[1] + head * a.o_stride[2] +
                    column * 8 + lane % 4 * 2;
            *reinterpret_cast<uint32_t *>(to) = i ? pack(o.z, o.w, T()) : pack(o.x, o.y, T());
        }
    }
}

template <typename T> __device__ __forceinline__ void combine(const dense_sm90_args &a)
{
    __shared__ row_numbers weight[most_pieces];
    __shared__ float4 partial[8][32];
    __shared__ int4 what; /* request, first cut, pieces, halves that are folded already */
    const int n_chunk = 64 / a.combine_columns;
    int id = blockIdx.x;
    const int chunk = id % n_chunk;
    id /= n_chunk;
    const int quarter = id % 4;
    id /= 4;
    const int n_block = a.n_group, block = id % n_block, index = id / n_block;

    /* the row block's place, as in the decode kernel */
    const int kv_head = block / a.block_per_head, in_head = block % a.block_per_head;
    const int first_token = in_head / a.block_per_token, first_row = in_head % a.block_per_token * 64 + quarter * 16;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    /* words of the warps that had these 16 rows, by half */
    uint64_t *word = a.word + (int64_t)block * 8 + quarter;
    const auto word_of = [&](int first_cut, int piece, int half) {
        return word + (int64_t)line_piece(first_cut, piece) * n_block * 8 + half * 4;
    };
    launch_dependents();
    wait_for_prerequisites();
    if (first_token >= a.n_q || first_row >= a.row_per_token) {
        return;
    }
    /* One thread asks for what all need: hundreds of thread blocks want the same few lines at the same time, and L2
     * answers one after the other. */
    if (thread == 0) {
        int4 task = __ldcg(a.to_fold + index);
        if (task.z > 0 && task.z <= DENSE_SM90_MOST_FOLDED) { /* else the decode kernel has not folded them */
            const uint64_t first = __ldcg(word_of(task.y, 0, 0)), second = __ldcg(word_of(task.y, 0, 1));
            task.w = (first == DENSE_SM90_FOLDED) + 2 * (second == DENSE_SM90_FOLDED);
        }
        what = task;
    }
    __syncthreads();
    const int request = what.x, first_cut = what.y, n = what.z, folded = what.w;
    if (chunk == 0) {
        for (int i = thread; i < 2 * (n - 1); i += DENSE_SM90_COMBINE_THREADS) {
            *word_of(first_cut, 1 + i / 2, i % 2) = 0;
        }
    }
    if (n == 0 || folded == 3) {
        return;
    }

    { /* lse: 16 threads a piece, so that they are few requests too */
        const int row = thread % 16;
        const float *lse = a.piece_lse + (int64_t)block * 64 + quarter * 16 + row;
        constexpr int together = 5; /* 132 multiprocessors make 66 pieces of two row blocks */
        for (int begin = thread / 16; begin < n; begin += 16 * together) {
            float x[together];
#pragma unroll
            for (int j = 0; j < together; j++) {
                const int i = begin + 16 * j;
                x[j] = i < n ? __ldcg(lse + (int64_t)line_piece(first_cut, i) * n_block * 64) : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < together; j++) {
                if (begin + 16 * j < n) {
                    weight[begin + 16 * j][row] = x[j];
                }
            }
        }
    }
    __syncthreads();
    { /* weights: 16 threads a row */
        const int row = thread / 16, part = thread % 16;
        float top = -INFINITY;
        for (int i = part; i < n; i += 16) {
            top = fmaxf(top, weight[i][row]);
        }
        for (int d = 8; d > 0; d >>= 1) {
            top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        }
        const float base = top == -INFINITY ? 0.0f : top;
        float sum = 0.0f;
        for (int i = part; i < n; i += 16) {
            sum += exp2f(weight[i][row] - base);
        }
        for (int d = 8; d > 0; d >>= 1) {
            sum += __shfl_xor_sync(~0u, sum, d);
        }
        const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        for (int i = part; i < n; i += 16) {
            weight[i][row] = weight[i][row] == -INFINITY ? 0.0f : exp2f(weight[i][row] - base) * inverse;
        }
        if (a.lse && !(folded & 1) && chunk == 0 && part == 0 && first_row + row < a.row_per_token) {
            const int r = first_row + row, token = first_token + r / a.head_per_kv,
                      head = kv_head * a.head_per_kv + r % a.head_per_kv;
            if (token < a.n_q) {
                a.lse[request * a.lse_stride[0] + token * a.lse_stride[1] + head * a.lse_stride[2]] =
                    sum == 0.0f ? a.lse_empty : (base + log2f(sum)) * a.lse_unit;
            }
        }
    }
    __syncthreads();

    const int64_t stride = (int64_t)n_block * 8 * 1024;
    const float4 *from = reinterpret_cast<const float4 *>(a.piece_o) + ((int64_t)block * 4 + quarter) * 2048;
    if (a.combine_columns == 1) { /* the warps share the pieces */
        if (folded >> (chunk / 32) & 1) {
            return;
        }
        partial[warp][lane] = fold(from + chunk * 32 + lane, stride, weight, first_cut, warp, n, 8, lane);
        __syncthreads();
        if (warp == 0) {
            float4 o = partial[0][lane];
            for (int i = 1; i < min(n, 8); i++) {
                const float4 x = partial[i][lane];
                o.x += x.x, o.y += x.y, o.z += x.z, o.w += x.w;
            }
            write<T>(a, o, request, kv_head, first_token, first_row, chunk, lane);
        }
    } else {
#pragma unroll 4
        for (int i = warp; i < a.combine_columns; i += 8) {
            const int column = chunk * a.combine_columns + i;
            if (folded >> (column / 32) & 1) {
                continue;
            }
            write<T>(a, fold(from + column * 32 + lane, stride, weight, first_cut, 0, n, 1, lane), request, kv_head,
                     first_token, first_row, column, lane);
        }
    }
}

} // namespace

#define DENSE_SM90_COMBINE(name, type)                                       \
    extern "C" __global__ void __launch_bounds__(DENSE_SM90_COMBINE_THREADS) \
        name(const __grid_constant__ dense_sm90_args args)                   \
    {                                                                        \
        combine<type>(args);                                                 \
    }

DENSE_SM90_COMBINE(dense_sm90_combine_bf16, __nv_bfloat16)
DENSE_SM90_COMBINE(dense_sm90_combine_f16, __half)
