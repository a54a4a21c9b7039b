/*
 * dense_few_sm90.cu - dense decode for sm_90a when a kv head has at most 32 query rows. docs/cuda-dense-sm90.md tells why
 * it looks like this.
 *
 * So few rows make attention a matter of reading keys. Operands change places, so that no row of the tensor cores is
 * wasted: keys, and then columns of the values, are the 64 rows of a product, query rows its 8, 16 or 32 columns.
 *
 *     S^T[64 keys][rows] = K Q^T              K as TMA brings it
 *     O^T[64 columns][rows] += V^T P^T        eight times; V is the K tile, read by columns
 *
 * One warpgroup computes; it needs little more than half of the time that the keys of a tile take to arrive. One warp
 * loads keys into a ring of boxes (64 keys x 64 columns), another one the queries. Both run ahead over the ends of
 * requests.
 */
#include "dense_few_load_sm90.cuh"

namespace {

constexpr int compute_threads = 128;
constexpr int barrier_rows = 1, barrier_p = 2; /* named barriers of the computing warpgroup */

/* Keys that a query token sees. */
__device__ __forceinline__ int visible(const dense_few_sm90_args &a, int length, int token)
{
    return a.causal ? max(0, min(length, length - a.n_q + token + 1)) : length;
}

/*
 * What a thread of the warpgroup keeps of rows: rows 8 j + 2 (lane % 4) + e at [2 j + e]. Scores d[4 j + 2 i + e] belong to
 * key 16 warp + 8 i + lane / 4, accumulators o[m][4 j + 2 i + e] to column 64 m + 16 warp + 8 i + lane / 4.
 */
template <int rows> struct row_state {
    float maximum[rows / 4], sum[rows / 4], rounded[rows / 4]; /* `rounded`: of P as it multiplies V */
};

__device__ __forceinline__ int row_of(int k, int lane)
{
    return k / 2 * 8 + lane % 4 * 2 + k % 2;
}

/* 2^e for e in -126..127; 0 for -127. */
__device__ __forceinline__ float power_of_two(int e)
{
    return __int_as_float((e + 127) << 23);
}

/* Over the warps and the lanes of a quad's place; `add`: the sum, else the maximum. Not to be called twice without a
 * barrier of the warpgroup in between. */
template <int rows, bool add> __device__ __forceinline__ void reduce_rows(few_shared &sh, float (&x)[rows / 4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < rows / 4; k++) {
#pragma unroll
        for (int lanes = 4; lanes <= 16; lanes *= 2) {
            const float other = __shfl_xor_sync(~0u, x[k], lanes);
            x[k] = add ? x[k] + other : fmaxf(x[k], other);
        }
        if (lane < 4) {
            sh.row[warp][row_of(k, lane)] = x[k];
        }
    }
    named_barrier(barrier_rows, compute_threads);
#pragma unroll
    for (int k = 0; k < rows / 4; k++) {
        const int r = row_of(k, lane);
        const float x0 = sh.row[0][r], x1 = sh.row[1][r], x2 = sh.row[2][r], x3 = sh.row[3][r];
        x[k] = add ? (x0 + x1) + (x2 + x3) : fmaxf(fmaxf(x0, x1), fmaxf(x2, x3));
    }
}

/* Hidden scores become -inf whatever they were. */
template <int rows>
__device__ __forceinline__ void hide(const dense_few_sm90_args &a, float (&d)[rows / 2], int length, int tile,
                                     bool known)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, key = tile * 64 + warp * 16 + lane / 4;
#pragma unroll
    for (int k = 0; k < rows / 4; k++) {
        const int limit = known ? visible(a, length, a.causal ? row_of(k, lane) / a.head_per_kv : 0) : 0;
        float *x = d + k / 2 * 4 + k % 2;
        x[0] = key < limit ? x[0] : -INFINITY;
        x[2] = key + 8 < limit ? x[2] : -INFINITY;
    }
}

/* The maximum of some row moves. It is a whole number, so that all factors are powers of two. */
template <int rows>
__device__ __forceinline__ void move_maximum(const dense_few_sm90_args &a, few_shared &sh, row_state<rows> &state,
                                             float (&o)[8][rows / 2], const float (&d)[rows / 2], bool first)
{
    float top[rows / 4];
#pragma unroll
    for (int k = 0; k < rows / 4; k++) {
        const float *x = d + k / 2 * 4 + k % 2;
        top[k] = fmaxf(x[0], x[2]);
    }
    reduce_rows<rows, false>(sh, top);
#pragma unroll
    for (int k = 0; k < rows / 4; k++) {
        const float before = state.maximum[k], now = ceilf(top[k] * a.scale_log2);
        float factor = 1.0f;
        if (now > before + 8.0f) {
            state.maximum[k] = now;
            factor = before == -INFINITY ? 1.0f : power_of_two((int)fmaxf(before - now, -127.0f));
        }
        state.sum[k] *= factor;
        state.rounded[k] *= factor;
        if (!first) {
#pragma unroll
            for (int m = 0; m < 8; m++) {
                o[m][k / 2 * 4 + k % 2] *= factor;
                o[m][k / 2 * 4 + k % 2 + 2] *= factor;
            }
        }
    }
}

/* Address of 16 bytes of a key's row in a swizzled box. */
__device__ __forceinline__ uint32_t swizzled(uint32_t box, int key, int chunk)
{
    return box + key * 128 + ((chunk ^ (key & 7)) << 4);
}

__device__ __forceinline__ void clear_16(uint32_t at)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}

template <typename T> __device__ __forceinline__ bool not_finite(uint32_t pair, T)
{
    return !is_finite(pair, T()) || !is_finite(pair >> 16, T());
}

/* Is any of the eight values there Inf or NaN? */
template <typename T> __device__ __forceinline__ bool any_not_finite(uint32_t at)
{
    uint32_t x, y, z, w;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(at) : "memory");
    return not_finite(x, T()) || not_finite(y, T()) || not_finite(z, T()) || not_finite(w, T());
}

template <typename T> __device__ __forceinline__ float load_number(uint32_t at)
{
    unsigned short bits;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(bits) : "r"(at) : "memory");
    T x;
    static_assert(sizeof x == sizeof bits, "16-bit formats");
    memcpy(&x, &bits, sizeof x);
    return (float)x;
}

/* The boxes of a tile in the ring. */
struct tile_boxes {
    uint32_t shared, slot;
    __device__ __forceinline__ uint32_t operator[](int b) const
    {
        const uint32_t i = slot + b;
        return shared + (i < n_slot ? i : i - n_slot) * box_bytes;
    }
};

/*
 * Keys begin .. end - 1 of the tile are seen by some rows and hidden from others. The tensor cores would multiply a
 * hidden value by zero, which NaN and Inf outlive. Keys with such values are therefore taken out of the tile and added
 * here, to the rows that see them. The caller's last barrier has made P^T visible.
 */
template <typename T, int rows>
__device__ __forceinline__ void add_apart(const dense_few_sm90_args &a, float (&o)[8][rows / 2], const tile_boxes &box,
                                          uint32_t p, int length, int tile, int begin, int end)
{
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    uint64_t taken = 0;
#pragma unroll 1
    for (int key = begin; key < end; key++) {
        const bool bad = any_not_finite<T>(swizzled(box[lane / 8], key, lane % 8)) ||
                         any_not_finite<T>(swizzled(box[4 + lane / 8], key, lane % 8));
        if (!__any_sync(~0u, bad)) {
            continue;
        }
        taken |= 1ull << key;
        float weight[rows / 4];
        bool seen[rows / 4];
#pragma unroll
        for (int k = 0; k < rows / 4; k++) {
            const int row = row_of(k, lane);
            seen[k] = tile * 64 + key < visible(a, length, row / a.head_per_kv);
            weight[k] = load_number<T>(p + key / 8 * (rows * 16) + row / 8 * 128 + key % 8 * 16 + row % 8 * 2);
        }
#pragma unroll
        for (int m = 0; m < 8; m++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int column = warp * 16 + i * 8 + lane / 4;
                const float v = load_number<T>(swizzled(box[m], key, column / 8) + column % 8 * 2);
#pragma unroll
                for (int k = 0; k < rows / 4; k++) {
                    float &x = o[m][k / 2 * 4 + 2 * i + k % 2];
                    x = seen[k] ? fmaf(weight[k], v, x) : x;
                }
            }
        }
    }
    named_barrier(barrier_rows, compute_threads); /* all have read the keys */
#pragma unroll 1
    for (int key = begin; key < end; key++) {
        if (taken >> key & 1 && thread < 64) {
            clear_16(swizzled(box[thread / 8], key, thread % 8));
        }
    }
    fence_async_proxy();
    named_barrier(barrier_p, compute_threads);
}

/* A piece for others to fold. `announce`: who computes the piece before it may be waiting for none but this one. */
template <int rows>
__device__ __forceinline__ void leave_piece(const dense_few_sm90_args &a, const float (&o)[8][rows / 2],
                                            const float (&lse)[rows / 4], int piece, bool announce)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float4 *to = reinterpret_cast<float4 *>(a.piece_o) + (int64_t)piece * (rows * 128) + warp * 32 + lane;
#pragma unroll
    for (int m = 0; m < 8; m++) {
#pragma unroll
        for (int j = 0; j < rows / 8; j++) {
            const float *x = &o[m][4 * j];
            to[(m * (rows / 8) + j) * 128] = make_float4(x[0], x[1], x[2], x[3]);
        }
    }
    if (warp == 0 && lane < 4) {
#pragma unroll
        for (int k = 0; k < rows / 4; k++) {
            a.piece_lse[(int64_t)piece * rows + row_of(k, lane)] = lse[k];
        }
    }
    if (announce) {
        __threadfence();
        named_barrier(barrier_rows, compute_threads);
        if (threadIdx.x == 0) {
            store_release(a.arrived + piece / 2, few_arrived_tag);
        }
    }
}

/* o and lse of the first of two pieces and, from the ring, the second. The arithmetic is that of the combine kernel, bit
 * by bit: which of the two does it depends on time. */
template <int rows>
__device__ __forceinline__ void fold_in(uint32_t shared, few_shared &sh, ring<n_slot> at, float (&o)[8][rows / 2],
                                        float (&lse)[rows / 4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const tile_boxes box = {shared, at.slot};
#pragma unroll 1
    for (int b = 0; b < rows / 4; b++) {
        barrier_wait(shared_address(&sh.full[at.slot]), at.parity);
        at.next();
    }
#pragma unroll
    for (int j = 0; j < rows / 8; j++) {
        float own[2], other[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float &mine = lse[2 * j + e];
            const float lse_2 = sh.other_lse[row_of(2 * j + e, lane)], top = fmaxf(mine, lse_2),
                        base = top == -INFINITY ? 0.0f : top;
            own[e] = exp2f(mine - base), other[e] = exp2f(lse_2 - base);
            const float sum = own[e] + other[e], inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
            own[e] *= inverse, other[e] *= inverse;
            mine = sum == 0.0f ? -INFINITY : base + log2f(sum);
        }
#pragma unroll
        for (int m = 0; m < 8; m++) {
            const int i = m * (rows / 8) + j;
            float x[4];
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                         : "r"(box[i / 4] + i % 4 * 2048 + warp * 512 + lane * 16)
                         : "memory");
#pragma unroll
            for (int c = 0; c < 4; c++) {
                float &to = o[m][4 * j + c];
                to = few_add(few_add(0.0f, own[c % 2], to), other[c % 2], x[c]);
            }
        }
    }
}

/* The end of a segment. */
template <typename T, int rows>
__device__ __forceinline__ void finish(const dense_few_sm90_args &a, uint32_t shared, few_shared &sh, ring<n_slot> at,
                                       row_state<rows> &state, float (&o)[8][rows / 2], int request, int kv_head,
                                       int piece)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float lse[rows / 4]; /* base 2 */
    reduce_rows<rows, true>(sh, state.sum);
    named_barrier(barrier_rows, compute_threads);
    reduce_rows<rows, true>(sh, state.rounded);
#pragma unroll
    for (int k = 0; k < rows / 4; k++) {
        const float sum = state.sum[k], inverse = sum == 0.0f ? 0.0f : 1.0f / state.rounded[k];
        lse[k] = sum == 0.0f ? -INFINITY : state.maximum[k] + log2f(sum);
#pragma unroll
        for (int m = 0; m < 8; m++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = o[m][k / 2 * 4 + 2 * i + k % 2];
                x = sum == 0.0f ? 0.0f : x * inverse; /* a row that sees nothing is +0 */
            }
        }
    }
    if (piece >= 0) {
        bool folds = false;
        if (piece % 2 == 1 && sh.two[1]) { /* only a part's last segment leaves such a piece */
            barrier_wait(shared_address(&sh.decided), 0);
            folds = sh.folds;
            if (threadIdx.x == 0) {
                a.folded[piece / 2 + 1] = folds;
            }
        }
        if (!folds) {
            leave_piece<rows>(a, o, lse, piece, piece % 2 == 0 && sh.two[0]);
            return;
        }
        fold_in<rows>(shared, sh, at, o, lse);
    }
    if (a.lse && warp == 0 && lane < 4) {
#pragma unroll
        for (int k = 0; k < rows / 4; k++) {
            if (row_of(k, lane) < a.n_row) {
                a.lse[few_row_offset(a, a.lse_stride, request, kv_head, row_of(k, lane))] =
                    lse[k] == -INFINITY ? a.lse_empty : lse[k] * a.lse_unit;
            }
        }
    }
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
#pragma unroll
        for (int j = 0; j < rows / 8; j++) {
            uint32_t v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float *x = &o[2 * pair + k / 2][4 * j + 2 * (k % 2)];
                v[k] = pack(x[0], x[1], T());
            }
            few_write<T>(a, v, request, kv_head, 8 * j, pair, warp, lane);
        }
    }
}

template <typename T, int rows, int n_box>
__device__ void compute(const dense_few_sm90_args &a, uint32_t shared, few_shared &sh)
{
    using layout = memory<rows, n_box>;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const uint32_t p = shared + layout::p_at, p_mine = p + warp * (rows * 32) + lane * 16;
    const auto release = [&](uint32_t slot) {
        if (lane == 0) {
            barrier_arrive(shared_address(&sh.empty[slot]));
        }
    };
    float o[8][rows / 2];
    ring<n_slot> at;
    ring<layout::n_q> q_at;
    for (int segment = 0;; segment++) {
        barrier_wait(shared_address(&sh.q_full[q_at.slot]), q_at.parity);
        const int4 note = sh.note[segment % n_note];
        const uint32_t q = shared + layout::q_at + q_at.slot * layout::q_bytes;
        if (note.x < 0) {
            return;
        }
        const int length = note.y, end = note.w, all_visible = visible(a, length, 0); /* to all rows */
        row_state<rows> state;
#pragma unroll
        for (int k = 0; k < rows / 4; k++) {
            state.maximum[k] = -INFINITY, state.sum[k] = state.rounded[k] = 0.0f;
        }
        bool first = true;
#pragma unroll 1
        for (int tile = note.z; tile < end; tile++) {
            ring<n_slot> box = at;
            float d[rows / 2];
            wgmma_fence();
#pragma unroll
            for (int b = 0; b < n_box; b++) {
                barrier_wait(shared_address(&sh.full[box.slot]), box.parity);
                const uint64_t k_box = descriptor_k_major(shared + box.slot * box_bytes),
                               q_box = descriptor_k_major(q + b * layout::q_box);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    wgmma_narrow<T>::qk(d, k_box + k * 2, q_box + k * 2, b + k > 0);
                }
                if (b < 8) {
                    box.next();
                }
            }
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_pin(d);
            const bool known = sh.known[at.slot];
            if (n_box == 9) {
                release(box.slot); /* of the rope columns */
                box.next();
            }
            if (tile + 1 == end && lane == 0) {
                barrier_arrive(shared_address(&sh.q_empty[q_at.slot]));
            }

            if ((tile + 1) * 64 > all_visible || !known) {
                hide<rows>(a, d, length, tile, known);
            }
            /* the maximum lags by up to 2^8, so that it hardly ever moves */
            bool moves = false;
#pragma unroll
            for (int k = 0; k < rows / 4; k++) {
                const float *x = d + k / 2 * 4 + k % 2;
                moves |= fmaxf(x[0], x[2]) * a.scale_log2 > state.maximum[k] + 8.0f;
            }
            if (named_barrier_or(barrier_p, compute_threads, moves)) {
                move_maximum<rows>(a, sh, state, o, d, first);
            }
#pragma unroll
            for (int k = 0; k < rows / 4; k++) {
                float *x = d + k / 2 * 4 + k % 2;
                const float base = state.maximum[k] == -INFINITY ? 0.0f : state.maximum[k];
                x[0] = exp2_fast(fmaf(x[0], a.scale_log2, -base));
                x[2] = exp2_fast(fmaf(x[2], a.scale_log2, -base));
                state.sum[k] += x[0] + x[2];
            }
            uint32_t v[rows / 4]; /* two rows of key 8 i + lane / 4 of the warp at [2 j + i] */
#pragma unroll
            for (int k = 0; k < rows / 4; k++) {
                v[k] = pack(d[2 * k], d[2 * k + 1], T());
                state.rounded[k / 2 * 2] += low_half(v[k], T());
                state.rounded[k / 2 * 2 + 1] += high_half(v[k], T());
            }
            if constexpr (rows == 8) {
                store_matrix(p_mine, v[0], v[1]);
            } else {
#pragma unroll
                for (int i = 0; i < rows / 8; i += 2) { /* matrix x of the warp: keys x / (rows / 8), rows x % (..) */
                    const auto matrix = [&](int x) { return v[x % (rows / 8) * 2 + x / (rows / 8)]; };
                    store_matrix(p_mine + i * 256, matrix(2 * i), matrix(2 * i + 1), matrix(2 * i + 2),
                                 matrix(2 * i + 3));
                }
            }
            const tile_boxes boxes = {shared, at.slot};
            const int there = length - tile * 64; /* keys from this tile on */
            if (there < 64) {                     /* values past the end may be NaN, and 0 * NaN is not 0 */
#pragma unroll 1
                for (int i = thread; i < (64 - max(there, 0)) * 64; i += compute_threads) {
                    clear_16(swizzled(boxes[i >> 3 & 7], max(there, 0) + (i >> 6), i & 7));
                }
            }
            fence_async_proxy();
            if (a.causal && (tile + 1) * 64 > all_visible && known) {
                const int begin = max(all_visible - tile * 64, 0), stop = min(there, 64);
                bool bad = false;
#pragma unroll 1
                for (int i = thread; i < (stop - begin) * 64; i += compute_threads) {
                    bad |= any_not_finite<T>(swizzled(boxes[i >> 3 & 7], begin + (i >> 6), i & 7));
                }
                if (named_barrier_or(barrier_p, compute_threads, bad)) {
                    if (first) {
#pragma unroll
                        for (int m = 0; m < 8; m++) {
#pragma unroll
                            for (int i = 0; i < rows / 2; i++) {
                                o[m][i] = 0.0f;
                            }
                        }
                        first = false;
                    }
                    add_apart<T, rows>(a, o, boxes, p, length, tile, begin, stop);
                }
            } else {
                named_barrier(barrier_p, compute_threads);
            }

#pragma unroll
            for (int m = 0; m < 8; m++) {
                wgmma_pin(o[m]);
            }
            wgmma_fence();
#pragma unroll
            for (int m = 0; m < 8; m++) {
                const uint64_t v_box = descriptor_n_major(boxes[m], box_bytes),
                               p_box = descriptor_plain_n_major(p, rows * 16);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    wgmma_narrow<T>::pv(o[m], v_box + k * (2048 >> 4), p_box + k * (rows * 32 >> 4), k > 0 || !first);
                }
                if (m & 1) {
                    wgmma_commit();
                }
            }
            const auto slot_of = [&](int b) { return at.slot + b < n_slot ? at.slot + b : at.slot + b - n_slot; };
            wgmma_wait<3>();
            release(slot_of(0)), release(slot_of(1));
            wgmma_wait<2>();
            release(slot_of(2)), release(slot_of(3));
            wgmma_wait<1>();
            release(slot_of(4)), release(slot_of(5));
            wgmma_wait<0>();
            release(slot_of(6)), release(slot_of(7));
#pragma unroll
            for (int m = 0; m < 8; m++) {
                wgmma_pin(o[m]);
            }
            first = false;
            at = box;
        }
        q_at.next();
        const int2 note_2 = sh.note_2[segment % n_note];
        finish<T, rows>(a, shared, sh, at, state, o, note.x, note_2.x, note_2.y);
    }
}

template <typename T, int rows, int d_k>
__device__ __forceinline__ void decode(const tensor_map *q_map, const tensor_map *k_map, const dense_few_sm90_args &a)
{
    constexpr int n_box = d_k / 64;
    using layout = memory<rows, n_box>;
    extern __shared__ __align__(1024) unsigned char shared_bytes[];
    few_shared &sh = *reinterpret_cast<few_shared *>(shared_bytes + layout::small_at);
    const uint32_t shared = shared_address(shared_bytes);
    const int thread = threadIdx.x;
    if (thread == 0) {
        for (int i = 0; i < n_slot; i++) {
            barrier_init(shared_address(&sh.full[i]), 1);
            barrier_init(shared_address(&sh.empty[i]), 4);
        }
        for (int i = 0; i < layout::n_q; i++) {
            barrier_init(shared_address(&sh.q_full[i]), 1);
            barrier_init(shared_address(&sh.q_empty[i]), 4);
        }
        barrier_init(shared_address(&sh.decided), 1);
        barrier_init_fence();
        tma_prefetch_map(q_map);
        tma_prefetch_map(k_map);
    }
    constexpr int boxes = layout::n_q * n_box;
    for (int i = thread; i < boxes * (rows - a.n_row) * 8; i += DENSE_FEW_SM90_THREADS) { /* rows that do not exist */
        const int row = i / 8;
        clear_16(shared + layout::q_at + row % boxes * layout::q_box + (a.n_row + row / boxes) * 128 + i % 8 * 16);
    }
    fence_async_proxy();

    wait_for_prerequisites();
    launch_dependents();
    const line_input in = few_line(a);
    const line_share line = line_weigh<DENSE_FEW_SM90_THREADS>(in, sh.scratch);
    const int part = blockIdx.x;
    if (part >= line.parts) {
        return;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        line_item item;
        const int64_t x = line_boundary(in, line, part + i);
        if (part + i == line.parts) {
            if (thread == 0) {
                sh.limit[i] = {a.n_seq, 0, 0};
                sh.two[i] = 0;
            }
        } else if (line_find(in, line, x, item)) {
            cut c = {item.request, item.copy, line_cut_tile(in, item, x)};
            if (c.tile == item.tiles) {
                c.tile = 0;
                if (++c.head == a.n_kv_head) {
                    c.head = 0;
                    c.request++;
                }
            }
            sh.limit[i] = c;
            const line_cuts cuts = line_cuts_of(in, line, item);
            sh.two[i] = cuts.n == 1 && cuts.first == part + i;
        }
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, thread / 32, 0);
    if (warp < 4) {
        compute<T, rows, n_box>(a, shared, sh);
    } else if (warp == 4) {
        load_keys<rows, n_box>(a, k_map, shared, sh);
    } else if (thread % 32 == 0) {
        load_queries<rows, n_box>(a, q_map, shared, sh);
    }
}

} // namespace

#define DENSE_FEW_SM90(name, type, d_k, rows)                                                    \
    extern "C" __global__ void __launch_bounds__(DENSE_FEW_SM90_THREADS, 1)                      \
        name(const __grid_constant__ tensor_map q_map, const __grid_constant__ tensor_map k_map, \
             const __grid_constant__ dense_few_sm90_args args)                                   \
    {                                                                                            \
        decode<type, rows, d_k>(&q_map, &k_map, args);                                           \
    }

DENSE_FEW_SM90(dense_few_sm90_bf16_576_8, __nv_bfloat16, 576, 8)
DENSE_FEW_SM90(dense_few_sm90_bf16_576_16, __nv_bfloat16, 576, 16)
DENSE_FEW_SM90(dense_few_sm90_bf16_576_32, __nv_bfloat16, 576, 32)
DENSE_FEW_SM90(dense_few_sm90_bf16_512_8, __nv_bfloat16, 512, 8)
DENSE_FEW_SM90(dense_few_sm90_bf16_512_16, __nv_bfloat16, 512, 16)
DENSE_FEW_SM90(dense_few_sm90_bf16_512_32, __nv_bfloat16, 512, 32)
DENSE_FEW_SM90(dense_few_sm90_f16_576_8, __half, 576, 8)
DENSE_FEW_SM90(dense_few_sm90_f16_576_16, __half, 576, 16)
DENSE_FEW_SM90(dense_few_sm90_f16_576_32, __half, 576, 32)
DENSE_FEW_SM90(dense_few_sm90_f16_512_8, __half, 512, 8)
DENSE_FEW_SM90(dense_few_sm90_f16_512_16, __half, 512, 16)
DENSE_FEW_SM90(dense_few_sm90_f16_512_32, __half, 512, 32)
