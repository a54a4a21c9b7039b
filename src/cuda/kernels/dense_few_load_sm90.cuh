/*
 * dense_few_load_sm90.cuh - part of dense_few_decode_sm90.cuh: shared memory, the walk of a thread block over its part of the
 * line, and the two warps that load.
 */
#ifndef MLA_DENSE_FEW_LOAD_SM90_CUH
#define MLA_DENSE_FEW_LOAD_SM90_CUH

#include "dense_few_sm90.cuh"

namespace {

constexpr uint32_t box_bytes = 64 * 128;
constexpr int n_slot = DENSE_FEW_SM90_SLOTS;

constexpr int n_note = 4; /* one segment is finished while the next is computed and q of two more is loaded: enough */

/* Where the walk of a thread block begins, or ends: before this tile. */
struct cut {
    int request, head, tile, length; /* length of the request, -1: not known */
};

/* What loads, and who it loads for, say to each other. */
struct alignas(16) load_shared {
    int4 note[n_note];                    /* of segments in turn: request (-1: no more), length, first tile, end tile */
    int2 note_2[n_note];                  /* kv head, place of the piece (-1: the result is complete) */
    float other_lse[DENSE_FEW_SM90_ROWS]; /* of the rows of a piece that is in the ring */
    cut limit[2];
    int folds; /* the last segment is joined with the piece behind it, which is in the ring */
    line_share line;
    line_item last_item; /* where the part ends */
    int there[n_slot]; /* keys of a tile that exist, 0 where its page does not; in the place of the tile's first box */
    int64_t scratch[DENSE_FEW_SM90_THREADS(DENSE_FEW_SM90_ROWS) / 32];
    uint64_t full[n_slot], empty[n_slot];
    uint64_t q_full[2], q_empty[2];
    uint64_t decided; /* folds is set */
};

/* Shared memory: the ring, q in boxes of `rows` x 64 columns, P^T, a struct that begins like the one above. */
template <int rows, int n_box> struct memory {
    static constexpr uint32_t q_box = rows * 128, q_bytes = n_box * q_box;
    static constexpr int n_q = DENSE_FEW_SM90_QS(rows); /* the q of so many segments */
    static constexpr uint32_t q_at = n_slot * box_bytes, p_at = q_at + n_q * q_bytes,
                              small_at = p_at + DENSE_FEW_SM90_P_BYTES(rows);
    static_assert(n_slot >= 2 * n_box, "too few places for boxes");
};

template <int n> struct ring {
    uint32_t slot = 0, parity = 0;
    __device__ __forceinline__ void next()
    {
        if (++slot == n) {
            slot = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void advance(uint32_t places) /* fewer than n */
    {
        slot += places;
        if (slot >= n) {
            slot -= n;
            parity ^= 1;
        }
    }
};

/* The segments of a part: runs of tiles of one item. */
struct walk {
    int request, head, tile, end, length;
    bool last;

    __device__ __forceinline__ bool complete() const
    {
        return tile == 0 && end == line_tiles(length);
    }
    __device__ __forceinline__ bool begin(const dense_few_sm90_args &a, const load_shared &sh)
    {
        const cut from = sh.limit[0], to = sh.limit[1];
        request = from.request, head = from.head, tile = from.tile;
        return any(a, to, from.length);
    }
    __device__ __forceinline__ bool next(const dense_few_sm90_args &a, const load_shared &sh)
    {
        int known = length;
        tile = 0;
        if (++head == a.n_kv_head) {
            head = 0;
            request++;
            known = -1;
        }
        return !last && any(a, sh.limit[1], known);
    }

  private:
    __device__ __forceinline__ bool any(const dense_few_sm90_args &a, const cut &to, int known_length)
    {
        if (request > to.request ||
            (request == to.request && (head > to.head || (head == to.head && tile >= to.tile)))) {
            return false;
        }
        length = known_length >= 0 ? known_length : line_length(few_line(a), request);
        last = request == to.request && head == to.head;
        end = last ? to.tile : line_tiles(length);
        return true;
    }
};

__device__ __forceinline__ int fetch_page(const dense_few_sm90_args &a, const walk &w, int tile)
{
    const int key = tile * 64;
    if (tile >= w.end || key >= w.length) {
        return -1;
    }
    return __ldg(a.page_table + w.request * a.page_table_stride +
                 (a.page_shift >= 0 ? key >> a.page_shift : key / a.page_size));
}

__device__ __forceinline__ void clear_16(uint32_t at)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}

/* What all threads do first: barriers, rows of q that do not exist, and what the thread block has to do. False: nothing. */
template <int rows, int n_box>
__device__ __forceinline__ bool begin_part(const dense_few_sm90_args &a, const tensor_map *q_map,
                                           const tensor_map *k_map, const tensor_map *o_map, uint32_t shared,
                                           load_shared &sh)
{
    using layout = memory<rows, n_box>;
    constexpr int n_thread = DENSE_FEW_SM90_THREADS(rows);
    const int thread = threadIdx.x, part = blockIdx.x;
    if (thread < n_slot) {
        barrier_init(shared_address(&sh.full[thread]), 1);
        barrier_init(shared_address(&sh.empty[thread]), 4);
    } else if (thread < n_slot + layout::n_q) {
        barrier_init(shared_address(&sh.q_full[thread - n_slot]), 1);
        barrier_init(shared_address(&sh.q_empty[thread - n_slot]), 4);
    } else if (thread == 32) {
        barrier_init(shared_address(&sh.decided), 1);
        tma_prefetch_map(q_map);
        tma_prefetch_map(k_map);
        tma_prefetch_map(o_map);
    }
    barrier_init_fence();
    constexpr int boxes = layout::n_q * n_box;
#pragma unroll 1
    for (int i = thread; i < boxes * (rows - a.n_row) * 8; i += n_thread) { /* rows that do not exist */
        const int row = i / 8;
        clear_16(shared + layout::q_at + row % boxes * layout::q_box + (a.n_row + row / boxes) * 128 + i % 8 * 16);
    }
    fence_async_proxy();

    wait_for_prerequisites();
    launch_dependents();
    const line_input in = few_line(a);
    const line_share line = line_weigh<n_thread>(in, sh.scratch);
    if (thread == 0) {
        sh.line = line;
    }
    if (part >= line.parts) {
        return false;
    }
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        line_item item;
        if (part + i == line.parts) {
            if (thread == 0) {
                sh.limit[i] = {a.n_seq, 0, 0, -1};
            }
        } else if (const int64_t x = line_boundary(in, line, part + i); line_find(in, line, x, item)) {
            cut c = {item.request, item.copy, line_cut_tile(in, item, x), item.length};
            if (c.tile == item.tiles) {
                c.tile = 0;
                if (++c.head == a.n_kv_head) {
                    c.head = 0;
                    c.request++;
                    c.length = -1;
                }
            }
            sh.limit[i] = c;
            if (i == 1) {
                sh.last_item = item;
            }
        }
    }
    __syncthreads();
    return true;
}

/* By n_loader warps: warp `me` of them has boxes me, me + n_loader, ... of every tile, and the first one all else. */
template <int rows, int n_box, int n_loader>
__device__ void load_keys(const dense_few_sm90_args &a, const tensor_map *k_map, uint32_t shared, load_shared &sh,
                          int me)
{
    using layout = memory<rows, n_box>;
    const int lane = threadIdx.x % 32;
    ring<n_slot> at;
    walk w;
    bool cut_off = false; /* does the part end within an item that begins in it? */
    for (bool more = w.begin(a, sh); more; more = w.next(a, sh)) {
        int pages = -1, ahead = fetch_page(a, w, w.tile + lane); /* of 32 tiles, one a lane, and of the next 32 */
        for (int tile = w.tile; tile < w.end; tile++) {
            const int i = (tile - w.tile) & 31;
            if (i == 0) {
                pages = ahead;
                ahead = fetch_page(a, w, tile + 32 + lane);
            }
            const int page_read = __shfl_sync(~0u, pages, i);
            const bool known = page_read >= 0 && page_read < a.n_page;
            const int page = known ? page_read : a.n_page; /* beyond the end TMA fills with zeros */
            const int slot = a.page_shift >= 0 ? (tile * 64) & (a.page_size - 1) : (tile * 64) % a.page_size;
            ring<n_slot> tile_at = at;
            at.advance(n_box);
            tile_at.advance(me);
#pragma unroll 1
            for (int b = me; b < n_box; b += n_loader) {
                barrier_wait(shared_address(&sh.empty[tile_at.slot]), tile_at.parity ^ 1);
                if (lane == 0) {
                    const uint32_t full = shared_address(&sh.full[tile_at.slot]);
                    if (b == 0) {
                        sh.there[tile_at.slot] = known ? max(0, min(w.length - tile * 64, 64)) : 0;
                    }
                    barrier_expect(full, box_bytes);
                    tma_load(shared + tile_at.slot * box_bytes, k_map, full, b * 64, slot, w.head >> a.kv_shift, page,
                             a.kv_shift ? l2_evict_normal : l2_evict_first);
                }
                tile_at.advance(n_loader);
            }
            __syncwarp();
        }
        cut_off = w.tile == 0 && !w.complete();
        if (w.complete()) { /* places for the result */
            if (me > 0) {
                at.advance(rows / 8);
                continue;
            }
#pragma unroll 1
            for (int i = 0; i < rows / 8; i++) {
                barrier_wait(shared_address(&sh.empty[at.slot]), at.parity ^ 1);
                if (lane == 0) {
                    barrier_arrive(shared_address(&sh.full[at.slot]));
                }
                at.next();
            }
        }
    }
    if (!cut_off || me > 0) {
        return;
    }
    /* The piece behind the cut was begun first and is most likely there. If it is the only one, it comes into the ring. */
    const int cut = blockIdx.x + 1;
    bool folds = false;
    if (lane == 0) {
        const int n = line_cuts_of(few_line(a), sh.line, sh.last_item).n;
        folds = few_folds_pairs<rows> && n == 1 && load_acquire(a.arrived + cut) == DENSE_FEW_SM90_ARRIVED;
        if (folds) {
            a.arrived[cut] = DENSE_FEW_SM90_FOLDED;
            fence_async_proxy_all();
        }
        sh.folds = folds;
        barrier_arrive(shared_address(&sh.decided));
    }
    if (!__shfl_sync(~0u, folds, 0)) {
        return;
    }
    const float *from = a.piece_o + (int64_t)(2 * cut) * (rows * 512);
#pragma unroll 1
    for (int b = 0; b < rows / 4; b++) {
        barrier_wait(shared_address(&sh.empty[at.slot]), at.parity ^ 1);
        if (lane == 0) {
            const uint32_t full = shared_address(&sh.full[at.slot]);
            barrier_expect(full, box_bytes + (b == 0 ? rows * 4 : 0));
            bulk_load(shared + at.slot * box_bytes, from + b * (box_bytes / 4), full, box_bytes);
            if (b == 0) {
                bulk_load(shared_address(sh.other_lse), a.piece_lse + (int64_t)(2 * cut) * rows, full, rows * 4);
            }
        }
        at.next();
    }
}

template <int rows, int n_box>
__device__ void load_queries(const dense_few_sm90_args &a, const tensor_map *q_map, uint32_t shared, load_shared &sh)
{
    using layout = memory<rows, n_box>;
    walk w;
    ring<layout::n_q> at;
    int segment = 0;
    for (bool more = w.begin(a, sh); more; more = w.next(a, sh), segment++) {
        const bool complete = w.complete();
        const uint32_t full = shared_address(&sh.q_full[at.slot]);
        barrier_wait(shared_address(&sh.q_empty[at.slot]), at.parity ^ 1);
        sh.note[segment % n_note] = make_int4(w.request, w.length, w.tile, w.end);
        sh.note_2[segment % n_note] = make_int2(w.head, complete ? -1 : 2 * (int)blockIdx.x + (w.tile == 0));
        barrier_expect(full, n_box * a.n_row * 128);
#pragma unroll 1
        for (int b = 0; b < n_box; b++) {
            tma_load(shared + layout::q_at + at.slot * layout::q_bytes + b * layout::q_box, q_map, full, b * 64, 0,
                     w.head, 0, w.request, l2_evict_first);
        }
        at.next();
    }
    barrier_wait(shared_address(&sh.q_empty[at.slot]), at.parity ^ 1);
    sh.note[segment % n_note].x = -1;
    barrier_arrive(shared_address(&sh.q_full[at.slot]));
}

} // namespace

#endif
