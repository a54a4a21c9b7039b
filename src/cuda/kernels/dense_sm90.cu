/*
 * dense_sm90.cu - dense decode for sm_90a: TMA, mbarriers, wgmma. docs/cuda-dense-sm90.md tells why it looks like
 * this.
 *
 * A CTA owns 64 query rows (heads, times tokens) of one kv head and walks through key tiles of 64 keys. TMA brings them
 * into a ring of three stages; a request's q takes a place in the ring like a tile of keys. Its three warpgroups:
 *
 *     score     keeps 496 columns of q in registers; S = Q K^T, softmax, writes P over the tile's rope columns
 *     value x2  O[64][256 columns each] += P V, where V is the K tile with its rows as wgmma's K; a thread of the second
 *               refills the stage that both have just finished with
 *
 * P of a tile is handed over only when most of the next tile's scores are queued (unless that tile is late), so that
 * value work is left to cover the softmax.
 */
#include "dense_load_sm90.cuh"

namespace {

/* --- score --- */

/* Address of chunk `chunk` (8 columns) of a row in a 128-byte-swizzled box. */
__device__ __forceinline__ uint32_t swizzled(uint32_t box, int row, int chunk)
{
    return box + row * 128 + ((chunk ^ (row & 7)) << 4);
}

__device__ __forceinline__ void copy_chunk(uint32_t to, uint32_t from)
{
    uint32_t x, y, z, w;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                 : "r"(from)
                 : "memory");
    asm volatile("st.shared.v4.b32 [%4], {%0, %1, %2, %3};" ::"r"(x), "r"(y), "r"(z), "r"(w), "r"(to) : "memory");
}

/* Hides scores that a row does not see: they become -inf whatever they were. Only the last tiles of a request need it. */
__device__ __forceinline__ void hide_scores(const dense_sm90_args &a, const small_shared &sh, float (&d)[32],
                                            bool known, int length, int tile)
{
    const int t = thread_now(), row = (t >> 5 & 3) * 16 + (t >> 2 & 7), column = (t & 3) * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int token, head;
        row_place(a, sh, row + 8 * i, token, head);
        const int limit = known ? visible(a, length, token) - tile * 64 - column : 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            d[j * 4 + 2 * i] = j * 8 < limit ? d[j * 4 + 2 * i] : -INFINITY;
            d[j * 4 + 2 * i + 1] = j * 8 + 1 < limit ? d[j * 4 + 2 * i + 1] : -INFINITY;
        }
    }
}

template <typename T, int n_box>
__device__ void score_role(const dense_sm90_args &a, uint32_t stages, uint32_t q_rest, small_shared &sh)
{
    const int lane = threadIdx.x % 32;
    /* address in a box that this lane gives to ld/stmatrix for columns 0-15; the others follow by exclusive or */
    const uint32_t matrix_at = swizzled(0, threadIdx.x % 128 / 32 * 16 + (lane & 15), lane >> 4);
    uint32_t q[31][4];
    /* from a shuffle, so that the compiler knows them to be the same in all threads: else each product waits for registers
     * to be copied */
    const uint64_t ring_at = descriptor_k_major(__shfl_sync(~0u, stages, 0)),
                   rest_at = descriptor_plain(__shfl_sync(~0u, q_rest, 0)),
                   rope_at = descriptor_k_major(__shfl_sync(~0u, q_rest + 2048, 0));
    ring at;
    for (int request = sh.part.x; request <= sh.place.w; request++) {
        int length, tile, end, piece, all_visible; /* all_visible: keys that all rows of the block see */
        float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
        bool first = true;

        /* q: registers; columns 496-511 and the rope columns into their own place */
        {
            const uint32_t stage = stages + at.stage * stage_bytes;
#pragma unroll
            for (int g = 0; g < 3; g++) {
                barrier_wait(shared_address(&sh.full[at.stage][g]), at.parity);
            }
#pragma unroll
            for (int k = 0; k < 31; k++) {
                load_matrix(q[k], (stage + k / 4 * box_bytes + matrix_at) ^ (k % 4 * 32));
            }
            const int4 note = sh.note[at.stage];
            length = note.x, tile = note.y, end = note.z;
            piece = note.w;
            all_visible = a.causal ? length - a.n_q + sh.where.y + 1 : length;
            const int thread = thread_now() & 127;
            named_barrier(1, 128); /* all have read the note */
            copy_chunk(q_rest + (thread >> 4) * 256 + (thread & 1) * 128 + (thread >> 1 & 7) * 16,
                       swizzled(stage + 7 * box_bytes, thread >> 1, 6 + (thread & 1)));
            if (n_box == 9) {
#pragma unroll 1
                for (int i = 0; i < 4; i++) {
                    const uint32_t offset = (thread + i * 128) * 16;
                    copy_chunk(q_rest + 2048 + offset, stage + rope_box + offset);
                }
            }
            fence_async_proxy();
            if (thread == 0) {
                sh.note[at.stage].x = note_none;
            }
            named_barrier(1, 128);
            if (lane == 0) {
                barrier_arrive(shared_address(&sh.p_ready[at.stage]));
            }
            at.next();
        }

        uint32_t pending = 0; /* barrier of the tile whose P is written but not handed over; 0: none */
#pragma unroll 1
        for (; tile < end; tile++) {
            const uint32_t stage = stages + at.stage * stage_bytes;
            const bool last = tile + 1 == end;
            float d[32];
            const uint64_t tile_at = descriptor_ahead(ring_at, at.stage * stage_bytes);
            wgmma_fence();
#pragma unroll
            for (int b = 0; b < n_box; b++) {
                if (b % 3 == 0) {
                    barrier_wait(shared_address(&sh.full[at.stage][b / 3]), at.parity);
                }
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint64_t k_at = descriptor_ahead(tile_at, b * box_bytes + k * 32);
                    if (b == 8) {
                        wgmma<T>::n64(d, descriptor_ahead(rope_at, k * 32), k_at, 1);
                    } else if (b == 7 && k == 3) {
                        wgmma<T>::n64(d, rest_at, k_at, 1);
                    } else {
                        wgmma<T>::n64(d, q[(b & 7) * 4 + k], k_at, b + k > 0);
                    }
                }
                if (b == hand_over_box && pending && lane == 0) {
                    barrier_arrive(pending);
                }
            }
            wgmma_commit();
            /* while they multiply */
            const bool known = sh.known[at.stage], hidden = (tile + 1) * 64 > all_visible || !known;
            if ((thread_now() & 127) == 0) {
                const int some = max(0, min(visible(a, length, sh.where.w) - tile * 64, 64));
                sh.note[at.stage] = make_int4((first ? note_first : 0) |
                                                  (last ? note_last | (request == sh.place.w ? note_stop : 0) : 0),
                                              some | max(0, min(all_visible - tile * 64, some)) << 8, request, piece);
            }
            wgmma_wait<0>();
            wgmma_pin(d);
            if (hidden) {
                hide_scores(a, sh, d, known, length, tile);
            }

            float top[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float part[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    part[j] = fmaxf(fmaxf(d[j * 4 + 2 * i], d[j * 4 + 2 * i + 1]),
                                    fmaxf(d[j * 4 + 2 * i + 16], d[j * 4 + 2 * i + 17]));
                }
                top[i] = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
            }
            /* The maximum lags by up to 2^8, which spares nearly all rescaling. Whether it does is each thread's own
             * question; only when the answer is no for one of the warp do the four threads of a row agree on it. */
            const bool moves = top[0] * a.scale_log2 > maximum[0] + 8.0f || top[1] * a.scale_log2 > maximum[1] + 8.0f;
            const bool any = __any_sync(~0u, moves);
            if (any) {
#pragma unroll
                for (int lanes = 1; lanes <= 2; lanes++) {
                    top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], lanes));
                    top[1] = fmaxf(top[1], __shfl_xor_sync(~0u, top[1], lanes));
                }
                const int t = thread_now();
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float now = top[i] * a.scale_log2;
                    int change = 0;
                    if (now > maximum[i] + 8.0f) {
                        /* It moves by whole numbers, so that factors are exact powers of two. The first one is exact: a
                         * row whose keys are few, or score alike, then has probabilities that rounding spares. */
                        const float steps = ceilf(now - maximum[i]);
                        change = (int)fmaxf(-steps, -127.0f);
                        maximum[i] = fmaxf(maximum[i] + steps, now); /* `now` if nothing was seen before */
                    }
                    sum[i] *= power_of_two(change);
                    if ((t & 3) == 0) {
                        sh.rescale[at.stage][(t >> 5 & 3) * 16 + (t >> 2 & 7) + 8 * i] = change;
                    }
                }
            }
            if (lane == 0) {
                sh.rescale_any[at.stage][thread_now() >> 5 & 3] = any;
            }
            const float base0 = maximum[0] == -INFINITY ? 0.0f : maximum[0],
                        base1 = maximum[1] == -INFINITY ? 0.0f : maximum[1];
#pragma unroll
            for (int j = 0; j < 8; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    d[j * 4 + i] = exp2_fast(fmaf(d[j * 4 + i], a.scale_log2, i < 2 ? -base0 : -base1));
                }
                if (j & 1) {
                    store_matrix((stage + rope_box + matrix_at) ^ ((j - 1) * 16), pack(d[4 * j - 4], d[4 * j - 3], T()),
                                 pack(d[4 * j - 2], d[4 * j - 1], T()), pack(d[4 * j], d[4 * j + 1], T()),
                                 pack(d[4 * j + 2], d[4 * j + 3], T()));
                }
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float part[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    part[j] =
                        (d[j * 4 + 2 * i] + d[j * 4 + 2 * i + 1]) + (d[j * 4 + 2 * i + 16] + d[j * 4 + 2 * i + 17]);
                }
                sum[i] += (part[0] + part[1]) + (part[2] + part[3]);
            }
            if (last) {
                const int t = thread_now();
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int row = (t >> 5 & 3) * 16 + (t >> 2 & 7) + 8 * i;
                    sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
                    sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
                    if ((t & 3) == 0) {
                        const float lse2 = sum[i] == 0.0f ? -INFINITY : maximum[i] + log2f(sum[i]);
                        sh.inverse[request & 1][row] = sum[i] == 0.0f ? 0.0f : 1.0f / sum[i];
                        int token, head;
                        const bool valid = row_place(a, sh, row, token, head);
                        if (piece >= 0) {
                            a.piece_lse[((int64_t)piece * a.n_group + sh.where.z) * 64 + row] = lse2;
                        } else if (a.lse && valid) {
                            a.lse[request * a.lse_stride[0] + token * a.lse_stride[1] + head * a.lse_stride[2]] =
                                sum[i] == 0.0f ? a.lse_empty : lse2 * a.lse_unit;
                        }
                    }
                }
            }
            fence_async_proxy();
            __syncwarp();
            pending = shared_address(&sh.p_ready[at.stage]);
            at.next();
            if (first || last || !barrier_done(shared_address(&sh.full[at.stage][2]), at.parity)) {
                if (lane == 0) {
                    barrier_arrive(pending);
                }
                pending = 0;
            }
            first = false;
        }
    }
}

/* --- value --- */

/* In place, in this order, with no register beside: there is none. */
__device__ __forceinline__ void scale_rows(float (&o)[2][64], float f0, float f1)
{
#pragma unroll
    for (int i = 0; i < 128; i++) {
        asm volatile("mul.f32 %0, %0, %1;" : "+f"(o[i >> 6][i & 63]) : "f"(i & 2 ? f1 : f0));
    }
}

/* Has this warp rows that exist? */
__device__ __forceinline__ bool has_rows(const dense_sm90_args &a, const small_shared &sh)
{
    return sh.place.z < a.n_q && sh.where.x + (thread_now() >> 5 & 3) * 16 < a.row_per_token;
}

/* The warp's rows of a piece, in the order of the accumulators. */
__device__ __forceinline__ float4 *piece_at(const dense_sm90_args &a, const small_shared &sh, int piece, int warp,
                                            int half)
{
    return reinterpret_cast<float4 *>(a.piece_o) +
           ((((int64_t)piece * a.n_group + sh.where.z) * 4 + warp) * 2 + half) * 1024;
}

__device__ __forceinline__ void write_piece(float4 *to, const float (&o)[2][64])
{
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const float *x = &o[i >> 4][4 * i & 63];
        asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + i * 32), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                     "f"(x[3])
                     : "memory");
    }
}

/* The warp's 16 rows, this half's columns, through 8 KB of shared memory: four boxes of 64 columns, `box_step` bytes apart.
 * Returns when the memory is free again. */
template <typename T>
__device__ __forceinline__ void write_value(const tensor_map *o_map, const small_shared &sh, const float (&o)[2][64],
                                            uint32_t to, uint32_t box_step, int half, int request)
{
    const int thread = thread_now() & 127, lane = thread & 31;
    const uint32_t at = swizzled(to, lane & 15, lane >> 4);
#pragma unroll
    for (int b = 0; b < 4; b++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = &o[b >> 1][(b & 1) * 32 + i * 8];
            store_matrix((at ^ (i * 32)) + b * box_step, pack(x[0], x[1], T()), pack(x[2], x[3], T()),
                         pack(x[4], x[5], T()), pack(x[6], x[7], T()));
        }
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
        for (int b = 0; b < 4; b++) {
            tma_store(o_map, to + b * box_step, half * 256 + b * 64, sh.where.x + (thread >> 5) * 16, sh.place.x,
                      sh.place.z, request);
        }
        bulk_commit();
        bulk_wait_read();
    }
    __syncwarp();
}

/* A warp's word about its rows of a piece, this half; DENSE_SM90_READY and others. */
__device__ __forceinline__ uint64_t *word_of(const dense_sm90_args &a, const small_shared &sh, int piece, int half,
                                             int warp)
{
    return a.word + ((((int64_t)piece * a.n_group + sh.where.z) * 2 + half) * 4 + warp);
}

__device__ __forceinline__ void tell_ready(const dense_sm90_args &a, const small_shared &sh, int piece, int half)
{
    const int thread = thread_now() & 127;
    __syncwarp();
    if ((thread & 31) == 0) {
        store_release(word_of(a, sh, piece, half, thread >> 5), DENSE_SM90_READY);
    }
}

/* Weights of the pieces of a row; lse is base 2. */
struct weights {
    float w[DENSE_SM90_MOST_FOLDED], lse;
};

__device__ __forceinline__ weights weigh(const dense_sm90_args &a, const small_shared &sh, int first_cut, int n,
                                         int row)
{
    weights to;
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < DENSE_SM90_MOST_FOLDED; i++) {
        to.w[i] = i < n ? __ldcg(a.piece_lse + ((int64_t)line_piece(first_cut, i) * a.n_group + sh.where.z) * 64 + row)
                        : -INFINITY;
        top = fmaxf(top, to.w[i]);
    }
#pragma unroll
    for (int i = 0; i < DENSE_SM90_MOST_FOLDED; i++) {
        to.w[i] = to.w[i] == -INFINITY ? 0.0f : exp2f(to.w[i] - top);
    }
    const float sum = (to.w[0] + to.w[2]) + (to.w[1] + to.w[3]);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int i = 0; i < DENSE_SM90_MOST_FOLDED; i++) {
        to.w[i] *= inverse;
    }
    to.lse = sum == 0.0f ? -INFINITY : top + log2f(sum);
    return to;
}

/* o += x * weight, both operations rounded, as in the combine kernel. */
__device__ __forceinline__ void add_piece(uint32_t from, float (&o)[2][64], float w0, float w1)
{
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float x[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                     : "r"(from + i * 512)
                     : "memory");
#pragma unroll
        for (int j = 0; j < 4; j++) {
            asm volatile("{\n.reg .f32 t;\nmul.rn.f32 t, %1, %2;\nadd.rn.f32 %0, %0, t;\n}"
                         : "+f"(o[i >> 4][(4 * i & 63) + j])
                         : "f"(x[j]), "f"(j & 2 ? w1 : w0));
        }
    }
}

/*
 * The end of a request that other parts have pieces of. The part with the first piece is nearly always the last to end,
 * and then each of its warps folds the other pieces' rows into its own, if they are few; else, and if one is not there
 * yet, it leaves its own in memory too, and the combine kernel does the same in the same order. Nobody waits for another
 * thread block.
 */
template <typename T>
__device__ __forceinline__ void end_piece(const dense_sm90_args &a, const tensor_map *o_map, uint32_t stages,
                                          small_shared &sh, float (&o)[2][64], int half, int request, int piece,
                                          bool stop)
{
    const int thread = thread_now() & 127, warp = thread >> 5, lane = thread & 31, row = warp * 16 + (lane >> 2);
    const int2 cut = sh.cut;
    float4 *own = piece_at(a, sh, piece, warp, half) + lane;
    if (piece == sh.first_piece) {
        write_piece(own, o);
        if (stop) {
            tell_ready(a, sh, piece, half); /* else after the next tile: it would have to wait for its stores here */
        }
        return;
    }
    const bool there =
        cut.y <= DENSE_SM90_MOST_FOLDED &&
        __all_sync(~0u, lane == 0 || lane >= cut.y ||
                            load_acquire(word_of(a, sh, line_piece(cut.x, lane), half, warp)) == DENSE_SM90_READY);
    if (lane == 0) {
        *word_of(a, sh, piece, half, warp) = there ? DENSE_SM90_FOLDED : 0;
    }
    if (!there) {
        write_piece(own, o);
        return;
    }
    __syncwarp();
    /* this CTA has nothing else to do, so the ring may hold what is read */
    const uint32_t place = stages + (half * 4 + warp) * (n_stage * stage_bytes / 8),
                   bar = shared_address(&sh.fold[half * 4 + warp]);
    const auto fetch = [&](int i) {
        if (lane == 0) {
            fence_async_proxy_all();
            barrier_expect(bar, 16384);
            bulk_load(place, piece_at(a, sh, line_piece(cut.x, i), warp, half), bar, 16384);
        }
    };
    fetch(1);
    const weights top = weigh(a, sh, cut.x, cut.y, row), bottom = weigh(a, sh, cut.x, cut.y, row + 8);
    if (half == 0 && (lane & 3) == 0 && a.lse) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int token, head;
            if (row_place(a, sh, row + 8 * i, token, head)) {
                const float lse = i ? bottom.lse : top.lse;
                a.lse[request * a.lse_stride[0] + token * a.lse_stride[1] + head * a.lse_stride[2]] =
                    lse == -INFINITY ? a.lse_empty : lse * a.lse_unit;
            }
        }
    }
    scale_rows(o, top.w[0], bottom.w[0]);
#pragma unroll 1
    for (int i = 1; i < cut.y; i++) {
        barrier_wait(bar, ~i & 1);
        add_piece(place + lane * 16, o,
                  i == 1   ? top.w[1]
                  : i == 2 ? top.w[2]
                           : top.w[3],
                  i == 1   ? bottom.w[1]
                  : i == 2 ? bottom.w[2]
                           : bottom.w[3]);
        __syncwarp();
        if (i + 1 < cut.y) {
            fetch(i + 1);
        }
    }
    write_value<T>(o_map, sh, o, place, 2048, half, request);
}

/*
 * Makes values harmless that a row does not see, columns of this half: 0 * NaN is not 0. Keys `some` and beyond, which no
 * row sees, become 0; of keys `all` and beyond, which some rows see, what is not finite does. A row that sees such a key
 * has no finite score for it, and so loses nothing.
 */
template <typename T> __device__ __forceinline__ void clean_values(uint32_t v, int half, int all, int some)
{
#pragma unroll 1
    for (int i = (all << 5) + (thread_now() & 127); i < 64 << 5; i += 128) {
        const uint32_t at = v + (i & 3) * box_bytes + (i >> 5) * 128 + (i >> 2 & 7) * 16;
        uint32_t x[4] = {0, 0, 0, 0};
        if (i >> 5 < some) {
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                         : "r"(at)
                         : "memory");
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[j] =
                    (is_finite(x[j], T()) ? x[j] & 0xffffu : 0) | (is_finite(x[j] >> 16, T()) ? x[j] & 0xffff0000u : 0);
            }
        }
        asm volatile("st.shared.v4.b32 [%4], {%0, %1, %2, %3};" ::"r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(at)
                     : "memory");
    }
    fence_async_proxy();
    named_barrier(2 + half, 128);
}

/* `half` is no template parameter: two copies of this code would crowd the instruction cache. */
template <typename T, int n_box>
__device__ void value_role(const dense_sm90_args &a, const tensor_map *q_map, const tensor_map *k_map,
                           const tensor_map *o_map, uint32_t stages, small_shared &sh, int half)
{
    float o[2][64]; /* columns 0-127 and 128-255 of this half */
    ring at;
    cursor next;
    next.request = sh.part.x;
    next.tile = -1;
    next.end = 0;
    next.page = -1;
    if (half == 1 && (thread_now() & 127) == 0) {
#pragma unroll 1
        for (int i = 0; i < n_stage; i++) {
            load_next(a, q_map, k_map, stages, sh, i, next);
        }
    }
    int what;
#pragma unroll 1
    do {
        barrier_wait(shared_address(&sh.p_ready[at.stage]), at.parity);
        what = sh.note[at.stage].x;
        if (!(what & note_none)) {
            const uint32_t stage = stages + at.stage * stage_bytes, v = stage + half * 4 * box_bytes;
            const int keys = sh.note[at.stage].y;
            if (keys >> 8 < 64) {
                clean_values<T>(v, half, keys >> 8, keys & 0xff);
            }
            if (!(what & note_first) && sh.rescale_any[at.stage][thread_now() >> 5 & 3]) {
                const int row = (thread_now() >> 5 & 3) * 16 + (thread_now() >> 2 & 7);
                scale_rows(o, power_of_two(sh.rescale[at.stage][row]), power_of_two(sh.rescale[at.stage][row + 8]));
            }
            wgmma_pin(o[0]);
            wgmma_pin(o[1]);
            wgmma_fence();
            const uint32_t uniform = __shfl_sync(~0u, stage, 0);
            const uint64_t p_at = descriptor_k_major(uniform + rope_box),
                           v_at = descriptor_n_major(uniform + half * 4 * box_bytes, box_bytes);
#pragma unroll
            for (int n = 0; n < 2; n++) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    wgmma<T>::n128(o[n], descriptor_ahead(p_at, k * 32),
                                   descriptor_ahead(v_at, n * 2 * box_bytes + k * 2048), k > 0 || !(what & note_first));
                }
            }
            wgmma_commit();
            /* the part's first piece was stored a tile ago */
            if ((what & note_first) && sh.part.y > 0 && sh.note[at.stage].z == sh.part.x + 1 && has_rows(a, sh)) {
                tell_ready(a, sh, sh.first_piece, half);
            }
            if (half == 1 && (thread_now() & 127) == 0) {
                prepare_tile(a, sh, at.stage, next);
            }
            wgmma_wait<0>();
            wgmma_pin(o[0]);
            wgmma_pin(o[1]);
        }
        int request = 0, piece = -1;
        if (what & note_last) {
            const int row = (thread_now() >> 5 & 3) * 16 + (thread_now() >> 2 & 7);
            request = sh.note[at.stage].z, piece = sh.note[at.stage].w;
            scale_rows(o, sh.inverse[request & 1][row], sh.inverse[request & 1][row + 8]);
            if (piece < 0) { /* through this half's values, which nobody needs any more */
                named_barrier(2 + half, 128);
                if (has_rows(a, sh)) {
                    write_value<T>(o_map, sh, o,
                                   stages + at.stage * stage_bytes + half * 4 * box_bytes +
                                       (thread_now() >> 5 & 3) * 2048,
                                   box_bytes, half, request);
                }
            }
        }
        /* Behind the last tile of a request comes the next one's q, which is in registers by now: its stage is given back
         * too before a piece is written. */
#pragma unroll 1
        for (bool again = (what & (note_last | note_stop)) == note_last;; again = false) {
            __syncwarp();
            const uint32_t empty = shared_address(&sh.empty[at.stage]);
            if ((thread_now() & 31) == 0) {
                barrier_arrive(empty);
            }
            if (what & note_stop) {
                barrier_wait(empty, at.parity); /* before end_piece() uses the ring */
            } else if (half == 1 && (thread_now() & 127) == 0) {
                barrier_wait(empty, at.parity);
                load_next(a, q_map, k_map, stages, sh, at.stage, next);
            }
            __syncwarp();
            at.next();
            if (!again) {
                break;
            }
            barrier_wait(shared_address(&sh.p_ready[at.stage]), at.parity);
        }
        if (what & note_last) {
            if (what & note_stop) {
                launch_dependents();
            }
            if (piece >= 0 && has_rows(a, sh)) {
                end_piece<T>(a, o_map, stages, sh, o, half, request, piece, what & note_stop);
            }
        }
    } while (!(what & note_stop));
}

/* What the shared notes say of this CTA's rows; none of it is read from memory. */
__device__ __forceinline__ void find_place(const dense_sm90_args &a, small_shared &sh)
{
    const place s = place_of(a);
    sh.place = make_int4(s.kv_head, s.kv_head * a.kv_row_stride + s.row, s.token, -1);
    sh.where =
        make_int4(s.row, s.token + s.row / a.head_per_kv, s.block,
                  min(s.token + (s.row + 63) / a.head_per_kv, a.row_per_token > a.head_per_kv ? a.n_q - 1 : s.token));
    sh.part = make_int4(0, 0, 0, -1);
    sh.cut = make_int2(0, 0);
    sh.first_piece = (int)(blockIdx.x / a.n_group) * 2;
}

/* Fills in what they say of its part. Called by all threads. As soon as the first request is known its q is ordered, and
 * what its tiles need; true in the thread that did it. */
__device__ __forceinline__ bool find_work(const dense_sm90_args &a, const tensor_map *q_map, uint32_t stages,
                                          small_shared &sh)
{
    const int p = blockIdx.x / a.n_group, thread = threadIdx.x;
    const line_input in = {a.length, a.n_seq, a.max_length, 1, a.n_part, DENSE_SM90_ITEM_COST, DENSE_SM90_LEAST_PIECE};
    bool ordered = false;
    if (thread == load_thread && a.n_seq == 1) {
        order_q(q_map, stages, sh, 0, 0);
        ordered = true;
    }
    __syncwarp();
    const line_share line = line_weigh<DENSE_SM90_THREADS>(in, sh.scratch);
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        if (i == 1) {
            __syncthreads();
            if (thread == load_thread && p < line.parts && sh.part.x < a.n_seq) {
                if (!ordered) {
                    order_q(q_map, stages, sh, 0, sh.part.x);
                    ordered = true;
                }
                fetch_request(a, sh, sh.part.x, a.n_seq - 1);
            }
            __syncwarp();
        }
        if (p < line.parts) {
            line_item item;
            if (i == 1 && p + 1 == line.parts) {
                if (thread == 0) {
                    sh.place.w = a.n_seq - 1;
                }
            } else if (const int64_t x = line_boundary(in, line, p + i); line_find(in, line, x, item)) {
                const int tile = line_cut_tile(in, item, x);
                const bool inside = tile > 0 && tile < item.tiles;
                if (i == 0) {
                    sh.part.x = item.request + (tile == item.tiles);
                    sh.part.y = inside ? tile : 0;
                } else {
                    sh.place.w = item.request - (tile == 0);
                    if (inside) {
                        const line_cuts cuts = line_cuts_of(in, line, item);
                        sh.cut = make_int2(cuts.first, cuts.n + 1);
                        sh.part.z = tile;
                        sh.part.w = line_piece(cuts.first, p + 1 - cuts.first);
                    }
                }
            }
        }
    }
    __syncthreads();
    /* What the combine kernel has to fold, told by the part that has the first piece. */
    if (sh.where.z == 0) {
        const int2 cut = sh.cut;
        const bool begins = sh.part.w >= 0 && sh.part.w != sh.first_piece;
        if (a.n_seq <= a.n_part) {
            for (int i = sh.part.x + (sh.part.y > 0) + thread; i <= sh.place.w; i += DENSE_SM90_THREADS) {
                a.to_fold[i] = begins && i == sh.place.w ? make_int4(i, cut.x, cut.y, 0) : make_int4(0, 0, 0, 0);
            }
        } else if (thread == 0) {
            a.to_fold[p] = begins ? make_int4(sh.place.w, cut.x, cut.y, 0) : make_int4(0, 0, 0, 0);
        }
    }
    return ordered;
}

template <typename T, int d_k>
__device__ __forceinline__ void decode(const tensor_map *q_map, const tensor_map *k_map, const tensor_map *o_map,
                                       const dense_sm90_args &a)
{
    constexpr int n_box = d_k / 64;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t stages = shared_address(shared), q_rest = stages + n_stage * stage_bytes;
    small_shared &sh = *reinterpret_cast<small_shared *>(shared + n_stage * stage_bytes + 2048 + box_bytes);
    if (threadIdx.x == load_thread) {
        find_place(a, sh);
        for (int i = 0; i < n_stage; i++) {
            for (int g = 0; g < 3; g++) {
                barrier_init(shared_address(&sh.full[i][g]), 1);
            }
            barrier_init(shared_address(&sh.p_ready[i]), 4);
            barrier_init(shared_address(&sh.empty[i]), 8);
        }
        for (int i = 0; i < 8; i++) {
            barrier_init(shared_address(&sh.fold[i]), 1);
        }
        barrier_init_fence();
        fence_async_proxy();
        tma_prefetch_map(q_map);
        tma_prefetch_map(k_map);
        tma_prefetch_map(o_map);
    }
    wait_for_prerequisites();
    const bool ordered = find_work(a, q_map, stages, sh), work = sh.part.x <= sh.place.w;
    if (ordered && !work) { /* what was asked for must not arrive when this CTA is gone */
        copy_async_wait_but<0>();
        expect_stage(shared_address(&sh.full[0][0]));
#pragma unroll
        for (int g = 0; g < 3; g++) {
            barrier_wait(shared_address(&sh.full[0][g]), 0);
        }
    }
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (warpgroup == 2) {
        registers_up<184>();
        score_role<T, n_box>(a, stages, q_rest, sh);
    } else {
        registers_down<160>();
        if (work) {
            value_role<T, n_box>(a, q_map, k_map, o_map, stages, sh, warpgroup);
        }
    }
}

} // namespace

#define DENSE_SM90(name, type, d_k)                                                                  \
    extern "C" __global__ void __launch_bounds__(DENSE_SM90_THREADS, 1)                              \
        name(const __grid_constant__ tensor_map q_map, const __grid_constant__ tensor_map k_map,     \
             const __grid_constant__ tensor_map o_map, const __grid_constant__ dense_sm90_args args) \
    {                                                                                                \
        decode<type, d_k>(&q_map, &k_map, &o_map, args);                                             \
    }

DENSE_SM90(dense_sm90_bf16_576, __nv_bfloat16, 576)
DENSE_SM90(dense_sm90_bf16_512, __nv_bfloat16, 512)
DENSE_SM90(dense_sm90_f16_576, __half, 576)
DENSE_SM90(dense_sm90_f16_512, __half, 512)
