/*
 * visible.cuh - which rows and keys a thread block has to do with, from index tensors that nobody has checked: a bad
 * number hides its keys and leads to no address.
 */
#ifndef MLA_CUDA_VISIBLE_CUH
#define MLA_CUDA_VISIBLE_CUH

#include "cuda_problem.h"
#include "number.cuh"

__device__ __forceinline__ int64_t mla_clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* A block of up to R rows of one sequence: rows [row_begin, row_end), row = token in the sequence * group + head in the
 * group. */
struct mla_row_block {
    int64_t seq;
    int64_t
        first; /* what is added to a token of the sequence to address it: its first token when q is packed, else 0 */
    int64_t row_begin, row_end;
    int64_t n_used; /* tokens in use */
};

/* First query token of a sequence, within 0 .. n_token. */
__device__ __forceinline__ int64_t mla_token_begin(const mla_cuda_problem &p, int64_t s)
{
    return p.q_begin.data ? mla_clamp(p.q_begin.data[s * p.q_begin.stride[0]], 0, p.n_token) : s;
}

/* Rows of packed sequences begin at block floor(first row / R) + seq: that leaves room for a last block in part. */
__device__ __forceinline__ int64_t mla_first_block(const mla_cuda_problem &p, int64_t s, int rows)
{
    return mla_token_begin(p, s) * p.group / rows + s;
}

/* Row block number `index`; an empty one where nothing is to be done. */
__device__ __forceinline__ mla_row_block mla_find_rows(const mla_cuda_problem &p, int64_t index, int rows)
{
    mla_row_block b = {0, 0, 0, 0, 0};
    int64_t slots, token, part;
    if (p.n_q > 0) {
        slots = p.n_q;
        if (p.by_token) {
            int64_t per_token = (p.group + rows - 1) / rows;
            token = index / per_token;
            part = index % per_token;
            b.seq = token / p.n_q;
            token %= p.n_q;
        } else {
            int64_t per_sequence = (p.n_q * p.group + rows - 1) / rows;
            b.seq = index / per_sequence;
            part = index % per_sequence;
            token = 0;
        }
    } else {
        int64_t per_token = (p.group + rows - 1) / rows;
        token = index / per_token;
        part = index % per_token;
        b.seq = token;
        if (p.q_begin.data) {
            /* the last sequence that begins at or before the token, or the block */
            int64_t low = 0, high = p.n_seq;
            while (high - low > 1) {
                int64_t middle = (low + high) / 2;
                bool before =
                    p.by_token ? mla_token_begin(p, middle) <= token : mla_first_block(p, middle, rows) <= index;
                low = before ? middle : low;
                high = before ? high : middle;
            }
            b.seq = low;
        }
        b.first = mla_token_begin(p, b.seq);
        slots = p.q_begin.data ? mla_token_begin(p, b.seq + 1) - b.first : 1;
        if (p.by_token || !p.q_begin.data) {
            token -= b.first;
        } else {
            part = index - mla_first_block(p, b.seq, rows);
            token = 0;
        }
    }
    if (token < 0 || token >= slots || part < 0) {
        return b;
    }
    bool one_token = p.by_token || (p.n_q == 0 && !p.q_begin.data);
    int64_t end = (one_token ? token + 1 : slots) * p.group;
    b.row_begin = token * p.group + part * rows;
    b.row_end = b.row_begin + rows < end ? b.row_begin + rows : end;
    b.row_end = b.row_begin < b.row_end ? b.row_end : b.row_begin;
    b.n_used = p.q_length.data ? mla_clamp(p.q_length.data[b.seq * p.q_length.stride[0]], 0, slots) : slots;
    return b;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Keys of a sequence, as the rules count them, and how many positions can be addressed at all. */
__device__ __forceinline__ void mla_key_counts(const mla_cuda_problem &p, const mla_cuda_segment &g, int64_t seq,
                                               int64_t &length, int64_t &capacity)
{
    int64_t own = 0;
    switch (g.addressing) {
    case MLA_ADDRESS_PAGED: capacity = g.capacity; break;
    case MLA_ADDRESS_BATCHED: capacity = own = g.page_size; break;
    default:
        if (g.k_begin.data) {
            own = (int64_t)g.k_begin.data[(seq + 1) * g.k_begin.stride[0]] - g.k_begin.data[seq * g.k_begin.stride[0]];
            own = mla_clamp(own, 0, g.page_size);
        }
        capacity = own;
        break;
    }
    length = g.length.data ? g.length.data[seq * g.length.stride[0]] : own;
    length = length < 0 ? 0 : length;
}

/* Positions [begin, end) that a token may see; with a physical list, all rows of the pool. */
__device__ __forceinline__ void mla_token_range(const mla_cuda_problem &p, const mla_cuda_segment &g, int64_t seq,
                                                int64_t token, int64_t n_used, int64_t &begin, int64_t &end)
{
    begin = end = 0;
    if (token >= n_used) {
        return;
    }
    if (g.physical) {
        end = g.n_page * g.page_size;
        return;
    }
    int64_t length, capacity;
    mla_key_counts(p, g, seq, length, capacity);
    mla_visible rule;
    rule.rule = (mla_visible_rule)g.rule;
    rule.left = g.left;
    rule.right = g.right;
    rule.ratio = g.ratio;
    int64_t residual = g.residual.data ? g.residual.data[seq * g.residual.stride[0]] : 0;
    mla_rule_range(&rule, residual, length, n_used, token, &begin, &end);
    end = end < capacity ? end : capacity;
    begin = begin < end ? begin : end;
}

/* What a row block reads of a segment, in index space: positions, or places in the list of its only token. */
struct mla_key_span {
    int64_t begin, end;
};

__device__ __forceinline__ mla_key_span mla_find_keys(const mla_cuda_problem &p, const mla_cuda_segment &g,
                                                      const mla_row_block &b)
{
    mla_key_span span = {0, 0};
    int64_t first = b.row_begin / p.group, last = (b.row_end - 1) / p.group, ignored, begin, end;
    if (b.row_begin == b.row_end || first >= b.n_used) {
        return span;
    }
    /* both ends grow with the token, and neighbours touch */
    last = last < b.n_used ? last : b.n_used - 1;
    mla_token_range(p, g, b.seq, first, b.n_used, begin, ignored);
    mla_token_range(p, g, b.seq, last, b.n_used, ignored, end);
    if (!g.list.data) {
        span.begin = begin < end ? begin : end;
        span.end = end;
        if (p.part_blocks > 0) { /* blocks at fixed places, whichever tokens share the row block */
            span.begin -= span.begin % MLA_CUDA_KEYS;
        }
        return span;
    }
    int64_t n = g.n_entry;
    if (g.list_length.data) {
        int64_t at = b.seq * g.list_length.stride[0] + (b.first + first) * g.list_length.stride[1];
        n = mla_clamp(g.list_length.data[at], 0, n);
    }
    if (g.stop && !g.physical && g.rule != MLA_VISIBLE_ALL) {
        n = n < end - begin ? n : end - begin;
    }
    span.end = n;
    return span;
}

/* Page and slot of a position; false when the index tensors lead nowhere. */
__device__ __forceinline__ bool mla_locate(const mla_cuda_segment &g, int64_t seq, int64_t position, int64_t &page,
                                           int64_t &slot)
{
    switch (g.addressing) {
    case MLA_ADDRESS_PAGED: {
        int64_t column = position / g.page_size;
        if (column >= g.max_page) {
            return false;
        }
        slot = position - column * g.page_size;
        page = g.page_table.data[seq * g.page_table.stride[0] + column * g.page_table.stride[1]];
        return page >= 0 && page < g.n_page;
    }
    case MLA_ADDRESS_BATCHED:
        page = seq;
        slot = position;
        return position < g.page_size;
    default:
        page = 0;
        slot = g.k_begin.data[seq * g.k_begin.stride[0]] + position;
        return slot >= 0 && slot < g.page_size;
    }
}

/* Element offset of a stored row. */
__device__ __forceinline__ int64_t mla_row_offset(const mla_cuda_rows &t, int64_t a, int64_t b, int64_t c)
{
    return a * t.stride[0] + b * t.stride[1] + c * t.stride[2];
}

#endif
