/*
 * dense_few_wide_sm90.cuh - dense decode for sm_90a when a kv head has 33 to 64 query rows: dense_few_64_sm90.cu and
 * dense_few_64_causal_sm90.cu make kernels of it. The ring, the walk and the warps that load are those of
 * dense_few_load_sm90.cuh, operands change places as in dense_few_decode_sm90.cuh; docs/cuda-dense-few-sm90.md tells why.
 *
 * One warpgroup computes scores and probabilities, two more multiply the values, 256 columns each, so that the scores of a
 * tile and the values of the one before share the tensor cores. What the first one has, it says to the others in one
 * message at a time: a tile, the end of a segment, or the end of all.
 */
#ifndef MLA_DENSE_FEW_WIDE_SM90_CUH
#define MLA_DENSE_FEW_WIDE_SM90_CUH

#include "dense_few_decode_sm90.cuh"

namespace {

constexpr int wide_rows = 64, value_groups = 2, key_warps = 3;
constexpr int barrier_score = 1, barrier_value = 2, barrier_values = 4; /* named; one for each value warpgroup */

enum { SAYS_TILE = 1, SAYS_END = 2, SAYS_FIRST = 4, SAYS_FACTOR = 8, SAYS_FOLD = 16, SAYS_ENDS_ITEM = 32 };

struct wide_shared : load_shared {
    float row[4][wide_rows]; /* what the warps that score tell each other */
    float factor[wide_rows]; /* of o, before a tile's product */
    int4 says, says_2;       /* a tile: SAYS_.., keys there, tile, length. An end: SAYS_.., request, kv head, piece */
    uint64_t said, heard;
};

/* Of rows at the end of a segment, in the place of P^T. */
struct row_notes {
    float sum[4][wide_rows], rounded[4][wide_rows]; /* by warp; of P, and of P as it multiplies V */
    float maximum[wide_rows], inverse[wide_rows], weight[2][wide_rows];
};

template <typename F> __device__ __forceinline__ void tell_wide(float *to, float (&x)[wide_rows / 4], F join)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float of_half[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            of_half[k] = x[8 * half + k];
        }
        to[32 * half + row_of(lane / 4, lane)] = join_lanes(of_half, join);
    }
}

/* The maximum of some row moves, as with fewer rows; o's factors are left for the others. */
__device__ __forceinline__ void move_wide(const dense_few_sm90_args &a, wide_shared &sh, row_state<wide_rows> &state,
                                          const float (&d)[wide_rows / 2])
{
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    float top[wide_rows / 4];
#pragma unroll
    for (int k = 0; k < wide_rows / 4; k++) {
        const float *x = d + k / 2 * 4 + k % 2;
        top[k] = fmaxf(x[0], x[2]);
    }
    tell_wide(sh.row[warp], top, [](float x, float y) { return fmaxf(x, y); });
    named_barrier(barrier_score, 128);
#pragma unroll
    for (int k = 0; k < wide_rows / 4; k++) {
        const int row = row_of(k, lane);
        const float all = fmaxf(fmaxf(sh.row[0][row], sh.row[1][row]), fmaxf(sh.row[2][row], sh.row[3][row]));
        const float before = state.maximum[k], now = all * a.scale_log2, steps = ceilf(now - before);
        const bool moves = now > before + 8.0f;
        const float factor = moves && before != -INFINITY ? power_of_two((int)fmaxf(-steps, -127.0f)) : 1.0f;
        state.maximum[k] = moves ? fmaxf(before + steps, now) : before; /* `now` if nothing was seen before */
        state.sum[k] *= factor;
        state.rounded[k] *= factor;
        if (warp == 0 && lane < 4) {
            sh.factor[row] = factor;
        }
    }
}

/* Called by the warps that score, when what they say is written. */
__device__ __forceinline__ void say(wide_shared &sh, uint32_t &parity)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(shared_address(&sh.said));
    }
    parity ^= 1;
}

/* The end of a segment: sums, lse, and what o and the other piece of the item, if it is folded in, are multiplied by. */
__device__ __forceinline__ void end_scores(const dense_few_sm90_args &a, wide_shared &sh, row_notes &notes,
                                           ring<n_slot> &at, row_state<wide_rows> &state, const int4 &note,
                                           const int2 &note_2)
{
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32, piece = note_2.y;
    const auto add = [](float x, float y) { return x + y; };
    if (warp == 0 && lane < 4) {
#pragma unroll
        for (int k = 0; k < wide_rows / 4; k++) {
            notes.maximum[row_of(k, lane)] = state.maximum[k];
        }
    }
    tell_wide(notes.sum[warp], state.sum, add);
    tell_wide(notes.rounded[warp], state.rounded, add);
    bool folds = false;
    if (piece >= 0 && piece % 2 == 1) {
        barrier_wait(shared_address(&sh.decided), 0);
        folds = sh.folds;
    }
    if (folds) { /* lse comes with the first box of the other piece */
        barrier_wait(shared_address(&sh.full[at.slot]), at.parity);
    }
    if (piece < 0) {
        at.advance(wide_rows / 8);
    }
    named_barrier(barrier_score, 128);
    if (thread < wide_rows) {
        const auto whole = [&](const float(&x)[4][wide_rows]) {
            return (x[0][thread] + x[1][thread]) + (x[2][thread] + x[3][thread]);
        };
        const float sum = whole(notes.sum);
        float lse = sum == 0.0f ? -INFINITY : notes.maximum[thread] + log2f(sum); /* base 2 */
        notes.inverse[thread] = sum == 0.0f ? 0.0f : 1.0f / whole(notes.rounded);
        if (folds) {
            const float other = sh.other_lse[thread], top = fmaxf(lse, other), base = top == -INFINITY ? 0.0f : top,
                        w0 = exp2f(lse - base), w1 = exp2f(other - base), both = w0 + w1,
                        inverse = both == 0.0f ? 0.0f : 1.0f / both;
            notes.weight[0][thread] = w0 * inverse, notes.weight[1][thread] = w1 * inverse;
            lse = both == 0.0f ? -INFINITY : base + log2f(both);
        }
        if (piece >= 0 && !folds) {
            a.piece_lse[piece * wide_rows + thread] = lse;
        } else if (a.lse && thread < a.n_row) {
            a.lse[few_row_offset(a, a.lse_stride, note.x, note_2.x, thread)] =
                lse == -INFINITY ? a.lse_empty : lse * a.lse_unit;
        }
    }
    if (thread == 0) {
        const bool ends_item = note.w == line_tiles(note.y);
        sh.says =
            make_int4(SAYS_END | (folds ? SAYS_FOLD : 0) | (ends_item ? SAYS_ENDS_ITEM : 0), note.x, note_2.x, piece);
    }
}

template <typename T, int n_box, bool causal>
__device__ void score(const dense_few_sm90_args &a, unsigned char *shared_bytes, wide_shared &sh)
{
    using layout = memory<wide_rows, n_box>;
    constexpr int rows = wide_rows;
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const uint32_t shared = shared_address(shared_bytes), p = shared + layout::p_at,
                   p_mine = p + warp * (rows * 32) + lane * 16, q = shared + layout::q_at;
    const uint32_t heard = shared_address(&sh.heard);
    row_notes &notes = *reinterpret_cast<row_notes *>(shared_bytes + layout::p_at);
    static_assert(sizeof(row_notes) <= DENSE_FEW_SM90_P_BYTES(rows), "row_notes outgrew their place");
    ring<n_slot> at;
    ring<1> q_at;
    uint32_t parity = 0; /* of what is said next */
#pragma unroll 1
    for (int segment = 0;; segment++) {
        barrier_wait(shared_address(&sh.q_full[0]), q_at.parity);
        const int4 note = sh.note[segment % n_note];
        if (note.x < 0) {
            break;
        }
        const int2 note_2 = sh.note_2[segment % n_note];
        const int length = note.y, end = note.w, all_visible = visible(a, length, 0); /* to all rows */
        row_state<rows> state;
#pragma unroll
        for (int k = 0; k < rows / 4; k++) {
            state.maximum[k] = -INFINITY, state.sum[k] = state.rounded[k] = 0.0f;
        }
#pragma unroll 1
        for (int tile = note.z; tile < end; tile++) {
            const ring<n_slot> tile_at = at;
            float d[rows / 2];
#pragma unroll 1
            for (int b = 0; b < n_box; b++) {
                barrier_wait(shared_address(&sh.full[at.slot]), at.parity);
                const uint64_t k_box = descriptor_k_major(shared + at.slot * box_bytes),
                               q_box = descriptor_k_major(q + b * layout::q_box);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    wgmma_narrow<T>::qk(d, descriptor_ahead(k_box, k * 32), descriptor_ahead(q_box, k * 32), b + k > 0);
                }
                wgmma_commit();
                at.next();
            }
            wgmma_wait<0>();
            wgmma_pin(d);
            const int there = sh.there[tile_at.slot]; /* keys of the tile that exist */
            if (lane == 0) {
                if (n_box == 9) {
                    const tile_boxes boxes = {shared, tile_at.slot};
                    barrier_arrive(shared_address(&sh.empty[boxes.place(8)])); /* the rope columns */
                }
                if (tile + 1 == end) {
                    barrier_arrive(shared_address(&sh.q_empty[0]));
                }
            }
            if (there < 64 || (causal && (tile + 1) * 64 > all_visible)) {
                hide<rows, causal>(a, d, length, tile, there);
            }
            bool moves = false;
#pragma unroll
            for (int k = 0; k < rows / 4; k++) {
                const float *x = d + k / 2 * 4 + k % 2;
                moves |= fmaxf(x[0], x[2]) * a.scale_log2 > state.maximum[k] + 8.0f;
            }
            moves = named_barrier_or(barrier_score, 128, moves);
            if (moves) {
                barrier_wait(heard, parity ^ 1);
                move_wide(a, sh, state, d);
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
            barrier_wait(heard, parity ^ 1);
#pragma unroll
            for (int i = 0; i < rows / 8; i += 2) { /* matrix x of the warp: keys x / (rows / 8), rows x % (rows / 8) */
                const auto matrix = [&](int x) { return v[x % (rows / 8) * 2 + x / (rows / 8)]; };
                store_matrix(p_mine + i * 256, matrix(2 * i), matrix(2 * i + 1), matrix(2 * i + 2), matrix(2 * i + 3));
            }
            if (thread == 0) {
                sh.says = make_int4(SAYS_TILE | (tile == note.z ? SAYS_FIRST
                                                 : moves        ? SAYS_FACTOR
                                                                : 0),
                                    there, tile, length);
            }
            fence_async_proxy();
            say(sh, parity);
        }
        q_at.next();
        barrier_wait(heard, parity ^ 1);
        end_scores(a, sh, notes, at, state, note, note_2);
        say(sh, parity);
    }
    barrier_wait(heard, parity ^ 1);
    if (thread == 0) {
        sh.says = make_int4(0, 0, 0, 0);
    }
    say(sh, parity);
}

/* What a warpgroup that multiplies values has: columns 64 (4 group + m) + 16 warp + 8 i + lane / 4 of rows
 * 8 j + 2 (lane % 4) + e at o[m][4 j + 2 i + e]. */
using wide_o = float[4][wide_rows / 2];

/* As add_apart() with fewer rows, for the columns of this warpgroup. */
template <typename T>
__device__ __forceinline__ void add_apart_wide(const dense_few_sm90_args &a, wide_o &o, const tile_boxes &box,
                                               int group, uint32_t p, int length, int tile, int begin, int end)
{
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    uint64_t taken = 0;
#pragma unroll 1
    for (int key = begin; key < end; key++) {
        const bool bad = any_not_finite<T>(swizzled(box[4 * group + lane / 8], key, lane % 8));
        if (!__any_sync(~0u, bad)) {
            continue;
        }
        taken |= 1ull << key;
#pragma unroll
        for (int k = 0; k < wide_rows / 4; k++) {
            const int row = row_of(k, lane);
            const bool seen = tile * 64 + key < visible(a, length, row / a.head_per_kv);
            const float weight =
                load_number<T>(p + key / 8 * (wide_rows * 16) + row / 8 * 128 + key % 8 * 16 + row % 8 * 2);
#pragma unroll
            for (int m = 0; m < 4; m++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int column = warp * 16 + i * 8 + lane / 4;
                    const float v = load_number<T>(swizzled(box[4 * group + m], key, column / 8) + column % 8 * 2);
                    float &x = o[m][k / 2 * 4 + 2 * i + k % 2];
                    x = seen ? fmaf(weight, v, x) : x;
                }
            }
        }
    }
    named_barrier(barrier_value + group, 128); /* all have read the keys */
#pragma unroll 1
    for (int key = begin; key < end; key++) {
        if (taken >> key & 1 && thread < 32) {
            clear_16(swizzled(box[4 * group + thread / 8], key, thread % 8));
        }
    }
}

/* A piece for others to fold: of 32 rows each, as if of two items. */
__device__ __forceinline__ void leave_piece_wide(const dense_few_sm90_args &a, const wide_o &o, int group, int piece,
                                                 bool ends_item)
{
    float4 *to = reinterpret_cast<float4 *>(a.piece_o) + (int64_t)piece * (wide_rows * 128) + threadIdx.x % 128;
#pragma unroll
    for (int m = 0; m < 4; m++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float *x = &o[m][4 * j];
            to[(j / 4 * 32 + (4 * group + m) * 4 + j % 4) * 128] = make_float4(x[0], x[1], x[2], x[3]);
        }
    }
    if (piece % 2 == 0 && ends_item) {
        named_barrier(barrier_values, value_groups * 128);
        if (threadIdx.x == 0) {
            store_release(a.arrived + piece / 2, DENSE_FEW_SM90_ARRIVED);
        }
    }
}

/* The other piece of the item from the ring. The arithmetic is that of the combine kernel. */
__device__ __forceinline__ void fold_in_wide(const row_notes &notes, const tile_boxes &place, int group, wide_o &o)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 own = two_rows(notes.weight[0], j), other = two_rows(notes.weight[1], j);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            float *to = &o[m][4 * j], x[4];
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                         : "r"(place[j / 4 * 8 + 4 * group + m] + j % 4 * 2048 + threadIdx.x % 128 * 16)
                         : "memory");
            to[0] = fmaf(other.x, x[0], fmaf(own.x, to[0], 0.0f)),
            to[1] = fmaf(other.y, x[1], fmaf(own.y, to[1], 0.0f));
            to[2] = fmaf(other.x, x[2], fmaf(own.x, to[2], 0.0f)),
            to[3] = fmaf(other.y, x[3], fmaf(own.y, to[3], 0.0f));
        }
    }
}

/* The end of a segment. True: the result leaves through the first 8 places from at's place before, and thread 0 of the
 * warpgroup has to give its four of them back. */
template <typename T>
__device__ __forceinline__ bool end_values(const dense_few_sm90_args &a, const tensor_map *o_map, uint32_t shared,
                                           wide_shared &sh, const row_notes &notes, ring<n_slot> &at, int group,
                                           wide_o &o, const int4 &says)
{
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32, piece = says.w;
    const bool folds = says.x & SAYS_FOLD;
    const tile_boxes place = {shared, at.slot};
    if (piece < 0 || folds) {
#pragma unroll 1
        for (int i = 0; i < (folds ? wide_rows / 4 : wide_rows / 8); i++) {
            barrier_wait(shared_address(&sh.full[at.slot]), at.parity);
            at.next();
        }
    }
    bool nothing = false;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 inverse = two_rows(notes.inverse, j);
        nothing |= inverse.x == 0.0f || inverse.y == 0.0f;
#pragma unroll
        for (int m = 0; m < 4; m++) {
            o[m][4 * j] *= inverse.x, o[m][4 * j + 1] *= inverse.y;
            o[m][4 * j + 2] *= inverse.x, o[m][4 * j + 3] *= inverse.y;
        }
    }
    if (__any_sync(~0u, nothing)) { /* a row that sees nothing is +0 */
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 inverse = two_rows(notes.inverse, j);
#pragma unroll
            for (int m = 0; m < 4; m++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    o[m][4 * j + i] = (i % 2 ? inverse.y : inverse.x) == 0.0f ? 0.0f : o[m][4 * j + i];
                }
            }
        }
    }
    if (folds) {
        fold_in_wide(notes, place, group, o);
        named_barrier(barrier_value + group, 128); /* all have read it */
    }
    __syncwarp();
    if (lane == 0) {
        barrier_arrive(shared_address(&sh.heard));
    }
    if (piece >= 0 && !folds) {
        leave_piece_wide(a, o, group, piece, says.x & SAYS_ENDS_ITEM);
        return false;
    }
    /* blocks of 8 rows of a box, two at a time: matrix x of this lane is of block x / 2, columns 8 (x % 2) on */
    const uint32_t mine = lane / 16 * 1024 + lane % 8 * 128 + (((2 * warp + lane / 8 % 2) ^ lane % 8) << 4);
#pragma unroll
    for (int block = 0; block < 32; block += 2) {
        uint32_t v[4];
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const int of = block + x / 2;
            const float *from = &o[of / 8][of % 8 * 4 + x % 2 * 2];
            v[x] = pack(from[0], from[1], T());
        }
        store_matrix_transposed(place[4 * group + block / 8] + block % 8 * 1024 + mine, v[0], v[1], v[2], v[3]);
    }
    fence_async_proxy();
    named_barrier(barrier_value + group, 128);
    if (thread == 0) {
#pragma unroll 1
        for (int m = 4 * group; m < 4 * group + 4; m++) {
            tma_store(o_map, place[m], m * 64, 0, says.z, 0, says.y);
        }
        bulk_commit();
    }
    return true;
}

template <typename T, int n_box, bool causal>
__device__ void values(const dense_few_sm90_args &a, const tensor_map *o_map, unsigned char *shared_bytes,
                       wide_shared &sh)
{
    using layout = memory<wide_rows, n_box>;
    constexpr int rows = wide_rows;
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), thread = threadIdx.x % 128, lane = thread % 32;
    const uint32_t shared = shared_address(shared_bytes), p = shared + layout::p_at;
    const row_notes &notes = *reinterpret_cast<row_notes *>(shared_bytes + layout::p_at);
    wide_o o;
    ring<n_slot> at;
    uint32_t parity = 0, lent = n_slot; /* the first of the places that a result is read from; n_slot: none */
#pragma unroll 1
    for (;; parity ^= 1) {
        barrier_wait(shared_address(&sh.said), parity);
        const int4 says = sh.says;
        if (lent < n_slot) {
            if (thread == 0) {
                bulk_wait_read();
                const tile_boxes place = {shared, lent};
#pragma unroll 1
                for (int i = 4 * group; i < 4 * group + 4; i++) {
                    barrier_arrive(shared_address(&sh.empty[place.place(i)]), 4);
                }
            }
            lent = n_slot;
        }
        if (says.x & SAYS_END) {
            const uint32_t place = at.slot;
            if (end_values<T>(a, o_map, shared, sh, notes, at, group, o, says)) {
                lent = place;
            }
            continue;
        }
        if (says.x == 0) {
            break;
        }
        const tile_boxes boxes = {shared, __shfl_sync(~0u, at.slot, 0)};
        const int there = says.y;
        bool first = says.x & SAYS_FIRST;
        if (says.x & SAYS_FACTOR) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float2 factor = two_rows(sh.factor, j);
#pragma unroll
                for (int m = 0; m < 4; m++) {
                    o[m][4 * j] *= factor.x, o[m][4 * j + 1] *= factor.y;
                    o[m][4 * j + 2] *= factor.x, o[m][4 * j + 3] *= factor.y;
                }
            }
        }
        const int begin = causal ? max(visible(a, says.w, 0) - says.z * 64, 0) : there;
        if (there < 64 || (causal && begin < there)) {
            /* values past the end may be NaN, and 0 * NaN is not 0 */
#pragma unroll 1
            for (int i = thread; i < (64 - there) * 32; i += 128) {
                clear_16(swizzled(boxes[4 * group + (i >> 3 & 3)], there + (i >> 5), i & 7));
            }
            if (causal && begin < there) { /* keys that only some rows see */
                bool bad = false;
#pragma unroll 1
                for (int i = thread; i < (there - begin) * 32; i += 128) {
                    bad |= any_not_finite<T>(swizzled(boxes[4 * group + (i >> 3 & 3)], begin + (i >> 5), i & 7));
                }
                if (named_barrier_or(barrier_value + group, 128, bad)) {
                    if (first) {
#pragma unroll
                        for (int m = 0; m < 4; m++) {
#pragma unroll
                            for (int i = 0; i < rows / 2; i++) {
                                o[m][i] = 0.0f;
                            }
                        }
                        first = false;
                    }
                    add_apart_wide<T>(a, o, boxes, group, p, says.w, says.z, begin, there);
                }
            }
            fence_async_proxy();
            named_barrier(barrier_value + group, 128);
        }

#pragma unroll
        for (int m = 0; m < 4; m++) {
            wgmma_pin(o[m]);
        }
        wgmma_fence();
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint64_t v_box = descriptor_n_major(boxes[4 * group + m], box_bytes),
                           p_box = descriptor_plain_n_major(p, rows * 16);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                wgmma_narrow<T>::pv(o[m], descriptor_ahead(v_box, k * 2048), descriptor_ahead(p_box, k * rows * 32),
                                    k > 0 || !first);
            }
            if (m % 2 == 1) {
                wgmma_commit();
            }
        }
        /* a lane a box */
        const uint32_t done = shared_address(&sh.empty[boxes.place(4 * group + (lane & 3))]);
        wgmma_wait<1>();
        if (lane < 2) {
            barrier_arrive(done);
        }
        wgmma_wait<0>();
        if (lane >= 2 && lane < 4) {
            barrier_arrive(done);
        }
        if (lane == 4) {
            barrier_arrive(shared_address(&sh.heard));
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
            wgmma_pin(o[m]);
        }
        at.advance(n_box);
    }
    if (thread == 0) {
        bulk_wait_read(); /* shared memory ends with the thread block */
    }
}

template <typename T, int d_k, bool causal>
__device__ __forceinline__ void decode_wide(const tensor_map *q_map, const tensor_map *k_map, const tensor_map *o_map,
                                            const dense_few_sm90_args &a)
{
    constexpr int n_box = d_k / 64;
    using layout = memory<wide_rows, n_box>;
    extern __shared__ __align__(1024) unsigned char shared_bytes[];
    static_assert(sizeof(wide_shared) <= DENSE_FEW_SM90_SMALL_BYTES, "wide_shared outgrew its place");
    wide_shared &sh = *reinterpret_cast<wide_shared *>(shared_bytes + layout::small_at);
    const uint32_t shared = shared_address(shared_bytes);
    if (threadIdx.x == 64) {
        barrier_init(shared_address(&sh.said), 4);
        barrier_init(shared_address(&sh.heard), 4 * value_groups);
    }
    if (!begin_part<wide_rows, n_box>(a, q_map, k_map, o_map, shared, sh)) {
        return;
    }
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4 * value_groups) {
        registers_up<168>();
        values<T, n_box, causal>(a, o_map, shared_bytes, sh);
    } else if (warp < 4 * value_groups + 4) {
        registers_up<152>();
        score<T, n_box, causal>(a, shared_bytes, sh);
    } else {
        registers_down<24>();
        constexpr int first = 4 * value_groups + 4;
        if (warp > first) {
            load_keys<wide_rows, n_box, key_warps>(a, k_map, shared, sh, warp - first - 1);
        } else if (threadIdx.x == first * 32) {
            load_queries<wide_rows, n_box>(a, q_map, shared, sh);
        }
    }
}

} // namespace

#define DENSE_FEW_64_SM90(name, type, d_k, causal)                                                       \
    extern "C" __global__ void __launch_bounds__(DENSE_FEW_SM90_THREADS(64), 1)                          \
        name(const __grid_constant__ tensor_map q_map, const __grid_constant__ tensor_map k_map,         \
             const __grid_constant__ tensor_map o_map, const __grid_constant__ dense_few_sm90_args args) \
    {                                                                                                    \
        decode_wide<type, d_k, causal>(&q_map, &k_map, &o_map, args);                                    \
    }

#endif
