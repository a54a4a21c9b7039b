/*
 * dense_few_combine_sm90.cu - folds the pieces of items that were cut, in their order, into o and lse.
 *
 * A task is 128 columns of 8 rows as one warp of the decode kernel has them: 32 columns in all, in two runs of 16. It is
 * four 8x8 blocks for write_blocks(). Where many items may be cut, a warp folds a task; where few, each into many pieces,
 * the eight warps of a thread block share the pieces of one task.
 */
#include "dense_few_sm90.cuh"

namespace {

constexpr int n_thread = DENSE_FEW_SM90_COMBINE_THREADS, n_warp = n_thread / 32;

/*
 * Four blocks of 8 columns and 8 rows, as accumulators have them: block k in v[k], two rows of one column a word, are
 * columns 64 (pair * 2 + k / 2) + 16 warp + 8 (k % 2) on. Writes them to o, 16 bytes a lane.
 */
template <typename T>
__device__ __forceinline__ void write_blocks(const dense_few_sm90_args &a, uint32_t (&v)[4], int request, int kv_head,
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

__device__ __forceinline__ void add_weighted(float4 &o, const float4 &x, float w0, float w1)
{
    o.x = fmaf(w0, x.x, o.x), o.y = fmaf(w1, x.y, o.y);
    o.z = fmaf(w0, x.z, o.z), o.w = fmaf(w1, x.w, o.w);
}

/* The two accumulators of a task that a lane folds, and where they are in a piece. */
template <int rows> struct task_place {
    int warp, j, pair, row;
    int64_t at;

    __device__ __forceinline__ task_place(int task)
    {
        const int lane = threadIdx.x % 32;
        warp = task % 4, j = task / 4 % (rows / 8), pair = task / 4 / (rows / 8);
        row = 8 * j + lane % 4 * 2;
        at = ((2 * pair * (rows / 8) + j) * 4 + warp) * 32 + lane;
    }
    __device__ __forceinline__ void load(const dense_few_sm90_args &a, int first_cut, int i, float4 (&x)[2]) const
    {
        const float4 *from =
            reinterpret_cast<const float4 *>(a.piece_o) + (int64_t)line_piece(first_cut, i) * (rows * 128) + at;
        x[0] = __ldcg(from), x[1] = __ldcg(from + rows / 8 * 128);
    }
};

template <typename T, int rows>
__device__ __forceinline__ void write(const dense_few_sm90_args &a, const dense_few_sm90_fold &at,
                                      const task_place<rows> &task, const float4 (&o)[2])
{
    uint32_t v[4] = {pack(o[0].x, o[0].y, T()), pack(o[0].z, o[0].w, T()), pack(o[1].x, o[1].y, T()),
                     pack(o[1].z, o[1].w, T())};
    write_blocks<T>(a, v, at.request, at.head, task.j * 8, task.pair, task.warp, threadIdx.x % 32);
}

template <typename T, int rows> __device__ __forceinline__ void combine(const dense_few_sm90_args &a)
{
    __shared__ union {
        float weight[DENSE_FEW_SM90_MAX_PART][rows];
        float4 partial[n_warp][32][2]; /* after it */
    } sum_up;
    float(&weight)[DENSE_FEW_SM90_MAX_PART][rows] = sum_up.weight;
    static_assert(sizeof sum_up + DENSE_FEW_SM90_SHARED_BYTES(rows, 576) + 3 * 1024 <= 228 * 1024,
                  "no room beside the decode kernel");
    const int chunk = blockIdx.x % a.combine_chunks;
    launch_dependents();
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    wait_for_prerequisites();
    const int4 words = __ldcg(reinterpret_cast<const int4 *>(a.to_fold + blockIdx.x / a.combine_chunks));
    const dense_few_sm90_fold here = {words.x, words.y, words.z, words.w};
    if (here.n == 0) {
        return;
    }
    if (few_folds_pairs<rows> && chunk == 0) { /* what came too late, and what nobody waits for */
        for (int i = thread; i < here.n; i += n_thread) {
            a.arrived[here.first + i] = 0;
        }
    }
    /* the first pieces are on their way while the weights are made */
    const task_place<rows> task(a.share_pieces ? chunk : chunk * n_warp + warp);
    constexpr int ahead = rows == 32 ? 2 : 3; /* pieces; more registers would not fit beside the decode kernel */
    const int begin = a.share_pieces ? warp : 0, step = a.share_pieces ? n_warp : 1;
    float4 x[ahead][2];
#pragma unroll
    for (int i = 0; i < ahead; i++) {
        if (begin + i * step <= here.n) {
            task.load(a, here.first, begin + i * step, x[i]);
        }
    }

    { /* weights: n_thread / rows threads a row */
        constexpr int sharing = n_thread / rows;
        const int row = thread / sharing, first = thread % sharing;
        constexpr int most = (DENSE_FEW_SM90_MAX_PART + sharing - 1) / sharing;
        float e[most], top = -INFINITY;
#pragma unroll
        for (int i = 0; i < most; i++) {
            const int piece = i * sharing + first;
            e[i] =
                piece <= here.n ? __ldcg(a.piece_lse + (int64_t)line_piece(here.first, piece) * rows + row) : -INFINITY;
            top = fmaxf(top, e[i]);
        }
#pragma unroll
        for (int d = sharing / 2; d > 0; d /= 2) {
            top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        }
        const float base = top == -INFINITY ? 0.0f : top;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < most; i++) {
            e[i] = exp2f(e[i] - base);
            sum += e[i];
        }
#pragma unroll
        for (int d = sharing / 2; d > 0; d /= 2) {
            sum += __shfl_xor_sync(~0u, sum, d);
        }
        const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
        for (int i = 0; i < most; i++) {
            const int piece = i * sharing + first;
            if (piece <= here.n) {
                weight[piece][row] = e[i] * inverse;
            }
        }
        if (a.lse && chunk == 0 && first == 0 && row < a.n_row) {
            a.lse[few_row_offset(a, a.lse_stride, here.request, here.head, row)] =
                sum == 0.0f ? a.lse_empty : (base + log2f(sum)) * a.lse_unit;
        }
    }
    __syncthreads();

    float4 o[2] = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
    for (int from = begin; from <= here.n; from += ahead * step) {
        if (from > begin) {
#pragma unroll
            for (int i = 0; i < ahead; i++) {
                if (from + i * step <= here.n) {
                    task.load(a, here.first, from + i * step, x[i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            if (from + i * step <= here.n) {
                const float w0 = weight[from + i * step][task.row], w1 = weight[from + i * step][task.row + 1];
                add_weighted(o[0], x[i][0], w0, w1);
                add_weighted(o[1], x[i][1], w0, w1);
            }
        }
    }
    if (!a.share_pieces) {
        write<T, rows>(a, here, task, o);
        return;
    }
    __syncthreads();
    sum_up.partial[warp][lane][0] = o[0], sum_up.partial[warp][lane][1] = o[1];
    __syncthreads();
    if (warp == 0) {
        for (int w = 1; w < n_warp; w++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float4 x = sum_up.partial[w][lane][i];
                o[i].x += x.x, o[i].y += x.y, o[i].z += x.z, o[i].w += x.w;
            }
        }
        write<T, rows>(a, here, task, o);
    }
}

} // namespace

#define DENSE_FEW_SM90_COMBINE(name, type, rows)                                    \
    extern "C" __global__ void __launch_bounds__(DENSE_FEW_SM90_COMBINE_THREADS, 4) \
        name(const __grid_constant__ dense_few_sm90_args args)                      \
    {                                                                               \
        combine<type, rows>(args);                                                  \
    }

DENSE_FEW_SM90_COMBINE(dense_few_sm90_combine_bf16_8, __nv_bfloat16, 8)
DENSE_FEW_SM90_COMBINE(dense_few_sm90_combine_bf16_16, __nv_bfloat16, 16)
DENSE_FEW_SM90_COMBINE(dense_few_sm90_combine_bf16_32, __nv_bfloat16, 32)
DENSE_FEW_SM90_COMBINE(dense_few_sm90_combine_f16_8, __half, 8)
DENSE_FEW_SM90_COMBINE(dense_few_sm90_combine_f16_16, __half, 16)
DENSE_FEW_SM90_COMBINE(dense_few_sm90_combine_f16_32, __half, 32)
