/*
 * dense_line_sm90.cuh - who computes what in dense decode: every thread block works it out from the lengths for itself.
 *
 * An "item" is a request, or a request and a kv head; items are ordered by request. All of them, laid end to end, are a
 * line that is cut into parts of equal length, one for each worker. A kernel that did it beforehand would cost more than
 * it saves. Lengths on the line are quarters of a tile of 64 keys.
 *
 * What a worker leaves of an item that it has only a run of tiles of, a "piece", is a result of its own: o, normalised, and
 * lse in base 2 from the sum of P before rounding. Pieces are weighed by their lse.
 */
#ifndef MLA_DENSE_LINE_SM90_CUH
#define MLA_DENSE_LINE_SM90_CUH

#include <stdint.h>

struct line_input {
    const int32_t *length; /* [n_seq] */
    int32_t n_seq;
    int32_t max_length;  /* keys that a row of the page table can hold: lengths beyond it are cut */
    int32_t n_copy;      /* items of a request: 1, or the kv heads */
    int32_t n_part;      /* workers */
    int32_t item_cost;   /* what beginning and ending an item costs */
    int32_t least_piece; /* no cut leaves a piece of fewer tiles: 1 or 2 */
};

/* A part weighs at least this much: two tiles, so that no two cuts meet. */
constexpr int line_least_part = 8;

__device__ __forceinline__ int line_length(const line_input &in, int request)
{
    return min(max(__ldcg(in.length + request), 0), in.max_length);
}

/* A request without keys has one tile, in which nothing is visible. */
__device__ __forceinline__ int line_tiles(int length)
{
    return max((length + 63) / 64, 1);
}

__device__ __forceinline__ int line_weight(const line_input &in, int length)
{
    return in.item_cost + 4 * line_tiles(length);
}

/* Divisions of 64-bit numbers take long and are much code; most are small. */
__device__ __forceinline__ int64_t line_divide(int64_t a, int64_t b)
{
    return ((a | b) >> 32) == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

/* What a thread knows of the line: the requests of its own, and the weight of all before them and of all together, for
 * one copy. */
struct line_share {
    int begin, end;
    int length; /* of the last of them */
    int64_t before, mine;
    int64_t step; /* all of the line = step * parts + rest */
    int rest;
    int parts; /* that have work, 256 at most */
};

/* Called by all threads; `scratch`, a word for each warp, is shared memory. */
template <int n_thread> __device__ __forceinline__ line_share line_weigh(const line_input &in, int64_t *scratch)
{
    const int thread = threadIdx.x, warp = thread / 32, each = (in.n_seq + n_thread - 1) / n_thread;
    line_share line;
    line.begin = min(thread * each, in.n_seq);
    line.end = min(line.begin + each, in.n_seq);
    line.mine = 0;
    line.length = 0;
#pragma unroll 4
    for (int i = line.begin; i < line.end; i++) {
        line.length = line_length(in, i);
        line.mine += line_weight(in, line.length);
    }
    int64_t up_to = line.mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int64_t x = __shfl_up_sync(~0u, up_to, d);
        up_to += thread % 32 >= d ? x : 0;
    }
    if (thread % 32 == 31) {
        scratch[warp] = up_to;
    }
    __syncthreads();
    line.before = up_to - line.mine;
    int64_t all = 0;
#pragma unroll
    for (int w = 0; w < n_thread / 32; w++) {
        line.before += w < warp ? scratch[w] : 0;
        all += scratch[w];
    }
    all *= in.n_copy;
    line.parts = (int)min(max(all / line_least_part, (int64_t)1), (int64_t)in.n_part);
    line.step = line_divide(all, line.parts);
    line.rest = (int)(all - line.step * line.parts);
    return line;
}

/* Where part p begins on the line: all * p / parts, rounded down. p * rest is below 2^16, so that the half keeps the
 * quotient further from whole numbers than the error of the division. */
__device__ __forceinline__ int64_t line_boundary(const line_input &, const line_share &line, int p)
{
    return line.step * p + (int)__fdividef((float)(line.rest * p) + 0.5f, (float)line.parts);
}

/* The first boundary at position y of the line or beyond. */
__device__ __forceinline__ int line_boundary_from(const line_input &in, const line_share &line, int64_t y)
{
    int p = min(max((int)__fdividef((float)y, (float)line.step), 0), line.parts); /* or one beside it */
    while (p > 0 && line_boundary(in, line, p - 1) >= y) {
        p--;
    }
    while (line_boundary(in, line, p) < y) {
        p++;
    }
    return p;
}

/* An item on the line. */
struct line_item {
    int request, copy, length, tiles;
    int64_t at;
};

/* If position x of the line lies in one of this thread's requests, the item there. */
__device__ __forceinline__ bool line_find(const line_input &in, const line_share &line, int64_t x, line_item &item)
{
    if (x < line.before * in.n_copy || x >= (line.before + line.mine) * in.n_copy) {
        return false;
    }
    int64_t at = line.before * in.n_copy;
    int request = line.begin, length = line.end - request == 1 ? line.length : line_length(in, request),
        weight = line_weight(in, length);
    while (x >= at + (int64_t)weight * in.n_copy) {
        at += (int64_t)weight * in.n_copy;
        length = line_length(in, ++request);
        weight = line_weight(in, length);
    }
    item.request = request;
    item.length = length;
    item.copy = in.n_copy == 1 ? 0 : (int)line_divide(x - at, weight);
    item.tiles = (weight - in.item_cost) / 4;
    item.at = at + (int64_t)item.copy * weight;
    return true;
}

/* The tile before which a boundary at x cuts an item; 0 or all its tiles where a piece would be too short. */
__device__ __forceinline__ int line_cut_tile(const line_input &in, const line_item &item, int64_t x)
{
    const int tile = (int)((x - item.at - in.item_cost + 3) >> 2);
    return tile < in.least_piece ? 0 : tile > item.tiles - in.least_piece ? item.tiles : tile;
}

/* The cuts through an item: boundaries first, ..., first + n - 1. Its n + 1 pieces are then left in the places that
 * line_piece() names. */
struct line_cuts {
    int first, n;
};

__device__ __forceinline__ line_cuts line_cuts_of(const line_input &in, const line_share &line, const line_item &item)
{
    /* boundaries from `low` on leave a piece before them, those up to `high` one behind them */
    const int64_t low = item.at + in.item_cost + 4 * in.least_piece - 3,
                  high = item.at + in.item_cost + 4 * (int64_t)(item.tiles - in.least_piece);
    line_cuts cuts;
    cuts.first = line_boundary_from(in, line, low);
    cuts.n = max(min(line_boundary_from(in, line, high + 1), line.parts) - cuts.first, 0);
    return cuts;
}

/* A part leaves the piece that it begins in the middle of an item in place 2 p, the one that begins an item and does
 * not end it in place 2 p + 1. */
__device__ __forceinline__ int line_piece(int first_cut, int i)
{
    return 2 * (first_cut - 1 + i) + (i == 0);
}

#endif
