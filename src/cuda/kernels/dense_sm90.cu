/*
 * dense_sm90.cu - dense decode for sm_90a: TMA, mbarriers, wgmma. docs/cuda-notes.md tells why it looks like this.
 *
 * A CTA owns 64 query rows (heads, times tokens) of one kv head and walks through key tiles of 64 keys. TMA brings them
 * into a ring of three stages; a request's q takes a place in the ring like a tile of keys. Its three warpgroups:
 *
 *     score     keeps 496 columns of q in registers; S = Q K^T, softmax, writes P over the tile's rope columns
 *     value x2  O[64][256 columns each] += P V, where V is the K tile with its rows as wgmma's K; one thread of each
 *               refills the boxes of the stage that the warpgroup has just finished with
 *
 * P of a tile is handed over only when the next tile's scores are through the tensor cores (unless that tile is late),
 * so that value work is left to cover the softmax.
 */
#include "dense_sm90.h"
#include "sm90_ptx.cuh"

namespace {

constexpr int n_stage = 3;
constexpr uint32_t box_bytes = 64 * 128; /* 64 rows of 64 16-bit columns */
constexpr uint32_t stage_bytes = 9 * box_bytes;
constexpr uint32_t rope_box = 8 * box_bytes; /* in a stage; becomes P */
constexpr int n_full = 3;                    /* barriers of a stage: boxes 0-3, 4-7, 8 */

/* Shared memory behind the stages and 80 columns of q. What is per stage is free when the stage is. */
struct alignas(16) small_shared {
    int4 note[n_stage];             /* load to score, q: length, first tile, end tile, piece (-1: not split)
                                       score to value: what to do (below), keys that exist, request, piece */
    int4 place;                     /* of this CTA's rows in the q map: kv head, row, token; last request of the part */
    int4 where;                     /* first row within the kv head's rows, its query token, row block */
    int4 part;                      /* first request, its first tile, end tile of the last request, first piece */
    int4 record[2];                 /* the plan's record of the request after this one, fetched ahead; by half */
    int page[2];                    /* page of the next tile, fetched ahead; by half */
    float inverse[2][64];           /* 1 / row sum, by the parity of the request: the ring holds the ends of two */
    int8_t rescale[n_stage][64];    /* the power of two that O is multiplied with before the tile's product */
    int8_t rescale_any[n_stage][4]; /* by warp */
    int known[n_stage];             /* does the tile's page exist? */
    uint64_t full[n_stage][n_full];
    uint64_t p_ready[n_stage];  /* P is written, or q is read */
    uint64_t empty[n_stage][2]; /* the value warpgroup of this half is done */
};
static_assert(sizeof(small_shared) <= 1024, "small_shared outgrew its place");

/* Bits of note.x. The value warpgroups know nothing else: 128 of their 144 registers are accumulators. */
enum { note_none = 1, note_first = 2, note_last = 4, note_stop = 8 };

struct ring {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void next()
    {
        if (++stage == n_stage) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* The row block of a CTA. */
struct place {
    int kv_head, token, row; /* in the q map: token, and first row within the kv head's rows */
    int block;               /* its number among all row blocks */
};

__device__ __forceinline__ place place_of(const dense_sm90_args &a)
{
    place s;
    const int block = blockIdx.x % a.n_group;
    s.kv_head = block / a.block_per_head;
    s.token = block % a.block_per_head / a.block_per_token;
    s.row = block % a.block_per_head % a.block_per_token * 64;
    s.block = block;
    return s;
}

/* Query token and head of a row of this CTA's block; false: the row is beyond the kv head's rows. */
__device__ __forceinline__ bool row_place(const dense_sm90_args &a, const small_shared &sh, int row, int &token,
                                          int &head)
{
    const int r = sh.where.x + row;
    token = sh.place.z;
    head = r;
    if (a.row_per_token != a.head_per_kv) { /* tokens are folded; a division is slow */
        token = r / a.head_per_kv;
        head = r % a.head_per_kv;
    }
    head += sh.place.x * a.head_per_kv;
    return token < a.n_q && r < a.row_per_token;
}

/* Keys that a query token sees. */
__device__ __forceinline__ int visible(const dense_sm90_args &a, int length, int token)
{
    return a.causal ? max(0, min(length, length - a.n_q + token + 1)) : length;
}

/* The plan's record of a request: length, first piece, pieces. */
__device__ __forceinline__ const int32_t *record_of(const dense_sm90_args &a, int request)
{
    return a.plan + DENSE_SM90_PLAN_HEADER + a.n_part * DENSE_SM90_PLAN_PART + request * DENSE_SM90_PLAN_REQUEST;
}

/* 2^e for e in -126..127; 0 for -127. */
__device__ __forceinline__ float power_of_two(int e)
{
    return __int_as_float((e + 127) << 23);
}

/* Read anew where it is used, so that nothing derived from it stays in registers. */
__device__ __forceinline__ int thread_now()
{
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

/* --- load --- */

/*
 * The next entry of the ring: q of a request, then its key tiles. One thread of each value warpgroup keeps one and
 * loads its half of the boxes (the second the rope columns too) into the stage it has just finished with. It stands
 * between two products, so it waits for no global load: pages and records are fetched one step ahead.
 */
struct cursor {
    int request, tile, end; /* tile -1: q is next */
};

__device__ __forceinline__ void fetch_page(const dense_sm90_args &a, int *to, int request, int tile)
{
    const int key = tile * 64;
    copy_async<4>(to, a.page_table + request * a.page_table_stride +
                          (a.page_shift >= 0 ? key >> a.page_shift : key / a.page_size));
}

template <int n_box>
__device__ __forceinline__ void load_next(const dense_sm90_args &a, const tensor_map *q_map, const tensor_map *k_map,
                                          uint32_t stages, small_shared &sh, uint32_t stage, int half, cursor &c)
{
    const int4 place = sh.place;
    if (c.request > place.w) {
        return;
    }
    const uint32_t to = stages + stage * stage_bytes, to_half = to + half * 4 * box_bytes;
    const uint32_t full = shared_address(&sh.full[stage][half]), full_rope = shared_address(&sh.full[stage][2]);
    copy_async_wait();
    if (c.tile < 0) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            tma_load(to_half + i * box_bytes, q_map, full, half * 256 + i * 64, place.y, place.z, c.request,
                     l2_evict_first);
        }
        if (half == 1 && n_box == 9) {
            tma_load(to + rope_box, q_map, full_rope, 512, place.y, place.z, c.request, l2_evict_first);
            barrier_expect(full_rope, box_bytes);
        }
        const int4 record = sh.record[half], part = sh.part;
        const bool first = c.request == part.x;
        c.tile = first ? part.y : 0;
        c.end = c.request == place.w ? part.z : max((record.x + 63) / 64, 1);
        if (half == 1) { /* this half is the last to leave a stage */
            sh.note[stage] = make_int4(record.x, c.tile, c.end, record.z <= 1 ? -1 : record.y + (first ? part.w : 0));
        }
        barrier_expect(full, 4 * box_bytes);
        if (record.x > 0) {
            fetch_page(a, &sh.page[half], c.request, c.tile);
        } else {
            sh.page[half] = -1;
        }
        if (c.request < place.w) {
            copy_async<16>(&sh.record[half], record_of(a, c.request + 1));
        }
        return;
    }
    const uint64_t policy = a.keep_in_l2 ? l2_evict_normal : l2_evict_first;
    const int page_read = sh.page[half];
    const bool known = page_read >= 0 && page_read < a.n_page;
    const int page = known ? page_read : a.n_page; /* beyond the end TMA fills with zeros */
    const int slot = a.page_shift >= 0 ? (c.tile * 64) & (a.page_size - 1) : (c.tile * 64) % a.page_size;
    if (half == 0) {
        sh.known[stage] = known;
    }
    barrier_expect(full, 4 * box_bytes);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        tma_load(to_half + i * box_bytes, k_map, full, half * 256 + i * 64, slot, place.x, page, policy);
    }
    if (half == 1 && n_box == 9) { /* P lies there, which the other warpgroup reads as well */
        barrier_expect(full_rope, box_bytes);
        tma_load(to + rope_box, k_map, full_rope, 512, slot, place.x, page, policy);
    }
    if (++c.tile < c.end) {
        fetch_page(a, &sh.page[half], c.request, c.tile);
    } else {
        c.request++;
        c.tile = -1;
    }
}

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

template <typename T, int n_box>
__device__ void score_role(const dense_sm90_args &a, uint32_t stages, uint32_t q_rest, small_shared &sh)
{
    const int lane = threadIdx.x % 32;
    /* address in a box that this lane gives to ld/stmatrix for columns 0-15; the others follow by exclusive or */
    const uint32_t matrix_at = swizzled(0, threadIdx.x % 128 / 32 * 16 + (lane & 15), lane >> 4);
    constexpr int n_full_used = n_box == 9 ? 3 : 2;
    uint32_t q[31][4];
    ring at;
    for (int request = sh.part.x; request <= sh.place.w; request++) {
        int length, tile, end, piece, all_visible; /* all_visible: keys that all rows of the block see */
        float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
        bool first = true;

        /* q: registers; columns 496-511 and the rope columns into their own place */
        {
            const uint32_t stage = stages + at.stage * stage_bytes;
#pragma unroll
            for (int g = 0; g < n_full_used; g++) {
                barrier_wait(shared_address(&sh.full[at.stage][g]), at.parity);
            }
#pragma unroll
            for (int k = 0; k < 31; k++) {
                load_matrix(q[k], (stage + k / 4 * box_bytes + matrix_at) ^ (k % 4 * 32));
            }
            const int4 note = sh.note[at.stage];
            length = note.x, tile = note.y, end = note.z;
            piece = note.w;
            all_visible = visible(a, length, sh.where.y);
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
            float d[32];
            wgmma_fence();
#pragma unroll
            for (int g = 0; g < n_full_used; g++) {
                barrier_wait(shared_address(&sh.full[at.stage][g]), at.parity);
#pragma unroll
                for (int b = 4 * g; b < 4 * g + 4 && b < n_box; b++) {
                    const uint64_t k_box = descriptor_k_major(stage + b * box_bytes);
                    if (b < 8) {
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                            if (b == 7 && k == 3) {
                                wgmma<T>::n64(d, descriptor_plain(q_rest), k_box + k * 2, 1);
                            } else {
                                wgmma<T>::n64(d, q[(b & 7) * 4 + k], k_box + k * 2, b + k > 0);
                            }
                        }
                    } else {
                        const uint64_t q_box = descriptor_k_major(q_rest + 2048);
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                            wgmma<T>::n64(d, q_box + k * 2, k_box + k * 2, 1);
                        }
                    }
                }
            }
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_pin(d);
            if (pending && lane == 0) {
                barrier_arrive(pending);
            }

            /* hidden scores become -inf whatever they were */
            const int known = sh.known[at.stage];
            if ((tile + 1) * 64 > all_visible || !known) {
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
#pragma unroll
            for (int lanes = 1; lanes <= 2; lanes++) {
                const float other0 = __shfl_xor_sync(~0u, top[0], lanes), other1 = __shfl_xor_sync(~0u, top[1], lanes);
                top[0] = fmaxf(top[0], other0), top[1] = fmaxf(top[1], other1);
            }
            /* the maximum lags by up to 2^8, which spares nearly all rescaling */
            const bool moves = top[0] * a.scale_log2 > maximum[0] + 8.0f || top[1] * a.scale_log2 > maximum[1] + 8.0f;
            const bool any = __any_sync(~0u, moves);
            if (any) {
                const int t = thread_now();
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float before = maximum[i];
                    float now = top[i] * a.scale_log2;
                    if (now > before + 8.0f) {
                        if (before != -INFINITY) {
                            now = before + ceilf(now - before); /* so that all factors are powers of two */
                        }
                        maximum[i] = now;
                    }
                    const int change = before == maximum[i] ? 0 : (int)fmaxf(before - maximum[i], -127.0f);
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
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                store_matrix((stage + rope_box + matrix_at) ^ (j * 16), pack(d[4 * j], d[4 * j + 1], T()),
                             pack(d[4 * j + 2], d[4 * j + 3], T()), pack(d[4 * j + 4], d[4 * j + 5], T()),
                             pack(d[4 * j + 6], d[4 * j + 7], T()));
            }

            const bool last = tile + 1 == end;
            if ((thread_now() & 127) == 0) {
                sh.note[at.stage] = make_int4((first ? note_first : 0) |
                                                  (last ? note_last | (request == sh.place.w ? note_stop : 0) : 0),
                                              max(0, min(length - tile * 64, 64)), request, piece);
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
            first = false;
            at.next();
            if (last || !barrier_done(shared_address(&sh.full[at.stage][n_full_used - 1]), at.parity)) {
                if (lane == 0) {
                    barrier_arrive(pending);
                }
                pending = 0;
            }
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

template <typename T>
__device__ __forceinline__ void write_value(const dense_sm90_args &a, const small_shared &sh, float (&o)[2][64],
                                            int half, int request, int piece)
{
    const int thread = thread_now() & 127, warp = thread >> 5, lane = thread & 31, row = warp * 16 + (lane >> 2);
    if (sh.place.z >= a.n_q || sh.where.x + warp * 16 >= a.row_per_token) {
        return;
    }
    if (piece >= 0) {
        float4 *to = reinterpret_cast<float4 *>(a.piece_o) +
                     ((((int64_t)piece * a.n_group + sh.where.z) * 4 + warp) * 2 + half) * 1024 + lane;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const float *x = &o[i >> 4][4 * i & 63];
            asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + i * 32), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                         "f"(x[3])
                         : "memory");
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int token, head;
        const bool valid = row_place(a, sh, row + 8 * i, token, head);
        T *to = static_cast<T *>(a.o) + request * a.o_stride[0] + token * a.o_stride[1] + head * a.o_stride[2] +
                half * 256 + lane % 4 * 8;
#pragma unroll
        for (int j = 0; j < 32; j += 4) {
            uint32_t v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float *x = &o[j >> 4][(j + k) * 4 & 63];
                v[k] = pack(x[2 * i], x[2 * i + 1], T());
            }
            quad_transpose(v, lane);
            if (valid) {
                asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to + j * 8), "r"(v[0]), "r"(v[1]),
                             "r"(v[2]), "r"(v[3])
                             : "memory");
            }
        }
    }
}

/* `half` is no template parameter: two copies of this code would crowd the instruction cache. */
template <typename T, int n_box>
__device__ void value_role(const dense_sm90_args &a, const tensor_map *q_map, const tensor_map *k_map, uint32_t stages,
                           small_shared &sh, int half)
{
    float o[2][64]; /* columns 0-127 and 128-255 of this half */
    ring at;
    cursor next;
    next.request = sh.part.x;
    next.tile = -1;
    next.end = 0;
    if ((thread_now() & 127) == 0) {
        copy_async<16>(&sh.record[half], record_of(a, next.request));
#pragma unroll 1
        for (int i = 0; i < n_stage; i++) {
            load_next<n_box>(a, q_map, k_map, stages, sh, i, half, next);
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
            if (keys < 64) { /* values past the end may be NaN, and 0 * NaN is not 0 */
#pragma unroll 1
                for (int i = thread_now() & 127; i < (64 - keys) * 32; i += 128) {
                    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(v + (i & 3) * box_bytes +
                                                                                  (keys + (i >> 5)) * 128 +
                                                                                  (i >> 2 & 7) * 16),
                                 "r"(0)
                                 : "memory");
                }
                fence_async_proxy();
                named_barrier(2 + half, 128);
            }
            if (!(what & note_first) && sh.rescale_any[at.stage][thread_now() >> 5 & 3]) {
                const int row = (thread_now() >> 5 & 3) * 16 + (thread_now() >> 2 & 7);
                scale_rows(o, power_of_two(sh.rescale[at.stage][row]), power_of_two(sh.rescale[at.stage][row + 8]));
            }
            wgmma_pin(o[0]);
            wgmma_pin(o[1]);
            wgmma_fence();
            const uint64_t p_at = descriptor_k_major(stage + rope_box), v_at = descriptor_n_major(v, box_bytes);
#pragma unroll
            for (int n = 0; n < 2; n++) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    wgmma<T>::n128(o[n], p_at + k * 2, v_at + n * (2 * box_bytes >> 4) + k * (2048 >> 4),
                                   k > 0 || !(what & note_first));
                }
            }
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_pin(o[0]);
            wgmma_pin(o[1]);
        }
        float f0 = 1.0f, f1 = 1.0f;
        int request = 0, piece = -1;
        if (what & note_last) {
            const int row = (thread_now() >> 5 & 3) * 16 + (thread_now() >> 2 & 7);
            request = sh.note[at.stage].z, piece = sh.note[at.stage].w;
            f0 = sh.inverse[request & 1][row], f1 = sh.inverse[request & 1][row + 8];
        }
        __syncwarp();
        {
            const uint32_t empty = shared_address(&sh.empty[at.stage][half]);
            if ((thread_now() & 31) == 0) {
                barrier_arrive(empty);
            }
            if ((thread_now() & 127) == 0) {
                barrier_wait(empty, at.parity);
                if (half == 1) {
                    barrier_wait(shared_address(&sh.empty[at.stage][0]), at.parity);
                }
                load_next<n_box>(a, q_map, k_map, stages, sh, at.stage, half, next);
            }
            __syncwarp();
        }
        if (what & note_last) {
            if (what & note_stop) {
                launch_dependents();
            }
            scale_rows(o, f0, f1);
            if (f0 == 0.0f || f1 == 0.0f) { /* a row without keys is 0 even where a value is not a number */
#pragma unroll
                for (int i = 0; i < 128; i++) {
                    asm volatile("{\n.reg .pred p;\nsetp.neu.f32 p, %1, 0f00000000;\n"
                                 "selp.f32 %0, %0, 0f00000000, p;\n}"
                                 : "+f"(o[i >> 6][i & 63])
                                 : "f"(i & 2 ? f1 : f0));
                }
            }
            write_value<T>(a, sh, o, half, request, piece);
        }
        at.next();
    } while (!(what & note_stop));
}

template <typename T, int d_k>
__device__ __forceinline__ void decode(const tensor_map *q_map, const tensor_map *k_map, const dense_sm90_args &a)
{
    constexpr int n_box = d_k / 64;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t stages = shared_address(shared), q_rest = stages + n_stage * stage_bytes;
    small_shared &sh = *reinterpret_cast<small_shared *>(shared + n_stage * stage_bytes + 2048 + box_bytes);
    if (threadIdx.x == 0) {
        for (int i = 0; i < n_stage; i++) {
            for (int g = 0; g < n_full; g++) {
                barrier_init(shared_address(&sh.full[i][g]), 1);
            }
            barrier_init(shared_address(&sh.p_ready[i]), 4);
            barrier_init(shared_address(&sh.empty[i][0]), 4);
            barrier_init(shared_address(&sh.empty[i][1]), 4);
        }
        barrier_init_fence();
        fence_async_proxy();
        tma_prefetch_map(q_map);
        tma_prefetch_map(k_map);
    } else if (threadIdx.x == 32) {
        const int32_t *p = a.plan + DENSE_SM90_PLAN_HEADER + blockIdx.x / a.n_group * DENSE_SM90_PLAN_PART;
        const place s = place_of(a);
        sh.place = make_int4(s.kv_head, s.kv_head * a.kv_row_stride + s.row, s.token, p[2]);
        sh.where = make_int4(s.row, s.token + s.row / a.head_per_kv, s.block, 0);
        sh.part = make_int4(p[0], p[1], p[3], p[4]);
    }
    __syncthreads();
    const bool work = sh.part.x <= sh.place.w;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (warpgroup == 2) {
        registers_up<184>();
        score_role<T, n_box>(a, stages, q_rest, sh);
    } else {
        registers_down<160>();
        if (work) {
            value_role<T, n_box>(a, q_map, k_map, stages, sh, warpgroup);
        }
    }
}

} // namespace

#define DENSE_SM90(name, type, d_k)                                                              \
    extern "C" __global__ void __launch_bounds__(DENSE_SM90_THREADS, 1)                          \
        name(const __grid_constant__ tensor_map q_map, const __grid_constant__ tensor_map k_map, \
             const __grid_constant__ dense_sm90_args args)                                       \
    {                                                                                            \
        decode<type, d_k>(&q_map, &k_map, args);                                                 \
    }

DENSE_SM90(dense_sm90_bf16_576, __nv_bfloat16, 576)
DENSE_SM90(dense_sm90_bf16_512, __nv_bfloat16, 512)
DENSE_SM90(dense_sm90_f16_576, __half, 576)
DENSE_SM90(dense_sm90_f16_512, __half, 512)
