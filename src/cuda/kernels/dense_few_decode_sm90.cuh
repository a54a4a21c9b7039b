/*
 * dense_few_decode_sm90.cuh - dense decode for sm_90a when a kv head has at most 32 query rows, or in blocks of so many:
 * dense_few_sm90.cu and dense_few_causal_sm90.cu make kernels of it. docs/cuda-dense-few-sm90.md tells why it looks like
 * this.
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
 *
 * Code is kept small, by loops that are not unrolled and by a kernel of its own for rows that see different keys: what
 * ran before has left none of it in the caches, and every thread block waits for it from memory.
 */
#ifndef MLA_DENSE_FEW_DECODE_SM90_CUH
#define MLA_DENSE_FEW_DECODE_SM90_CUH

#include "dense_few_load_sm90.cuh"

namespace {

constexpr int compute_threads = 128;
constexpr int barrier_rows = 1, barrier_p = 2; /* named barriers of the computing warpgroup */

struct few_shared : load_shared {
    float row[2][4][32];                                       /* what the warps tell each other about rows */
    alignas(16) float maximum[32], inverse[32], weight[2][32]; /* of rows at the end of a segment; 1 / sum */
};

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

/*
 * Of n values of a lane, sums (or maxima) over the lanes that hold values of the same rows, those 4, 8 and 16 away. Value k
 * is then complete in lanes 4 (8 / n) k .. 4 (8 / n) k + 3.
 */
template <int n, typename F> __device__ __forceinline__ float join_lanes(float (&x)[n], F join)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < 3; step++) {
        const int lanes = 16 >> step, left = n >> (step + 1);
        if (left > 0) {
            const bool upper = lane & lanes;
#pragma unroll
            for (int i = 0; i < left; i++) {
                const float other = __shfl_xor_sync(~0u, upper ? x[i] : x[i + left], lanes);
                x[i] = join(upper ? x[i + left] : x[i], other);
            }
        } else {
            x[0] = join(x[0], __shfl_xor_sync(~0u, x[0], lanes));
        }
    }
    return x[0];
}

/* What a warp has of each row, for the others to read behind a barrier. */
template <int rows, typename F>
__device__ __forceinline__ void tell_rows(float (&to)[4][32], float (&x)[rows / 4], F join)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, place = lane / 4 * (rows / 4);
    const float mine = join_lanes(x, join);
    if (place % 8 == 0) {
        to[warp][row_of(place / 8, lane)] = mine;
    }
}

/* The two neighbouring rows at 8 j of this lane. */
__device__ __forceinline__ float2 two_rows(const float *row, int j)
{
    return *reinterpret_cast<const float2 *>(row + 8 * j + threadIdx.x % 4 * 2);
}

/* Hidden scores become -inf whatever they were; `there` keys of the tile are seen by some row. */
template <int rows, bool causal>
__device__ __forceinline__ void hide(const dense_few_sm90_args &a, float (&d)[rows / 2], int length, int tile,
                                     int there)
{
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, key = warp * 16 + lane / 4;
#pragma unroll
    for (int k = 0; k < rows / 4; k++) {
        const int limit = causal ? min(there, visible(a, length, row_of(k, lane) / a.head_per_kv) - tile * 64) : there;
        float *x = d + k / 2 * 4 + k % 2;
        x[0] = key < limit ? x[0] : -INFINITY;
        x[2] = key + 8 < limit ? x[2] : -INFINITY;
    }
}

/*
 * The maximum of some row moves, by a whole number, so that all factors are powers of two. The first one is exact: a row
 * whose keys are few, or score alike, then has probabilities that rounding spares.
 */
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
    tell_rows<rows>(sh.row[0], top, [](float x, float y) { return fmaxf(x, y); });
    named_barrier(barrier_rows, compute_threads);
#pragma unroll
    for (int j = 0; j < rows / 8; j++) {
        const float2 x0 = two_rows(sh.row[0][0], j), x1 = two_rows(sh.row[0][1], j), x2 = two_rows(sh.row[0][2], j),
                     x3 = two_rows(sh.row[0][3], j);
        top[2 * j] = fmaxf(fmaxf(x0.x, x1.x), fmaxf(x2.x, x3.x));
        top[2 * j + 1] = fmaxf(fmaxf(x0.y, x1.y), fmaxf(x2.y, x3.y));
    }
#pragma unroll
    for (int k = 0; k < rows / 4; k++) {
        const float before = state.maximum[k], now = top[k] * a.scale_log2, steps = ceilf(now - before);
        const bool moves = now > before + 8.0f;
        state.maximum[k] = moves ? fmaxf(before + steps, now) : before; /* `now` if nothing was seen before */
        top[k] = moves && before != -INFINITY ? power_of_two((int)fmaxf(-steps, -127.0f)) : 1.0f;
        state.sum[k] *= top[k];
        state.rounded[k] *= top[k];
    }
    if (!first) {
#pragma unroll
        for (int k = 0; k < rows / 4; k++) {
#pragma unroll
            for (int m = 0; m < 8; m++) {
                o[m][k / 2 * 4 + k % 2] *= top[k];
                o[m][k / 2 * 4 + k % 2 + 2] *= top[k];
            }
        }
    }
}

/* Address of 16 bytes of a key's row in a swizzled box. */
__device__ __forceinline__ uint32_t swizzled(uint32_t box, int key, int chunk)
{
    return box + key * 128 + ((chunk ^ (key & 7)) << 4);
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
    __device__ __forceinline__ uint32_t place(int b) const
    {
        const uint32_t i = slot + b;
        return i < n_slot ? i : i - n_slot;
    }
    __device__ __forceinline__ uint32_t operator[](int b) const
    {
        return shared + place(b) * box_bytes;
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

/* A piece for others to fold. If it is the one behind the only cut, who computes the one before it may look for it. */
template <int rows>
__device__ __forceinline__ void leave_piece(const dense_few_sm90_args &a, const float (&o)[8][rows / 2], int piece,
                                            bool ends_item)
{
    float4 *to = reinterpret_cast<float4 *>(a.piece_o) + (int64_t)piece * (rows * 128) + threadIdx.x;
#pragma unroll
    for (int m = 0; m < 8; m++) {
#pragma unroll
        for (int j = 0; j < rows / 8; j++) {
            const float *x = &o[m][4 * j];
            to[(m * (rows / 8) + j) * 128] = make_float4(x[0], x[1], x[2], x[3]);
        }
    }
    if (few_folds_pairs<rows> && piece % 2 == 0 && ends_item) {
        named_barrier(barrier_rows, compute_threads);
        if (threadIdx.x == 0) {
            store_release(a.arrived + piece / 2, DENSE_FEW_SM90_ARRIVED);
        }
    }
}

/* The other piece of an item from the ring, at `place`. The arithmetic is that of the combine kernel, bit by bit: which of
 * the two does it depends on time. */
template <int rows>
__device__ __forceinline__ void fold_in(const few_shared &sh, const tile_boxes &place, float (&o)[8][rows / 2])
{
#pragma unroll
    for (int j = 0; j < rows / 8; j++) {
        const float2 own = two_rows(sh.weight[0], j), other = two_rows(sh.weight[1], j);
#pragma unroll
        for (int m = 0; m < 8; m++) {
            const int i = m * (rows / 8) + j;
            float *to = &o[m][4 * j], x[4];
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                         : "r"(place[i / 4] + i % 4 * 2048 + threadIdx.x * 16)
                         : "memory");
            to[0] = fmaf(other.x, x[0], fmaf(own.x, to[0], 0.0f)),
            to[1] = fmaf(other.y, x[1], fmaf(own.y, to[1], 0.0f));
            to[2] = fmaf(other.x, x[2], fmaf(own.x, to[2], 0.0f)),
            to[3] = fmaf(other.y, x[3], fmaf(own.y, to[3], 0.0f));
        }
    }
}

/*
 * The end of a segment. If the item goes on in the next part alone and its piece is there, it is folded in. A complete
 * result goes through rows / 8 places of the ring that the loading warp has left empty behind the last tile (or where the
 * other piece was), as boxes of 64 columns like those of q, and on by TMA. True: it does, and thread 0 has to give those
 * places back when they have been read.
 */
template <typename T, int rows>
__device__ __forceinline__ bool finish(const dense_few_sm90_args &a, const tensor_map *o_map, uint32_t shared,
                                       few_shared &sh, ring<n_slot> &at, row_state<rows> &state,
                                       float (&o)[8][rows / 2], int request, int kv_head, int piece, bool ends_item)
{
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const auto add = [](float x, float y) { return x + y; };
    if (warp == 0 && lane < 4) {
#pragma unroll
        for (int k = 0; k < rows / 4; k++) {
            sh.maximum[row_of(k, lane)] = state.maximum[k];
        }
    }
    tell_rows<rows>(sh.row[0], state.sum, add);
    tell_rows<rows>(sh.row[1], state.rounded, add);
    const tile_boxes place = {shared, at.slot};
    bool folds = false;
    if (piece >= 0 && piece % 2 == 1) {
        barrier_wait(shared_address(&sh.decided), 0);
        folds = few_folds_pairs<rows> && sh.folds;
    }
    if (piece < 0 || folds) {
#pragma unroll 1
        for (int i = 0; i < (folds ? rows / 4 : rows / 8); i++) {
            barrier_wait(shared_address(&sh.full[at.slot]), at.parity);
            at.next();
        }
    }
    named_barrier(barrier_rows, compute_threads);
    if (thread < rows) {
        const auto whole = [&](int i) {
            return (sh.row[i][0][thread] + sh.row[i][1][thread]) + (sh.row[i][2][thread] + sh.row[i][3][thread]);
        };
        const float sum = whole(0);
        float lse = sum == 0.0f ? -INFINITY : sh.maximum[thread] + log2f(sum); /* base 2 */
        sh.inverse[thread] = sum == 0.0f ? 0.0f : 1.0f / whole(1);
        if (folds) {
            const float other = sh.other_lse[thread], top = fmaxf(lse, other), base = top == -INFINITY ? 0.0f : top,
                        w0 = exp2f(lse - base), w1 = exp2f(other - base), both = w0 + w1,
                        inverse = both == 0.0f ? 0.0f : 1.0f / both;
            sh.weight[0][thread] = w0 * inverse, sh.weight[1][thread] = w1 * inverse;
            lse = both == 0.0f ? -INFINITY : base + log2f(both);
        }
        if (piece >= 0 && !folds) {
            a.piece_lse[piece * rows + thread] = lse;
        } else if (a.lse && thread < a.n_row) {
            a.lse[few_row_offset(a, a.lse_stride, request, kv_head, thread)] =
                lse == -INFINITY ? a.lse_empty : lse * a.lse_unit;
        }
    }
    named_barrier(barrier_rows, compute_threads);
    bool nothing = false;
#pragma unroll
    for (int j = 0; j < rows / 8; j++) {
        const float2 inverse = two_rows(sh.inverse, j);
        nothing |= inverse.x == 0.0f || inverse.y == 0.0f;
#pragma unroll
        for (int m = 0; m < 8; m++) {
            o[m][4 * j] *= inverse.x, o[m][4 * j + 1] *= inverse.y;
            o[m][4 * j + 2] *= inverse.x, o[m][4 * j + 3] *= inverse.y;
        }
    }
    if (__any_sync(~0u, nothing)) { /* a row that sees nothing is +0 */
#pragma unroll
        for (int j = 0; j < rows / 8; j++) {
            const float2 inverse = two_rows(sh.inverse, j);
#pragma unroll
            for (int m = 0; m < 8; m++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    o[m][4 * j + i] = (i % 2 ? inverse.y : inverse.x) == 0.0f ? 0.0f : o[m][4 * j + i];
                }
            }
        }
    }
    if (folds) {
        fold_in<rows>(sh, place, o);
        named_barrier(barrier_rows, compute_threads); /* all have read it */
    } else if (piece >= 0) {
        leave_piece<rows>(a, o, piece, ends_item);
        return false;
    }
    /* blocks of 8 rows of a box, two at a time: matrix x of this lane is of block x / 2, columns 8 (x % 2) on */
    const uint32_t mine = lane / 16 * 1024 + lane % 8 * 128 + (((2 * warp + lane / 8 % 2) ^ lane % 8) << 4);
#pragma unroll
    for (int block = 0; block < rows; block += 2) {
        uint32_t v[4];
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const int of = block + x / 2;
            const float *from = &o[of / (rows / 8)][of % (rows / 8) * 4 + x % 2 * 2];
            v[x] = pack(from[0], from[1], T());
        }
        store_matrix_transposed(place[block / 8] + block % 8 * 1024 + mine, v[0], v[1], v[2], v[3]);
    }
    fence_async_proxy();
    named_barrier(barrier_rows, compute_threads);
    if (thread == 0) {
#pragma unroll 1
        for (int m = 0; m < 8; m++) {
            tma_store(o_map, place[m * rows / 64] + m * rows % 64 * 128, m * 64, 0, kv_head, 0, request);
        }
        bulk_commit();
    }
    return true;
}

/* Gives back the places that the last result was read from. By thread 0, for the four warps. */
template <int rows> __device__ __forceinline__ void give_back(few_shared &sh, uint32_t first)
{
    bulk_wait_read();
#pragma unroll 1
    for (uint32_t i = first; i < first + rows / 8; i++) {
        barrier_arrive(shared_address(&sh.empty[i < n_slot ? i : i - n_slot]), 4);
    }
}

template <typename T, int rows, int n_box, bool causal>
__device__ void compute(const dense_few_sm90_args &a, const tensor_map *o_map, uint32_t shared, few_shared &sh)
{
    using layout = memory<rows, n_box>;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const uint32_t p = shared + layout::p_at, p_mine = p + warp * (rows * 32) + lane * 16;
    float o[8][rows / 2];
    ring<n_slot> at;
    ring<layout::n_q> q_at;
    uint32_t lent = n_slot; /* the first of the places that a result is read from; n_slot: none */
#pragma unroll 1
    for (int segment = 0;; segment++) {
        barrier_wait(shared_address(&sh.q_full[q_at.slot]), q_at.parity);
        const int4 note = sh.note[segment % n_note];
        const uint32_t q = shared + layout::q_at + q_at.slot * layout::q_bytes;
        if (note.x < 0) {
            break;
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
#pragma unroll 1
            for (int b = 0; b < n_box; b++) {
                barrier_wait(shared_address(&sh.full[box.slot]), box.parity);
                const uint64_t k_box = descriptor_k_major(shared + box.slot * box_bytes),
                               q_box = descriptor_k_major(q + b * layout::q_box);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    wgmma_narrow<T>::qk(d, descriptor_ahead(k_box, k * 32), descriptor_ahead(q_box, k * 32), b + k > 0);
                }
                wgmma_commit();
                box.next();
            }
            wgmma_wait<0>();
            wgmma_pin(d);
            const tile_boxes boxes = {shared, __shfl_sync(~0u, at.slot, 0)}; /* a uniform register from here on */
            const int there = sh.there[at.slot];                             /* keys of the tile that exist */
            if (lane == 0) {
                if (n_box == 9) {
                    barrier_arrive(shared_address(&sh.empty[boxes.place(8)])); /* the rope columns */
                }
                if (tile + 1 == end) {
                    barrier_arrive(shared_address(&sh.q_empty[q_at.slot]));
                }
            }
            if (lent < n_slot) {
                if (thread == 0) {
                    give_back<rows>(sh, lent);
                }
                lent = n_slot;
            }

            if (there < 64 || (causal && (tile + 1) * 64 > all_visible)) {
                hide<rows, causal>(a, d, length, tile, there);
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
            if (there < 64) { /* values past the end may be NaN, and 0 * NaN is not 0 */
#pragma unroll 1
                for (int i = thread; i < (64 - there) * 64; i += compute_threads) {
                    clear_16(swizzled(boxes[i >> 3 & 7], there + (i >> 6), i & 7));
                }
            }
            fence_async_proxy();
            const int begin = causal ? max(all_visible - tile * 64, 0) : there;
            if (causal && begin < there) { /* keys that only some rows see */
                bool bad = false;
#pragma unroll 1
                for (int i = thread; i < (there - begin) * 64; i += compute_threads) {
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
                    add_apart<T, rows>(a, o, boxes, p, length, tile, begin, there);
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
                    wgmma_narrow<T>::pv(o[m], descriptor_ahead(v_box, k * 2048), descriptor_ahead(p_box, k * rows * 32),
                                        k > 0 || !first);
                }
                if (m % 4 == 3) {
                    wgmma_commit();
                }
            }
            /* a lane a box */
            const uint32_t done = shared_address(&sh.empty[boxes.place(lane & 7)]);
            wgmma_wait<1>();
            if (lane < 4) {
                barrier_arrive(done);
            }
            wgmma_wait<0>();
            if (lane >= 4 && lane < 8) {
                barrier_arrive(done);
            }
#pragma unroll
            for (int m = 0; m < 8; m++) {
                wgmma_pin(o[m]);
            }
            first = false;
            at = box;
        }
        q_at.next();
        const int2 note_2 = sh.note_2[segment % n_note];
        const uint32_t place = at.slot;
        if (finish<T, rows>(a, o_map, shared, sh, at, state, o, note.x, note_2.x, note_2.y,
                            end == line_tiles(length))) {
            lent = place;
        }
    }
    if (thread == 0) {
        bulk_wait_read(); /* shared memory ends with the thread block */
    }
}

template <typename T, int rows, int d_k, bool causal>
__device__ __forceinline__ void decode(const tensor_map *q_map, const tensor_map *k_map, const tensor_map *o_map,
                                       const dense_few_sm90_args &a)
{
    constexpr int n_box = d_k / 64;
    using layout = memory<rows, n_box>;
    extern __shared__ __align__(1024) unsigned char shared_bytes[];
    static_assert(sizeof(few_shared) <= DENSE_FEW_SM90_SMALL_BYTES, "few_shared outgrew its place");
    few_shared &sh = *reinterpret_cast<few_shared *>(shared_bytes + layout::small_at);
    const uint32_t shared = shared_address(shared_bytes);
    if (!begin_part<rows, n_box>(a, q_map, k_map, o_map, shared, sh)) {
        return;
    }
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
        compute<T, rows, n_box, causal>(a, o_map, shared, sh);
    } else if (warp == 4) {
        load_keys<rows, n_box, 1>(a, k_map, shared, sh, 0);
    } else if (threadIdx.x % 32 == 0) {
        load_queries<rows, n_box>(a, q_map, shared, sh);
    }
}

} // namespace

#define DENSE_FEW_SM90(name, type, d_k, rows, causal)                                                    \
    extern "C" __global__ void __launch_bounds__(DENSE_FEW_SM90_THREADS(rows), 1)                        \
        name(const __grid_constant__ tensor_map q_map, const __grid_constant__ tensor_map k_map,         \
             const __grid_constant__ tensor_map o_map, const __grid_constant__ dense_few_sm90_args args) \
    {                                                                                                    \
        decode<type, rows, d_k, causal>(&q_map, &k_map, &o_map, args);                                   \
    }

#endif
