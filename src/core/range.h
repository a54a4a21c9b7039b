/*
 * range.h - which positions of a segment a query token may see.
 *
 * The four rules of mla_visible_rule as integer code, for the checker, the planner and the loops. No step can overflow,
 * whatever the limits and lengths are: every sum is arranged so that its parts have opposite signs or a known bound.
 */
#ifndef MLA_CORE_RANGE_H
#define MLA_CORE_RANGE_H

#include "shape.h"

/* Kernels evaluate the same code. */
#ifdef __CUDACC__
#define MLA_RANGE_CODE __host__ __device__ static inline
#else
#define MLA_RANGE_CODE static inline
#endif

/*
 * The rule alone: [*begin, *end) within [0, length) for token `i` of `n_q`. 0 <= i < n_q, length >= 0. An empty range
 * has *begin == *end. Limits below -1 count as -1, a ratio below 1 as 1, a negative residual as 0.
 */
MLA_RANGE_CODE void mla_rule_range(const mla_visible *visible, int64_t residual, int64_t length, int64_t n_q, int64_t i,
                                   int64_t *begin, int64_t *end)
{
    int64_t behind = n_q - 1 - i;   /* query tokens after this one, >= 0 */
    int64_t seen = length - behind; /* keys up to and including the token's own, may be negative */
    *begin = 0;
    *end = length;
    switch (visible->rule) {
    case MLA_VISIBLE_CAUSAL: *end = seen; break;
    case MLA_VISIBLE_WINDOW:
        if (visible->left >= 0 && seen - 1 > visible->left) {
            *begin = seen - 1 - visible->left;
        }
        if (visible->right >= 0 && visible->right < behind) {
            *end = seen + visible->right; /* < length */
        }
        break;
    case MLA_VISIBLE_COMPRESSED: {
        /* (length * ratio + x) / ratio, rounded down, is length + x / ratio, rounded down */
        int64_t ratio = visible->ratio < 1 ? 1 : visible->ratio;
        int64_t x = (residual < 0 ? 0 : residual) - behind;
        int64_t quotient = x / ratio - (x % ratio < 0);
        *end = quotient >= 0 ? length : length + quotient;
        break;
    }
    default: break;
    }
    *end = *end < 0 ? 0 : *end;
    *begin = *begin < *end ? *begin : *end;
}

/* Positions [*begin, *end) of segment g that token `token_in_seq` of sequence `seq` may see; empty for a token past the
 * used ones. With a PHYSICAL list: all rows of the pool. */
static inline void mla_visible_range(const mla_problem *p, const mla_shape *shape, int32_t g, int64_t seq,
                                     int64_t token_in_seq, int64_t *begin, int64_t *end)
{
    const mla_segment *segment = &p->segment[g];
    int64_t used = mla_query_used(p, shape, seq);
    if (token_in_seq < 0 || token_in_seq >= used) {
        *begin = *end = 0;
    } else if (shape->segment[g].has_list && segment->list_address == MLA_LIST_PHYSICAL) {
        *begin = 0;
        *end = shape->segment[g].n_page * shape->segment[g].page_size;
    } else {
        const mla_tensor *residual = &segment->visible.residual;
        mla_rule_range(&segment->visible, mla_tensor_present(residual) ? mla_index_at(residual, seq) : 0,
                       mla_key_length(p, shape, g, seq), used, token_in_seq, begin, end);
    }
}

/* Positions that at least one token of the sequence may see. Under every rule both ends grow with the token and
 * neighbours touch, so the union reaches from the first token's begin to the last one's end. */
static inline void mla_visible_union(const mla_problem *p, const mla_shape *shape, int32_t g, int64_t seq,
                                     int64_t *begin, int64_t *end)
{
    int64_t used = mla_query_used(p, shape, seq), ignored;
    mla_visible_range(p, shape, g, seq, 0, begin, &ignored);
    mla_visible_range(p, shape, g, seq, used - 1, &ignored, end);
    *begin = *begin < *end ? *begin : *end;
}

#endif
