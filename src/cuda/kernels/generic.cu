/*
 * generic.cu - attention for every problem, in fp32 arithmetic: correct first, then fast enough.
 *
 * A thread block takes up to R rows (query token, query head) of one sequence that share a kv head, and one part of
 * their keys. It walks over these in blocks of 64. A block's columns pass through shared memory 64 at a time, as fp32:
 * once to be multiplied with the queries, once more as values. Formats end where a column chunk enters shared memory;
 * addresses, pages and lists end in the table of the block's rows. The next chunk is on its way while one is used.
 *
 * Parts meet in mla_generic_combine. How many of them are in use follows from the lengths, on the device; the grid is
 * made for the most there can be, and thread blocks without work end at once.
 *
 * Order of additions is fixed: equal inputs on the same GPU give equal bits. With part_blocks it is fixed for each row by
 * its own keys: parts and key blocks lie at fixed places, a key that a row does not see leaves its sums alone, and a part
 * without keys has no weight.
 */
#include "tile.cuh"

/* Finds the rows of 64 keys from index `at` on. */
template <int R>
__device__ void find_block(mla_shared<R> &sh, const mla_cuda_problem &p, const mla_cuda_segment &g,
                           const mla_row_block &b, int64_t kv_head, int64_t at, int64_t end)
{
    int i = threadIdx.x;
    if (i >= MLA_CUDA_KEYS) {
        return;
    }
    int64_t position = at + i, page = 0, slot = 0;
    const bool found = at + i < end && find_key(sh, p, g, b, at + i, position, page, slot);
    const mla_key_place place = found ? mla_place_of(g, page, slot, kv_head) : mla_key_place{-1, 0, 0};
    mla_keep_place(sh.k_at, sh.rope_at, sh.v_at, i, place);
    sh.position[i] = position;
}

/* Scores become probabilities; one warp has a row at a time. Returns whether some row that sees keys does not see one
 * that another may: values must then be kept apart. */
template <int R>
__device__ bool softmax_block(mla_shared<R> &sh, const mla_cuda_problem &p, const mla_cuda_segment &g,
                              const mla_row_block &b)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool apart = false;
    for (int row = warp; row < R; row += MLA_WARPS) {
        float s[2];
        bool seen[2];
        float m = sh.m[row], top = m, sum = 0;
        bool active = sh.begin[row] < sh.end[row];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int key = lane + 32 * i;
            int64_t position = sh.position[key];
            seen[i] = active && sh.k_at[key] >= 0;
            if (!g.list.data) {
                seen[i] = seen[i] && position >= sh.begin[row] && position < sh.end[row];
            }
            s[i] = sh.score[row * MLA_CUDA_STRIDE + key] * sh.scale[row];
            if (seen[i] && g.mask.data) {
                s[i] += mask_at(p, g, b, row, position, seen[i]);
            }
            top = seen[i] ? fmaxf(top, s[i]) : top; /* passes over NaN, which shows in the sum */
            apart = apart || (active && !seen[i] && sh.k_at[key] >= 0);
        }
#pragma unroll
        for (int x = 16; x > 0; x /= 2) {
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, x));
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            /* equality first: infinities must not meet in a subtraction; a score of -inf counts nothing */
            float w = s[i] == -INFINITY ? 0.0f : s[i] == top ? 1.0f : exp2f(s[i] - top);
            sum += seen[i] ? w : 0.0f;
            sh.score[row * MLA_CUDA_STRIDE + lane + 32 * i] = seen[i] ? w : active ? MLA_HIDDEN : 0.0f;
        }
#pragma unroll
        for (int x = 16; x > 0; x /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, x);
        }
        __syncwarp(); /* all lanes have read what lane 0 writes */
        if (lane == 0) {
            float f = m == top ? 1.0f : exp2f(m - top);
            sh.factor[row] = f;
            sh.m[row] = top;
            sh.l[row] = sh.l[row] * f + sum;
        }
        __syncwarp();
    }
    return apart;
}

/* The key blocks [from, to) of each segment that one part consists of, counted from the segment's first one. */
struct mla_share {
    int64_t from[MLA_MAX_SEGMENT], to[MLA_MAX_SEGMENT];
    int32_t n_used; /* parts in use, at least 1 */
};

/* Parts of equal size: both segments' blocks, one after the other. */
__device__ __forceinline__ mla_share equal_share(const mla_cuda_problem &p, const int64_t *n_block, int split)
{
    mla_share share;
    int64_t n = 0, before = 0;
    for (int g = 0; g < MLA_MAX_SEGMENT; g++) {
        n += n_block[g];
    }
    int64_t per = (n + p.n_split - 1) / p.n_split;
    per = per < MLA_CUDA_SPLIT_BLOCKS ? MLA_CUDA_SPLIT_BLOCKS : per;
    share.n_used = n > per ? (int32_t)((n + per - 1) / per) : 1;
    for (int g = 0; g < MLA_MAX_SEGMENT; g++) {
        share.from[g] = mla_clamp(split * per - before, 0, n_block[g]);
        share.to[g] = mla_clamp((split + 1) * per - before, 0, n_block[g]);
        before += n_block[g];
    }
    return share;
}

/* Parts of p.part_blocks blocks that begin at fixed places of a segment: what is added up before it meets other parts
 * depends on the row's own keys alone. */
__device__ __forceinline__ mla_share fixed_share(const mla_cuda_problem &p, const mla_key_span *span,
                                                 const int64_t *n_block, int split)
{
    mla_share share;
    int64_t n = 0;
    for (int g = 0; g < MLA_MAX_SEGMENT; g++) {
        const int64_t first = n_block[g] > 0 ? span[g].begin / MLA_CUDA_KEYS : 0;
        const int64_t first_part = first / p.part_blocks;
        const int64_t n_part = n_block[g] > 0 ? (first + n_block[g] - 1) / p.part_blocks + 1 - first_part : 0;
        const bool mine = split >= n && split < n + n_part;
        const int64_t part = first_part + split - n;
        share.from[g] = mine ? mla_clamp(part * p.part_blocks - first, 0, n_block[g]) : 0;
        share.to[g] = mine ? mla_clamp((part + 1) * p.part_blocks - first, 0, n_block[g]) : 0;
        n += n_part;
    }
    n = n < p.n_split ? n : p.n_split; /* unless lengths are larger than the shapes allow */
    share.n_used = n > 1 ? (int32_t)n : 1;
    return share;
}

__device__ __forceinline__ mla_share share_of(const mla_cuda_problem &p, const mla_key_span *span, int split)
{
    int64_t n_block[MLA_MAX_SEGMENT];
    for (int g = 0; g < MLA_MAX_SEGMENT; g++) {
        const int64_t keys = g < p.n_segment ? span[g].end - span[g].begin : 0;
        n_block[g] = (keys + MLA_CUDA_KEYS - 1) / MLA_CUDA_KEYS;
    }
    return p.part_blocks > 0 ? fixed_share(p, span, n_block, split) : equal_share(p, n_block, split);
}

template <int R> __device__ __forceinline__ void attend(const mla_cuda_problem &p)
{
    constexpr int N = mla_tile<R>::N, TX = mla_tile<R>::TX;
    extern __shared__ __align__(16) char memory[];
    mla_shared<R> &sh = *(mla_shared<R> *)memory;
    float *q_memory = (float *)(memory + sizeof(mla_shared<R>));
    const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    const int my_key = threadIdx.x / 4, my_column = threadIdx.x % 4 * 16;

    const mla_work work = mla_find_work(p);
    const int64_t block = work.block, kv_head = work.kv_head, column = work.column;
    const int split = work.split;
    const mla_row_block b = mla_find_rows(p, block, R);
    mla_key_span span[MLA_MAX_SEGMENT];
    for (int g = 0; g < p.n_segment; g++) {
        span[g] = mla_find_keys(p, p.segment[g], b);
    }
    const mla_share share = share_of(p, span, split);
    if (p.used_split && split == 0 && column == 0 && threadIdx.x == 0) {
        p.used_split[kv_head * p.n_block + block] = b.row_begin < b.row_end ? share.n_used : 0;
    }
    if (b.row_begin == b.row_end || split >= share.n_used) {
        return;
    }

    const mla_steps steps = mla_count_steps(p, column);
    const int n_nope = steps.n_nope, n_rope = steps.n_rope, n_value = steps.n_value, n_score = steps.n_score;
    const int q_stride = p.q_resident ? (n_nope + n_rope) * MLA_CUDA_CHUNK + 4 : MLA_CUDA_STRIDE;
    float o[MLA_CHUNKS][N * N];
#pragma unroll
    for (int c = 0; c < MLA_CHUNKS; c++) {
#pragma unroll
        for (int i = 0; i < N * N; i++) {
            o[c][i] = 0;
        }
    }
    for (int row = threadIdx.x; row < R; row += MLA_CUDA_THREADS) {
        sh.m[row] = -INFINITY;
        sh.l[row] = 0;
    }

    for (int g_index = 0; g_index < p.n_segment; g_index++) {
        const mla_cuda_segment &g = p.segment[g_index];
        const int64_t from = share.from[g_index], to = share.to[g_index];
        if (from >= to) {
            continue;
        }
        const float descale = g.descale ? g.descale[0] : 1.0f;
        __syncthreads(); /* the segment before is done with */
        for (int row = threadIdx.x; row < R; row += MLA_CUDA_THREADS) {
            set_row(sh, p, g, b, kv_head, row);
        }
        find_list_end(sh, g, b, p.group, span[g_index].end);
        if (p.q_resident) {
            for (int c = 0; c < n_nope + n_rope; c++) {
                bool rope = c >= n_nope;
                load_queries(sh, p, b, kv_head, (int64_t)(rope ? c - n_nope : c) * MLA_CUDA_CHUNK, rope,
                             q_memory + c * MLA_CUDA_CHUNK, q_stride);
            }
        }

        for (int64_t k = from; k < to; k++) {
            find_block(sh, p, g, b, kv_head, span[g_index].begin + k * MLA_CUDA_KEYS, span[g_index].end);
            __syncthreads();
            const mla_key_place key = {sh.k_at[my_key], sh.rope_at[my_key], sh.v_at[my_key]};
            mla_raw16 raw;
            raw.dtype = MLA_DTYPE_NONE;
            if (key.k_at >= 0) {
                fetch_columns(raw, p, g, key, MLA_PART_NOPE, my_column);
            }
            float s[N * N];
#pragma unroll
            for (int i = 0; i < N * N; i++) {
                s[i] = 0;
            }
            bool apart = false;
            /* a step per chunk: first those of the scores, then those of the values */
            for (int step = 0; step < n_score + n_value; step++) {
                int64_t c;
                mla_part part = part_of_step(step, n_nope, n_rope, column, c);
                put_columns(&sh.tile[my_key * MLA_CUDA_STRIDE + my_column], raw, p, g, key, part, c + my_column,
                            part == MLA_PART_VALUE ? descale : 1.0f);
                if (!p.q_resident && part != MLA_PART_VALUE) {
                    load_queries(sh, p, b, kv_head, c, part == MLA_PART_ROPE, q_memory, q_stride);
                }
                __syncthreads();
                if (key.k_at >= 0 && step + 1 < n_score + n_value) {
                    part = part_of_step(step + 1, n_nope, n_rope, column, c);
                    fetch_columns(raw, p, g, key, part, c + my_column);
                }
                if (step < n_score) {
                    if (step == n_nope) { /* what was summed so far is the nope part */
#pragma unroll
                        for (int i = 0; i < N * N; i++) {
                            s[i] *= sh.nope_scale[ty * N + i / N];
                        }
                    }
                    add_scores<R>(sh, q_memory + (p.q_resident ? step * MLA_CUDA_CHUNK : 0), q_stride, s, ty, tx);
                    if (step + 1 == n_score) {
                        const bool nope_only = n_rope == 0;
#pragma unroll
                        for (int i = 0; i < N * N; i++) {
                            float x = nope_only ? s[i] * sh.nope_scale[ty * N + i / N] : s[i];
                            sh.score[(ty * N + i / N) * MLA_CUDA_STRIDE + tx + i % N * TX] = x;
                        }
                        __syncthreads();
                        apart = __syncthreads_or(softmax_block<R>(sh, p, g, b)) != 0;
#pragma unroll
                        for (int i = 0; i < N; i++) {
                            const float f = sh.factor[ty * N + i];
                            if (f != 1.0f) {
#pragma unroll
                                for (int x = 0; x < MLA_CHUNKS * N; x++) {
                                    o[x / N][i * N + x % N] *= f;
                                }
                            }
                        }
                    }
                } else {
#pragma unroll
                    for (int x = 0; x < MLA_CHUNKS; x++) { /* o stays in registers: its indices are constants */
                        if (step - n_score == x) {
                            if (apart) {
                                add_values<R, true>(sh, sh.score, MLA_CUDA_STRIDE, o[x], ty, tx);
                            } else {
                                add_values<R, false>(sh, sh.score, MLA_CUDA_STRIDE, o[x], ty, tx);
                            }
                        }
                    }
                }
                __syncthreads();
            }
        }
    }
    __syncthreads(); /* m and l of rows that no block touched */

    /* results: to the caller, or to a slot */
    const bool direct = share.n_used == 1;
    float *slot = NULL;
    if (!direct) {
        slot = p.slot + ((kv_head * p.n_block + block) * p.n_split + split) * MLA_CUDA_SLOT_FLOATS(R, p.d_v);
    }
#pragma unroll 1
    for (int i = 0; i < N; i++) {
        const int row = ty * N + i;
        const int64_t r = b.row_begin + row;
        if (r >= b.row_end) {
            continue;
        }
        const int64_t token = b.first + r / p.group, head = kv_head * p.group + r % p.group;
        float factor = 1;
        if (direct) {
            mla_row_result result = mla_finish_row(p, head, sh.m[row], sh.l[row]);
            factor = result.factor;
            if (tx == 0 && column == 0) {
                mla_store_row(p, b.seq, token, head, result);
            }
        } else if (tx == 0 && column == 0) {
            slot[2 * row] = sh.m[row];
            slot[2 * row + 1] = sh.l[row];
        }
        const int64_t o_at = b.seq * p.o.stride[0] + token * p.o.stride[1] + head * p.o.stride[2];
#pragma unroll
        for (int c = 0; c < MLA_CHUNKS; c++) {
#pragma unroll
            for (int j = 0; j < N; j++) {
                const int64_t at = column + c * MLA_CUDA_CHUNK + tx * N + j;
                /* i is no constant here, and o must stay in registers */
                float x = o[c][j];
#pragma unroll
                for (int k = 1; k < N; k++) {
                    x = i == k ? o[c][k * N + j] : x;
                }
                if (at < p.d_v) {
                    if (direct) {
                        /* +0 where the factor is 0, whatever the sum holds */
                        mla_store_element(p.o.data, p.o.dtype, o_at + at, factor == 0 ? 0.0f : x * factor);
                    } else {
                        slot[2 * R + row * p.d_v + at] = x;
                    }
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(MLA_CUDA_THREADS, 2)
    mla_generic_4(const __grid_constant__ mla_cuda_problem p)
{
    attend<4>(p);
}

extern "C" __global__ void __launch_bounds__(MLA_CUDA_THREADS, 2)
    mla_generic_16(const __grid_constant__ mla_cuda_problem p)
{
    attend<16>(p);
}

extern "C" __global__ void __launch_bounds__(MLA_CUDA_THREADS, 1)
    mla_generic_64(const __grid_constant__ mla_cuda_problem p)
{
    attend<64>(p);
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

/* One row of one row block per thread block: the parts in use, in order. rows: R of the kernel that made them. */
extern "C" __global__ void __launch_bounds__(MLA_CUDA_THREADS)
    mla_generic_combine(const __grid_constant__ mla_cuda_problem p, int32_t rows)
{
    __shared__ float weight[MLA_CUDA_MAX_SPLIT];
    __shared__ float total[2];
    int64_t index = blockIdx.x;
    const int row = (int)(index % rows);
    index /= rows;
    const int64_t block = index % p.n_block, kv_head = index / p.n_block;
    const int32_t n = p.used_split[kv_head * p.n_block + block];
    if (n <= 1) {
        return; /* written by the one that had it */
    }
    const mla_row_block b = mla_find_rows(p, block, rows);
    const int64_t r = b.row_begin + row;
    if (r >= b.row_end) {
        return;
    }
    const int64_t slot_floats = MLA_CUDA_SLOT_FLOATS(rows, p.d_v);
    const float *slot = p.slot + (kv_head * p.n_block + block) * p.n_split * slot_floats;
    if (threadIdx.x == 0) {
        float m = -INFINITY, l = 0;
        for (int i = 0; i < n; i++) {
            m = fmaxf(m, slot[i * slot_floats + 2 * row]);
        }
        for (int i = 0; i < n; i++) {
            float part_m = slot[i * slot_floats + 2 * row], part_l = slot[i * slot_floats + 2 * row + 1];
            /* equality first: infinities must not meet in a subtraction. A part without keys is not looked at */
            float w = part_l == 0 ? 0.0f : part_m == m ? 1.0f : exp2f(part_m - m);
            weight[i] = w;
            l += part_l * w;
        }
        total[0] = m;
        total[1] = l;
    }
    __syncthreads();
    const int64_t token = b.first + r / p.group, head = kv_head * p.group + r % p.group;
    const mla_row_result result = mla_finish_row(p, head, total[0], total[1]);
    if (threadIdx.x == 0) {
        mla_store_row(p, b.seq, token, head, result);
    }
    const int64_t o_at = b.seq * p.o.stride[0] + token * p.o.stride[1] + head * p.o.stride[2];
    for (int64_t c = threadIdx.x; c < p.d_v; c += MLA_CUDA_THREADS) {
        float x = 0;
        for (int i = 0; i < n; i++) {
            if (weight[i] != 0) {
                x = fmaf(weight[i], slot[i * slot_floats + 2 * rows + row * p.d_v + c], x);
            }
        }
        mla_store_element(p.o.data, p.o.dtype, o_at + c, result.factor == 0 ? 0.0f : x * result.factor);
    }
}
