/*
 * dense_few_combine_sm90.cu - folds the pieces of items that were cut, in their order, into o and lse.
 *
 * A task is 128 columns of 8 rows as one warp of the decode kernel has them: 32 columns in all, in two runs of 16. It is
 * four 8x8 blocks for write_blocks(). Where many items may be cut, a warp folds a task, or several; where few, each into
 * many pieces, up to eight warps share the pieces of one task.
 */
#include "dense_few_sm90.cuh"

namespace {

constexpr int n_thread = DENSE_FEW_SM90_COMBINE_THREADS, n_warp = n_thread / 32;

/* Pieces of an item, or of one half of its rows: of cuts first .. first + n - 1. n is 0 where nothing is cut. */
struct fold {
    int request, head, first, n, half;
};

/*
 * What the thread block has to fold, by the lengths, as the decode kernel has it. That has seen the end of all that came
 * before it, and so the lengths, when it lets this kernel begin. Called by all threads.
 */
__device__ __forceinline__ fold find_work(const dense_few_sm90_args &a, int index, int half)
{
    __shared__ int64_t scratch[n_warp];
    __shared__ fold work;
    if (threadIdx.x == 0) {
        work.n = 0;
    }
    const line_input in = few_line(a);
    const line_share line = line_weigh<n_thread>(in, scratch);
    line_item item;
    bool found = false;
    if (a.fold_items) { /* a thread has one request at most */
        const int request = index / a.n_kv_head;
        found = line.begin <= request && request < line.end;
        item.request = request, item.copy = index % a.n_kv_head, item.length = line.length;
        item.tiles = line_tiles(line.length);
        item.at = line.before * a.n_kv_head + item.copy * line.mine;
    } else if (index + 1 < line.parts) {
        found = line_find(in, line, line_boundary(in, line, index + 1), item);
    }
    if (found) {
        const line_cuts cuts = line_cuts_of(in, line, item);
        if (a.fold_items || cuts.first == index + 1) {
            work = {item.request, item.copy, cuts.first, cuts.n, half};
        }
    }
    __syncthreads();
    return work;
}

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

/* Where piece i of an item is. */
__device__ __forceinline__ int64_t place_of(const dense_few_sm90_args &a, const fold &here, int i)
{
    return (int64_t)line_piece(here.first, i) * a.n_half + here.half;
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
    __device__ __forceinline__ void load(const dense_few_sm90_args &a, const fold &here, int i, float4 (&x)[2]) const
    {
        const float4 *from = reinterpret_cast<const float4 *>(a.piece_o) + place_of(a, here, i) * (rows * 128) + at;
        x[0] = __ldcg(from), x[1] = __ldcg(from + rows / 8 * 128);
    }
};

template <typename T, int rows>
__device__ __forceinline__ void write(const dense_few_sm90_args &a, const fold &at, const task_place<rows> &task,
                                      const float4 (&o)[2])
{
    uint32_t v[4] = {pack(o[0].x, o[0].y, T()), pack(o[0].z, o[0].w, T()), pack(o[1].x, o[1].y, T()),
                     pack(o[1].z, o[1].w, T())};
    write_blocks<T>(a, v, at.request, at.head, at.half * rows + task.j * 8, task.pair, task.warp, threadIdx.x % 32);
}

/* Weights of pieces, rows side by side, from their lse. n_thread / rows threads a row. */
template <int rows>
__device__ __forceinline__ void weigh(const dense_few_sm90_args &a, float (*weight)[rows], const fold &here, bool tells)
{
    constexpr int sharing = n_thread / rows;
    const int row = threadIdx.x / sharing, first = threadIdx.x % sharing;
    float top = -INFINITY, sum = 0.0f;
#pragma unroll 1
    for (int i = first; i <= here.n; i += sharing) {
        top = fmaxf(top, weight[i][row]);
    }
#pragma unroll
    for (int d = sharing / 2; d > 0; d /= 2) {
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    }
    const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll 1
    for (int i = first; i <= here.n; i += sharing) {
        const float e = exp2f(weight[i][row] - base);
        weight[i][row] = e;
        sum += e;
    }
#pragma unroll
    for (int d = sharing / 2; d > 0; d /= 2) {
        sum += __shfl_xor_sync(~0u, sum, d);
    }
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll 1
    for (int i = first; i <= here.n; i += sharing) {
        weight[i][row] *= inverse;
    }
    const int of_item = here.half * rows + row;
    if (tells && a.lse && first == 0 && of_item < a.n_row) {
        a.lse[few_row_offset(a, a.lse_stride, here.request, here.head, of_item)] =
            sum == 0.0f ? a.lse_empty : (base + log2f(sum)) * a.lse_unit;
    }
}

template <int rows> union combine_shared {
    float weight[DENSE_FEW_SM90_MAX_PART][rows];
    float4 partial[n_warp][32][2]; /* after it */
};

template <typename T, int rows>
__device__ __forceinline__ void fold_pieces(const dense_few_sm90_args &a, combine_shared<rows> &sh, const fold &here,
                                            int chunk)
{
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    /* the first pieces are on their way while the weights are made */
    const int share = a.combine_share, sharer = warp % share, next_task = a.combine_chunks * n_warp;
    int index = (chunk * n_warp + warp) / share;
    /* a pair is one warp's, as the decode kernel folds it */
    const int step = here.n == 1 ? 1 : share, begin = here.n == 1 && sharer > 0 ? 2 : sharer;
    constexpr int ahead = 3; /* pieces; more registers would not fit beside the decode kernel */
    float4 x[ahead][2];
    const auto load = [&](const task_place<rows> &task, int from) {
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            if (from + i * step <= here.n) {
                task.load(a, here, from + i * step, x[i]);
            }
        }
    };
    load(task_place<rows>(index), begin);
#pragma unroll 4
    for (int i = thread; i < (here.n + 1) * rows; i += n_thread) {
        sh.weight[i / rows][i % rows] = __ldcg(a.piece_lse + place_of(a, here, i / rows) * rows + i % rows);
    }
    __syncthreads();
    weigh<rows>(a, sh.weight, here, chunk == 0);
    __syncthreads();

    bool loaded = true;
#pragma unroll 1
    do { /* tasks: one, if warps share it */
        const task_place<rows> task(index);
        float4 o[2] = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
#pragma unroll 1
        for (int from = begin; from <= here.n; from += ahead * step, loaded = false) {
            if (!loaded) {
                load(task, from);
            }
#pragma unroll
            for (int i = 0; i < ahead; i++) {
                if (from + i * step <= here.n) {
                    const float w0 = sh.weight[from + i * step][task.row],
                                w1 = sh.weight[from + i * step][task.row + 1];
                    add_weighted(o[0], x[i][0], w0, w1);
                    add_weighted(o[1], x[i][1], w0, w1);
                }
            }
        }
        if (share > 1) {
            __syncthreads();
            sh.partial[warp][lane][0] = o[0], sh.partial[warp][lane][1] = o[1];
            __syncthreads();
            if (sharer > 0) {
                break;
            }
#pragma unroll 1
            for (int w = 1; w < step; w++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float4 y = sh.partial[warp + w][lane][i];
                    o[i].x += y.x, o[i].y += y.y, o[i].z += y.z, o[i].w += y.w;
                }
            }
        }
        write<T, rows>(a, here, task, o);
        index += next_task;
    } while (share == 1 && index < DENSE_FEW_SM90_TASKS(rows));
}

template <typename T, int rows> __device__ __forceinline__ void combine(const dense_few_sm90_args &a)
{
    __shared__ combine_shared<rows> sh;
    static_assert(sizeof sh + DENSE_FEW_SM90_SHARED_BYTES(rows, 576) + 3 * 1024 <= 228 * 1024,
                  "no room beside the decode kernel");
    const int chunk = blockIdx.x % a.combine_chunks;
    launch_dependents();
    const int item = blockIdx.x / a.combine_chunks; /* or a half of one */
    const fold here = find_work(a, item / a.n_half, item % a.n_half);
    if (here.n == 0 && blockIdx.x > 0) {
        return;
    }
    wait_for_prerequisites(); /* whoever waits for this kernel waits for the decode kernel as well, by thread block 0 */
    if (here.n == 0) {
        return;
    }
    if constexpr (few_folds_pairs<rows>) {
        if (here.n == 1 && __ldcg(a.arrived + here.first) == DENSE_FEW_SM90_FOLDED) {
            return;
        }
        if (chunk == 0 && here.half == 0) { /* what came too late, and what nobody waits for */
            for (int i = threadIdx.x; i < here.n; i += n_thread) {
                a.arrived[here.first + i] = 0;
            }
        }
    }
    fold_pieces<T, rows>(a, sh, here, chunk);
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
