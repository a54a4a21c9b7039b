/*
 * dense_load_sm90.cuh - of dense_sm90.cu: what the warpgroups of a thread block share, and how keys and queries get there.
 */
#ifndef MLA_DENSE_LOAD_SM90_CUH
#define MLA_DENSE_LOAD_SM90_CUH

#include "dense_line_sm90.cuh"
#include "dense_sm90.h"
#include "sm90_ptx.cuh"

namespace {

constexpr int n_stage = 3;
constexpr uint32_t box_bytes = 64 * 128; /* 64 rows of 64 16-bit columns */
constexpr uint32_t stage_bytes = 9 * box_bytes;
constexpr uint32_t rope_box = 8 * box_bytes; /* in a stage; becomes P */

/* Shared memory behind the stages and 80 columns of q. What is per stage is free when the stage is. */
struct alignas(16) small_shared {
    /* load to score, q: length, first tile, end tile, piece (-1: not split)
     * score to value: what to do (below), keys (below), request, piece */
    int4 note[n_stage];
    int4 place;      /* of this CTA's rows in the q map: kv head, row, token; last request of the part */
    int4 where;      /* first row within the kv head's rows, its query token, row block, last token */
    int4 part;       /* first request, its first tile, end tile of the last request (0: all), its piece */
    int2 cut;        /* of the last request, if it does not end in this part: first cut, pieces */
    int first_piece; /* the piece that the part begins with */
    int length;      /* of the next request, fetched ahead */
    int page[2];     /* of the next two tiles, by parity, fetched ahead */
    union {
        float inverse[2][64]; /* 1 / row sum, by the parity of the request: the ring holds the ends of two */
        int64_t scratch[DENSE_SM90_THREADS / 32]; /* while work is found */
    };
    int8_t rescale[n_stage][64];    /* the power of two that O is multiplied with before the tile's product */
    int8_t rescale_any[n_stage][4]; /* by warp */
    int8_t known[4];                /* does the tile's page exist? */
    uint64_t full[n_stage][3];      /* boxes 0-2, 3-5, 6-8 */
    uint64_t p_ready[n_stage];      /* P is written, or q is read */
    uint64_t empty[n_stage];        /* both value warpgroups are done */
    uint64_t fold[8];               /* another part's piece is here; by half and warp */
};
static_assert(sizeof(small_shared) <= 1024, "small_shared outgrew its place");

/* P of a tile is handed over when the next tile's scores are queued up to this box: what is left of them covers the way
 * of the message. */
constexpr int hand_over_box = 6;

/* Bits of note.x. The value warpgroups know nothing else: 128 of their 160 registers are accumulators. */
enum { note_none = 1, note_first = 2, note_last = 4, note_stop = 8 };

/* note.y: how many keys of the tile some row sees, and, eight bits higher, how many all rows see. */

/* The thread that loads, from the first orders on: the first of the second value warpgroup. */
constexpr int load_thread = 128;

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
 * The next entry of the ring: q of a request, then its key tiles. A thread of the second value warpgroup keeps one and
 * loads into the stage that both have just finished with. It stands between two products, so it waits for no global load
 * (lengths are fetched one step ahead, pages two), gives the copy engine three orders a tile, and has everything ready
 * when the stage is free.
 */
struct cursor {
    int request, tile, end; /* tile -1: q is next */
    int page;               /* of the tile; -1: prepare_tile() has not been called */
};

__device__ __forceinline__ void fetch_page(const dense_sm90_args &a, small_shared &sh, int request, int tile)
{
    const int key = tile * 64;
    copy_async<4>(&sh.page[tile & 1], a.page_table + request * a.page_table_stride +
                                          (a.page_shift >= 0 ? key >> a.page_shift : key / a.page_size));
}

/* What the entries after the q of a request need, if it is not behind `last`. */
__device__ __forceinline__ void fetch_request(const dense_sm90_args &a, small_shared &sh, int request, int last)
{
    if (request <= last) {
        const int tile = request == sh.part.x ? sh.part.y : 0;
        copy_async<4>(&sh.length, a.length + request);
        fetch_page(a, sh, request, tile);
        if ((tile + 1) * 64 < a.max_length) {
            fetch_page(a, sh, request, tile + 1);
        }
    }
    copy_async_commit();
}

/* q of a request. Its thirds are expected only later, when the note about the request is there: so nobody finds them complete
 * without it. */
__device__ __forceinline__ void order_q(const tensor_map *q_map, uint32_t stages, small_shared &sh, uint32_t stage,
                                        int request)
{
    const int4 place = sh.place;
    const uint32_t to = stages + stage * stage_bytes, full = shared_address(&sh.full[stage][0]);
#pragma unroll
    for (int i = 0; i < 3; i++) { /* without rope columns the last box is beyond the end, and zero */
        tma_load(to + 3 * i * box_bytes, q_map, full + 8 * i, 0, place.y, 3 * i, place.z, request, l2_evict_first);
    }
}

__device__ __forceinline__ void expect_stage(uint32_t full)
{
#pragma unroll
    for (int i = 0; i < 3; i++) {
        barrier_expect(full + 8 * i, 3 * box_bytes);
    }
}

__device__ __forceinline__ int slot_of(const dense_sm90_args &a, int tile)
{
    return a.page_shift >= 0 ? (tile * 64) & (a.page_size - 1) : (tile * 64) % a.page_size;
}

/* Does what can be done before the stage is free, if the next entry is a tile. */
__device__ __forceinline__ void prepare_tile(const dense_sm90_args &a, small_shared &sh, uint32_t stage, cursor &c)
{
    if (c.tile < 0 || c.request > sh.place.w) {
        return;
    }
    copy_async_wait_but<1>();
    const int page = sh.page[c.tile & 1];
    const bool known = page >= 0 && page < a.n_page;
    c.page = known ? page : a.n_page;
    sh.known[stage] = known;
    expect_stage(shared_address(&sh.full[stage][0]));
}

__device__ __forceinline__ void load_next(const dense_sm90_args &a, const tensor_map *q_map, const tensor_map *k_map,
                                          uint32_t stages, small_shared &sh, uint32_t stage, cursor &c)
{
    const int4 place = sh.place;
    if (c.request > place.w) {
        return;
    }
    const uint32_t to = stages + stage * stage_bytes, full = shared_address(&sh.full[stage][0]);
    if (c.tile < 0) {
        if (c.request != sh.part.x) { /* the first one has been ordered */
            order_q(q_map, stages, sh, stage, c.request);
        }
        copy_async_wait_but<0>();
        const int length = min(max(sh.length, 0), a.max_length);
        const int4 part = sh.part;
        const bool first = c.request == part.x, last = c.request == place.w;
        c.tile = first ? part.y : 0;
        c.end = last && part.z > 0 ? part.z : line_tiles(length);
        sh.note[stage] = make_int4(length, c.tile, c.end, first && c.tile > 0 ? sh.first_piece : last ? part.w : -1);
        if (length == 0) {
            sh.page[0] = -1;
        }
        expect_stage(full);
        return;
    }
    if (c.page < 0) {
        prepare_tile(a, sh, stage, c);
    }
    const int slot = slot_of(a, c.tile);
#pragma unroll
    for (int i = 0; i < 3; i++) { /* beyond the last page it fills with zeros */
        tma_load(to + 3 * i * box_bytes, k_map, full + 8 * i, 0, slot, 3 * i, place.x, c.page, l2_evict_first);
    }
    c.page = -1;
    if (++c.tile < c.end) {
        if (c.tile + 1 < c.end) {
            fetch_page(a, sh, c.request, c.tile + 1);
        }
        copy_async_commit();
    } else {
        c.request++;
        c.tile = -1;
        fetch_request(a, sh, c.request, place.w);
    }
}

} // namespace

#endif
