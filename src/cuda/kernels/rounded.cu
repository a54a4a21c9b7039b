/*
 * rounded.cu - attention whose probabilities are rounded before they multiply the values, tile by tile, as
 * mla_p_rounding says in mla_problem.h. The order of tiles is part of the result, so the keys of a row are never cut
 * into parts, and a thread block has rows of one token only: they see the same keys, and so have the same tiles.
 *
 * A tile's keys are listed first, in order; then their scores, 64 keys at a time; then the tile's maximum and rounded
 * probabilities; then the products with the values, summed on their own: of int8 they are exact integers.
 */
#include "tile.cuh"

#define ROWS 16
#define P_STRIDE (MLA_CUDA_MAX_TILE + 4)

struct rounded_shared {
    mla_shared<ROWS> block;
    float p[ROWS * P_STRIDE]; /* [row][key of the tile]: scores, then rounded probabilities */
    int64_t k_at[MLA_CUDA_MAX_TILE], rope_at[MLA_CUDA_MAX_TILE], v_at[MLA_CUDA_MAX_TILE];
    int64_t position[MLA_CUDA_MAX_TILE];
    float unit[ROWS];               /* what a rounded probability is in units of, the segment's descale included */
    float key_m[ROWS], key_l[ROWS]; /* maximum and sum of the keys alone, without the sink, for lse */
    int64_t next;                   /* index behind the tile */
    int32_t n_key;                  /* keys of the tile */
};

/* The nearest HiFloat8 of x >= 0, ties away from zero. */
__device__ __forceinline__ float round_to_hif8(float x)
{
    uint32_t bits = __float_as_uint(x);
    if (bits < 0x34800000u) { /* below 2^-22, the least: 0, or from half of it on the least */
        return bits < 0x34000000u ? 0.0f : 0x1p-22f;
    }
    if (!(x < 40960.0f)) {
        return isnan(x) ? x : INFINITY;
    }
    int exponent = (int)(bits >> 23) - 127, size = exponent < 0 ? -exponent : exponent;
    int excess = size < 4 ? 20 : size < 8 ? 21 : size < 16 ? 22 : 23; /* bits of fraction that HiFloat8 has not */
    return __uint_as_float((bits + (1u << (excess - 1))) >> excess << excess);
}

/* A probability, or for INT8 one in units of its tile's, rounded. */
__device__ __forceinline__ float round_p(const mla_cuda_problem &p, float x)
{
    switch (p.p_rounding) {
    case MLA_P_ROUND_16BIT:
        return p.q.dtype == MLA_DTYPE_F16 ? __half2float(__float2half_rn(x)) : __bfloat162float(__float2bfloat16_rn(x));
    case MLA_P_ROUND_INT8: return rintf(__half2float(__float2half_rn(x)));
    default: return round_to_hif8(16 * x) / 16;
    }
}

/* Lists up to p_tile keys from index `at` on, in order. The first warp's work; all threads may read it after a
 * barrier. */
__device__ void find_tile(rounded_shared &sh, const mla_cuda_problem &p, const mla_cuda_segment &g,
                          const mla_row_block &b, int64_t kv_head, int64_t at, int64_t end)
{
    const int lane = threadIdx.x;
    if (lane >= 32) {
        return;
    }
    int n = 0;
    while (at < end && n < p.p_tile) {
        int64_t position = 0, page = 0, slot = 0;
        const bool found = at + lane < end && find_key(sh.block, p, g, b, at + lane, position, page, slot);
        const unsigned ballot = __ballot_sync(0xffffffffu, found);
        const int place = n + __popc(ballot & ((1u << lane) - 1));
        if (found && place < p.p_tile) {
            mla_keep_place(sh.k_at, sh.rope_at, sh.v_at, place, mla_place_of(g, page, slot, kv_head));
            sh.position[place] = position;
        }
        n += __popc(ballot);
        at += 32;
        if (n > p.p_tile) { /* go back to the first key that found no place */
            const unsigned late = __ballot_sync(0xffffffffu, found && place >= p.p_tile);
            at += __ffs(late) - 1 - 32;
            n = p.p_tile;
        }
    }
    if (lane == 0) {
        sh.n_key = n;
        sh.next = at;
    }
}

__device__ __forceinline__ mla_key_place key_at(const rounded_shared &sh, int i)
{
    if (i >= sh.n_key) {
        return {-1, 0, 0};
    }
    return {sh.k_at[i], sh.rope_at[i], sh.v_at[i]};
}

/* This thread's 16 columns of its key, from column c on, into the tile. */
__device__ __forceinline__ void bring_columns(rounded_shared &sh, const mla_cuda_problem &p, const mla_cuda_segment &g,
                                              const mla_key_place &key, mla_part part, int64_t c, int my_key,
                                              int my_column)
{
    mla_raw16 raw;
    raw.dtype = MLA_DTYPE_NONE;
    if (key.k_at >= 0) {
        fetch_columns(raw, p, g, key, part, c);
    }
    put_columns(&sh.block.tile[my_key * MLA_CUDA_STRIDE + my_column], raw, p, g, key, part, c, 1.0f);
}

/* Scores of the tile become rounded probabilities; one warp has a row at a time. Returns whether a row does not see
 * some key of the tile: only a mask can hide one. */
__device__ bool round_tile(rounded_shared &sh, const mla_cuda_problem &p, const mla_cuda_segment &g,
                           const mla_row_block &b)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float descale = g.descale ? g.descale[0] : 1.0f;
    bool apart = false;
    for (int row = warp; row < ROWS; row += MLA_WARPS) {
        const bool active = sh.block.begin[row] < sh.block.end[row];
        float *s = &sh.p[row * P_STRIDE];
        float largest = -INFINITY;
        for (int key = lane; key < sh.n_key; key += 32) {
            float x = s[key] * sh.block.scale[row];
            bool seen = active;
            if (seen && g.mask.data) {
                const float scaled = mask_at(p, g, b, row, sh.position[key], seen);
                x += scaled;
            }
            apart = apart || (active && !seen);
            largest = seen ? fmaxf(largest, x) : largest;
            s[key] = seen ? x : MLA_HIDDEN;
            if (seen && x == 0) {
                s[key] = 0; /* +0: only hidden keys have the sign */
            }
        }
#pragma unroll
        for (int x = 16; x > 0; x /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, x));
        }
        const float before = sh.block.m[row], m = fmaxf(before, largest);
        const float key_before = sh.key_m[row], key_m = fmaxf(key_before, largest);
        float sum = 0, key_sum = 0;
        for (int key = lane; key < MLA_CUDA_MAX_TILE && key < (sh.n_key + 63) / 64 * 64; key += 32) {
            const float x = key < sh.n_key ? s[key] : 0.0f;
            const bool seen = key < sh.n_key && active && (int32_t)__float_as_uint(x) != INT32_MIN;
            float w = 0;
            if (seen) {
                /* equality first: infinities must not meet in a subtraction; a score of -inf counts nothing */
                w = x == -INFINITY ? 0.0f : x == m ? 1.0f : exp2f(x - m);
                sum += w;
                key_sum += x == -INFINITY ? 0.0f : x == key_m ? 1.0f : exp2f(x - key_m);
                if (p.p_rounding == MLA_P_ROUND_INT8) {
                    w = x == -INFINITY ? 0.0f : 127 * (x == largest ? 1.0f : exp2f(x - largest));
                }
                w = round_p(p, w);
            }
            s[key] = seen ? w : key < sh.n_key && active ? MLA_HIDDEN : 0.0f;
        }
#pragma unroll
        for (int x = 16; x > 0; x /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, x);
            key_sum += __shfl_xor_sync(0xffffffffu, key_sum, x);
        }
        __syncwarp(); /* all lanes have read what lane 0 writes */
        if (lane == 0) {
            const float f = before == m ? 1.0f : exp2f(before - m);
            sh.block.factor[row] = f;
            sh.block.m[row] = m;
            sh.block.l[row] = sh.block.l[row] * f + sum;
            sh.key_l[row] = sh.key_l[row] * (key_before == key_m ? 1.0f : exp2f(key_before - key_m)) + key_sum;
            sh.key_m[row] = key_m;
            sh.unit[row] = descale;
            if (p.p_rounding == MLA_P_ROUND_INT8) {
                sh.unit[row] *= (largest == m ? 1.0f : exp2f(largest - m)) / 127;
            }
        }
        __syncwarp();
    }
    return apart;
}

extern "C" __global__ void __launch_bounds__(MLA_CUDA_THREADS, 1)
    mla_rounded_16(const __grid_constant__ mla_cuda_problem p)
{
    constexpr int N = mla_tile<ROWS>::N, TX = mla_tile<ROWS>::TX;
    extern __shared__ __align__(16) char memory[];
    rounded_shared &sh = *(rounded_shared *)memory;
    float *q_memory = (float *)(memory + (sizeof(rounded_shared) + 15) / 16 * 16);
    const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    const int my_key = threadIdx.x / 4, my_column = threadIdx.x % 4 * 16;

    const mla_work work = mla_find_work(p); /* all keys: n_split is 1 */
    const int64_t kv_head = work.kv_head, column = work.column;
    const mla_row_block b = mla_find_rows(p, work.block, ROWS);
    if (b.row_begin == b.row_end) {
        return;
    }
    const mla_steps steps = mla_count_steps(p, column);
    const int n_nope = steps.n_nope, n_rope = steps.n_rope, n_value = steps.n_value, n_score = steps.n_score;
    const int64_t token = b.first + b.row_begin / p.group;

    float o[MLA_CHUNKS][N * N], sum[MLA_CHUNKS][N * N]; /* sum: of the tile at hand */
#pragma unroll
    for (int x = 0; x < MLA_CHUNKS * N * N; x++) {
        o[x / (N * N)][x % (N * N)] = 0;
    }
    for (int row = threadIdx.x; row < ROWS; row += MLA_CUDA_THREADS) {
        const int64_t r = b.row_begin + row, head = kv_head * p.group + r % p.group;
        const float sink = p.sink && r < b.row_end ? p.sink[head] : -INFINITY;
        sh.block.m[row] = (float)((double)sink * MLA_LOG2_E);
        sh.block.l[row] = sink > -INFINITY ? 1.0f : 0.0f;
        sh.key_m[row] = -INFINITY;
        sh.key_l[row] = 0;
    }

    for (int g_index = 0; g_index < p.n_segment; g_index++) {
        const mla_cuda_segment &g = p.segment[g_index];
        const mla_key_span span = mla_find_keys(p, g, b);
        __syncthreads(); /* the segment before is done with */
        for (int row = threadIdx.x; row < ROWS; row += MLA_CUDA_THREADS) {
            set_row(sh.block, p, g, b, kv_head, row);
        }
        find_list_end(sh.block, g, b, p.group, span.end);
        for (int64_t at = span.begin; at < span.end; at = sh.next) {
            __syncthreads(); /* everybody has read where the tile begins */
            find_tile(sh, p, g, b, kv_head, at, span.end);
            __syncthreads();
            const int n_key = sh.n_key;
            for (int first = 0; first < n_key; first += MLA_CUDA_KEYS) {
                const mla_key_place key = key_at(sh, first + my_key);
                float s[N * N];
#pragma unroll
                for (int i = 0; i < N * N; i++) {
                    s[i] = 0;
                }
                for (int step = 0; step < n_score; step++) {
                    int64_t c;
                    const mla_part part = part_of_step(step, n_nope, n_rope, column, c);
                    bring_columns(sh, p, g, key, part, c + my_column, my_key, my_column);
                    load_queries(sh.block, p, b, kv_head, c, part == MLA_PART_ROPE, q_memory, MLA_CUDA_STRIDE);
                    __syncthreads();
                    if (step == n_nope) { /* what was summed so far is the nope part */
#pragma unroll
                        for (int i = 0; i < N * N; i++) {
                            s[i] *= sh.block.nope_scale[ty * N + i / N];
                        }
                    }
                    add_scores<ROWS>(sh.block, q_memory, MLA_CUDA_STRIDE, s, ty, tx);
                    __syncthreads();
                }
#pragma unroll
                for (int i = 0; i < N * N; i++) {
                    const int at_key = first + tx + i % N * TX;
                    const float x = n_rope == 0 ? s[i] * sh.block.nope_scale[ty * N + i / N] : s[i];
                    sh.p[(ty * N + i / N) * P_STRIDE + at_key] = x;
                }
            }
            __syncthreads();
            const bool apart = __syncthreads_or(round_tile(sh, p, g, b)) != 0;
#pragma unroll
            for (int x = 0; x < MLA_CHUNKS * N * N; x++) {
                sum[x / (N * N)][x % (N * N)] = 0;
            }
            for (int first = 0; first < n_key; first += MLA_CUDA_KEYS) {
                const mla_key_place key = key_at(sh, first + my_key);
                for (int step = n_score; step < n_score + n_value; step++) {
                    int64_t c;
                    const mla_part part = part_of_step(step, n_nope, n_rope, column, c);
                    bring_columns(sh, p, g, key, part, c + my_column, my_key, my_column);
                    __syncthreads();
#pragma unroll
                    for (int x = 0; x < MLA_CHUNKS; x++) {
                        if (step - n_score == x) {
                            if (apart) {
                                add_values<ROWS, true>(sh.block, sh.p + first, P_STRIDE, sum[x], ty, tx);
                            } else {
                                add_values<ROWS, false>(sh.block, sh.p + first, P_STRIDE, sum[x], ty, tx);
                            }
                        }
                    }
                    __syncthreads();
                }
            }
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float f = sh.block.factor[ty * N + i], unit = sh.unit[ty * N + i];
#pragma unroll
                for (int x = 0; x < MLA_CHUNKS * N; x++) {
                    float &to = o[x / N][i * N + x % N];
                    to = fmaf(sum[x / N][i * N + x % N], unit, to * f);
                }
            }
        }
    }
    __syncthreads(); /* m and l of rows that no tile touched */

#pragma unroll
    for (int i = 0; i < N; i++) {
        const int row = ty * N + i;
        const int64_t r = b.row_begin + row, head = kv_head * p.group + r % p.group;
        if (r >= b.row_end) {
            continue;
        }
        mla_row_result result = mla_finish_row(p, head, sh.key_m[row], sh.key_l[row]);
        const bool empty = sh.key_l[row] == 0;
        const double pv = p.pv_descale ? (double)p.pv_descale[head] : 1.0;
        /* a NaN score shows in the keys' own sum, whatever the sink */
        const float factor = empty                  ? 0.0f
                             : isnan(sh.key_l[row]) ? sh.key_l[row]
                                                    : (float)(pv / (double)sh.block.l[row]);
        if (tx == 0 && column == 0) {
            mla_store_row(p, b.seq, token, head, result);
        }
        const int64_t o_at = b.seq * p.o.stride[0] + token * p.o.stride[1] + head * p.o.stride[2];
#pragma unroll
        for (int x = 0; x < MLA_CHUNKS * N; x++) {
            const int64_t at = column + x / N * MLA_CUDA_CHUNK + tx * N + x % N;
            if (at < p.d_v) {
                mla_store_element(p.o.data, p.o.dtype, o_at + at,
                                  factor == 0 ? 0.0f : o[x / N][i * N + x % N] * factor);
            }
        }
    }
}
