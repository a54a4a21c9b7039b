/*
 * dense_plan_sm90.cu - what goes before and after the dense decode kernel: dividing the tiles, folding split requests.
 */
#include "dense_sm90.h"
#include "sm90_ptx.cuh"

/* --- plan --- */

namespace {

constexpr int shortest_piece = 2; /* tiles; shorter pieces of a longer request cost more than they spread */

__device__ __forceinline__ int tiles_of(int length)
{
    return max((length + 63) / 64, 1);
}

/*
 * Deals the requests out in order to parts of `capacity` quarter tiles, cutting where a part is full. Returns how many
 * parts that takes and, in pieces, how many pieces the split requests have. With `plan` it also writes the plan.
 */
__device__ int deal(const int *length, int n_seq, int capacity, int segment_cost, int n_part, int *pieces,
                    int32_t *plan)
{
    int32_t *part = plan ? plan + DENSE_SM90_PLAN_HEADER : nullptr;
    int32_t *request = plan ? part + n_part * DENSE_SM90_PLAN_PART : nullptr;
    int32_t *split = plan ? request + n_seq * DENSE_SM90_PLAN_REQUEST : nullptr;
    int n_piece = 0, n_split = 0, room = capacity, at = 0;
    bool empty = true; /* nothing in part `at` yet */
    for (int i = 0; i < n_seq; i++) {
        const int tiles = tiles_of(length[i]);
        int done = 0, cut = 0;
        while (done < tiles) {
            const int left = tiles - done;
            const int fit = (room - segment_cost) >> 2; /* tiles that still fit */
            int take = left;
            if (fit < left) {
                take = min(fit, left - shortest_piece); /* leaves no crumb for the next part */
                if (take < shortest_piece) {
                    take = empty ? min(left, max(fit, 1)) : 0;
                }
            }
            if (take > 0) {
                if (plan) {
                    int32_t *p = part + at * DENSE_SM90_PLAN_PART;
                    if (empty) {
                        p[0] = i, p[1] = done, p[4] = cut;
                    }
                    p[2] = i, p[3] = done + take;
                }
                empty = false;
                done += take;
                cut++;
                room -= segment_cost + 4 * take;
            }
            if (done < tiles) {
                if (++at >= n_part && plan) {
                    at = n_part - 1; /* cannot be: the capacity was tried before */
                }
                room = capacity;
                empty = true;
            }
        }
        if (plan) {
            int32_t *r = request + i * DENSE_SM90_PLAN_REQUEST;
            r[0] = length[i], r[1] = cut > 1 ? n_piece : -1, r[2] = cut, r[3] = 0;
            if (cut > 1) {
                split[n_split] = i;
            }
        }
        if (cut > 1) {
            n_split++;
            n_piece += cut;
        }
    }
    *pieces = n_piece;
    if (plan) {
        for (int p = at + 1; p < n_part; p++) {
            int32_t *q = part + p * DENSE_SM90_PLAN_PART;
            q[0] = 0, q[1] = 0, q[2] = -1, q[3] = 0, q[4] = 0;
        }
        plan[0] = n_split, plan[1] = n_piece, plan[2] = capacity, plan[3] = at + 1;
    }
    return at + 1;
}

} // namespace

/* One CTA. Every thread tries another capacity; the cheapest that fits is dealt out. */
extern "C" __global__ void __launch_bounds__(DENSE_SM90_PLAN_THREADS)
    dense_sm90_plan(const __grid_constant__ dense_sm90_plan_args a)
{
    constexpr int cached = 8192;
    __shared__ int length[cached];
    __shared__ int best[DENSE_SM90_PLAN_THREADS / 32];
    __shared__ long long cost[DENSE_SM90_PLAN_THREADS / 32];
    __shared__ long long total;
    __shared__ int longest;
    const int thread = threadIdx.x;
    if (thread == 0) {
        total = 0;
        longest = 0;
    }
    __syncthreads();
    /* lengths beyond the cache are kept in the plan itself, where they go anyway */
    int *all = a.n_seq <= cached ? length
                                 : a.plan + DENSE_SM90_PLAN_HEADER + a.n_part * DENSE_SM90_PLAN_PART +
                                       a.n_seq * DENSE_SM90_PLAN_REQUEST + a.n_part;
    long long mine = 0;
    int long_mine = 0;
    for (int i = thread; i < a.n_seq; i += DENSE_SM90_PLAN_THREADS) {
        const int n = min(max(a.length[i], 0), a.max_length);
        all[i] = n;
        mine += 4 * tiles_of(n) + a.segment_cost;
        long_mine = max(long_mine, tiles_of(n));
    }
    atomicAdd((unsigned long long *)&total, (unsigned long long)mine);
    atomicMax(&longest, long_mine);
    __syncthreads();

    /* capacities from the least that could do to the least with which nothing is split, evenly */
    const long long least = max((total + a.n_part - 1) / a.n_part, (long long)a.segment_cost + 4);
    const long long most = max(least + DENSE_SM90_PLAN_THREADS / 2, (long long)4 * longest + a.segment_cost);
    const int capacity = (int)(least + (most - least) * thread / (DENSE_SM90_PLAN_THREADS - 1));
    int pieces;
    const int parts = deal(all, a.n_seq, capacity, a.segment_cost, a.n_part, &pieces, nullptr);
    long long c = parts <= a.n_part ? (long long)capacity * 64 + (long long)pieces * a.piece_cost_64 : 1ll << 62;
    int who = thread;
    for (int d = 16; d > 0; d >>= 1) {
        const long long c2 = __shfl_down_sync(~0u, c, d);
        const int w2 = __shfl_down_sync(~0u, who, d);
        if (c2 < c) {
            c = c2, who = w2;
        }
    }
    if (thread % 32 == 0) {
        cost[thread / 32] = c, best[thread / 32] = who;
    }
    __syncthreads();
    if (thread == 0) {
        int w = 0;
        for (int i = 1; i < DENSE_SM90_PLAN_THREADS / 32; i++) {
            w = cost[i] < cost[w] ? i : w;
        }
        int chosen =
            cost[w] < 1ll << 62 ? (int)(least + (most - least) * best[w] / (DENSE_SM90_PLAN_THREADS - 1)) : (int)most;
        while (deal(all, a.n_seq, chosen, a.segment_cost, a.n_part, &pieces, nullptr) > a.n_part) {
            chosen += chosen / 4 + 1; /* none of the capacities tried was enough: many small requests */
        }
        deal(all, a.n_seq, chosen, a.segment_cost, a.n_part, &pieces, a.plan);
    }
}

/* --- combine --- */

namespace {

constexpr int most_pieces = 256; /* of one request; parts are at most the SMs */

/*
 * A CTA folds `combine_columns` (1, 8 or 64) of the 64 blocks of 8 columns of 16 rows: its 8 warps take one block after
 * the other, or all the pieces of a single block. Pieces lie in the order of the accumulators, so every load is 512
 * contiguous bytes.
 */
/* Pieces begin, begin + step, ... of one block of columns; an empty piece must not touch the sum. */
__device__ __forceinline__ float4 fold(const float4 *from, int64_t stride, const float (*weight)[16], int begin, int n,
                                       int step, int lane)
{
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int i = begin; i < n; i += step) {
        const float4 x = __ldcg(from + i * stride);
        const float w0 = weight[i][lane / 4], w1 = weight[i][lane / 4 + 8];
        o.x += w0 == 0.0f ? 0.0f : w0 * x.x, o.y += w0 == 0.0f ? 0.0f : w0 * x.y;
        o.z += w1 == 0.0f ? 0.0f : w1 * x.z, o.w += w1 == 0.0f ? 0.0f : w1 * x.w;
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
    __shared__ float weight[most_pieces][16];
    __shared__ float4 partial[8][32];
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
    /* the plan is older than the kernel before this one, so it need not wait for it */
    const int32_t *requests = a.plan + DENSE_SM90_PLAN_HEADER + a.n_part * DENSE_SM90_PLAN_PART;
    const bool nothing = index >= a.plan[0] || first_token >= a.n_q || first_row >= a.row_per_token;
    const int request = nothing ? 0 : requests[a.n_seq * DENSE_SM90_PLAN_REQUEST + index];
    const int first = requests[request * DENSE_SM90_PLAN_REQUEST + 1],
              n = requests[request * DENSE_SM90_PLAN_REQUEST + 2];
    wait_for_prerequisites();
    if (nothing) {
        return;
    }
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

    { /* weights: 16 threads a row */
        const int row = thread / 16, part = thread % 16;
        const float *lse = a.piece_lse + ((int64_t)first * n_block + block) * 64 + quarter * 16 + row;
        float top = -INFINITY;
        for (int i = part; i < n; i += 16) {
            const float x = lse[(int64_t)i * n_block * 64];
            weight[i][row] = x;
            top = fmaxf(top, x);
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
        if (a.lse && chunk == 0 && part == 0 && first_row + row < a.row_per_token) {
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
    const float4 *from =
        reinterpret_cast<const float4 *>(a.piece_o) + (((int64_t)first * n_block + block) * 4 + quarter) * 2048;
    if (a.combine_columns == 1) { /* the warps share the pieces */
        partial[warp][lane] = fold(from + chunk * 32 + lane, stride, weight, warp, n, 8, lane);
        __syncthreads();
        if (warp == 0) {
            float4 o = partial[0][lane];
            for (int i = 1; i < 8; i++) {
                const float4 x = partial[i][lane];
                o.x += x.x, o.y += x.y, o.z += x.z, o.w += x.w;
            }
            write<T>(a, o, request, kv_head, first_token, first_row, chunk, lane);
        }
    } else {
#pragma unroll 4
        for (int i = warp; i < a.combine_columns; i += 8) {
            const int column = chunk * a.combine_columns + i;
            write<T>(a, fold(from + column * 32 + lane, stride, weight, 0, n, 1, lane), request, kv_head, first_token,
                     first_row, column, lane);
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
