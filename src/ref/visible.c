/*
 * visible.c - which keys a query token sees, and where they lie.
 */
#include <math.h>

#include "number.h"
#include "ref.h"
#include "ref_internal.h"

typedef struct span {
    int64_t begin, end;
} span;

/* Wide enough that no limit, ratio or length can overflow the formulas. */
__extension__ typedef __int128 wide;

/* a / b rounded down, b > 0 */
static wide floor_div(wide a, wide b)
{
    wide quotient = a / b;
    return a % b < 0 ? quotient - 1 : quotient;
}

static int64_t clamp(wide x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : (int64_t)x;
}

/* Positions that token i of sequence s may see, by the segment's rule. */
static span visible_span(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i)
{
    const mla_visible *visible = &problem->segment[g].visible;
    int64_t length = mla_key_length(problem, shape, g, s);
    int64_t n_used = mla_query_used(problem, shape, s);
    if (i >= n_used) {
        return (span){0, 0};
    }
    wide t = (wide)length - n_used + i + 1; /* keys up to and including the token's own position */
    wide begin = 0, end = length;
    switch (visible->rule) {
    case MLA_VISIBLE_ALL: break;
    case MLA_VISIBLE_CAUSAL: end = t; break;
    case MLA_VISIBLE_WINDOW:
        begin = visible->left < 0 ? 0 : t - visible->left - 1;
        end = visible->right < 0 ? length : t + visible->right;
        break;
    case MLA_VISIBLE_COMPRESSED: {
        int64_t residual = mla_tensor_present(&visible->residual) ? mla_index_at(&visible->residual, s) : 0;
        end = floor_div((wide)length * visible->ratio + residual - n_used + i + 1, visible->ratio);
        break;
    }
    }
    span seen;
    seen.begin = clamp(begin, 0, length);
    seen.end = clamp(end, seen.begin, length);
    return seen;
}

/* Row of a per-token tensor: [seq][token] when q is batched, [token] when it is packed. */
static int64_t token_offset(const mla_problem *problem, const mla_shape *shape, const mla_tensor *t, int64_t s,
                            int64_t i)
{
    if (shape->batched) {
        return s * t->stride[0] + i * t->stride[1];
    }
    return (mla_query_begin(problem, shape, s) + i) * t->stride[0];
}

static int64_t list_entry(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i,
                          int64_t j)
{
    const mla_tensor *list = &problem->segment[g].list;
    return ((const int32_t *)list->data)[token_offset(problem, shape, list, s, i) + j * list->stride[list->ndim - 1]];
}

/* Entries of the list that are in use, before any rule. */
static int64_t list_length(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i)
{
    const mla_tensor *length = &problem->segment[g].list_length;
    int64_t n_entry = shape->segment[g].n_entry;
    if (!mla_tensor_present(length)) {
        return n_entry;
    }
    bool per_token = shape->batched ? length->ndim == 2 : length->dim[0] == shape->n_token;
    int64_t at = per_token ? token_offset(problem, shape, length, s, i) : s * length->stride[0];
    return clamp(((const int32_t *)length->data)[at], 0, n_entry);
}

int64_t mla_ref_candidates(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i)
{
    const mla_segment *segment = &problem->segment[g];
    if (i >= mla_query_used(problem, shape, s)) {
        return 0;
    }
    span seen = visible_span(problem, shape, g, s, i);
    if (!shape->segment[g].has_list) {
        return seen.end - seen.begin;
    }
    int64_t n = list_length(problem, shape, g, s, i);
    if (segment->list_rule == MLA_LIST_SKIP) {
        return n;
    }
    if (segment->list_address == MLA_LIST_LOGICAL && segment->visible.rule != MLA_VISIBLE_ALL) {
        n = clamp(n, 0, seen.end - seen.begin);
    }
    for (int64_t j = 0; j < n; j++) {
        if (list_entry(problem, shape, g, s, i, j) < 0) {
            return j;
        }
    }
    return n;
}

/* Page and slot of a position of sequence s; false when the page table sends it outside the pool. */
static bool locate(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t position,
                   mla_ref_key *key)
{
    const mla_segment *segment = &problem->segment[g];
    const mla_segment_shape *sizes = &shape->segment[g];
    if (sizes->addressing == MLA_ADDRESS_BATCHED) {
        key->page = s;
        key->slot = position;
        return true;
    }
    if (sizes->addressing == MLA_ADDRESS_PACKED) {
        key->page = 0;
        key->slot = mla_index_at(&segment->k_begin, s) + position;
        return true;
    }
    int64_t column = position / sizes->page_size;
    if (column >= sizes->max_page) {
        return false;
    }
    const mla_tensor *table = &segment->page_table;
    key->page = ((const int32_t *)table->data)[s * table->stride[0] + column * table->stride[1]];
    key->slot = position % sizes->page_size;
    return key->page >= 0 && key->page < sizes->n_page;
}

double mla_ref_mask(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i,
                    int64_t position)
{
    const mla_tensor *mask = &problem->segment[g].mask;
    if (!mla_tensor_present(mask)) {
        return 0;
    }
    int64_t at = token_offset(problem, shape, mask, s, i) + position * mask->stride[mask->ndim - 1];
    return mla_ref_load(mask->data, mask->dtype, at);
}

bool mla_ref_key_place(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i, int64_t j,
                       mla_ref_key *key)
{
    const mla_segment *segment = &problem->segment[g];
    const mla_segment_shape *sizes = &shape->segment[g];
    span seen = visible_span(problem, shape, g, s, i);
    int64_t position = seen.begin + j;
    if (sizes->has_list) {
        position = list_entry(problem, shape, g, s, i, j);
    }
    if (sizes->has_list && segment->list_address == MLA_LIST_PHYSICAL) {
        if (position < 0 || position >= sizes->n_page * sizes->page_size) {
            return false;
        }
        key->page = position / sizes->page_size;
        key->slot = position % sizes->page_size;
        key->position = j;
    } else {
        if (position < seen.begin || position >= seen.end || !locate(problem, shape, g, s, position, key)) {
            return false;
        }
        key->position = position;
    }
    return true;
}

bool mla_ref_key_find(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i, int64_t j,
                      mla_ref_key *key)
{
    return mla_ref_key_place(problem, shape, g, s, i, j, key) &&
           mla_ref_mask(problem, shape, g, s, i, key->position) != -INFINITY;
}
