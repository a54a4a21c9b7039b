/*
 * rows.c - from positions to addresses.
 */
#include "rows.h"

#include "core/range.h"

/* Addresses of n rows from (page, slot) on. */
static inline void address_rows(const mla_tensor *t, const int64_t *stride, int64_t page, int64_t slot, int64_t kv_head,
                                int64_t n, const void **row)
{
    size_t size = mla_dtype_size(t->dtype), step = (size_t)stride[1] * size;
    const char *at = (const char *)t->data + (size_t)(page * stride[0] + slot * stride[1] + kv_head * stride[2]) * size;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4, at += 4 * step) {
        row[i] = at;
        row[i + 1] = at + step;
        row[i + 2] = at + 2 * step;
        row[i + 3] = at + 3 * step;
    }
    for (; i < n; i++, at += step) {
        row[i] = at;
    }
}

/* Adds n rows that follow each other in a page, and in position. */
static inline void add_rows(const mla_segment *segment, const mla_segment_shape *s, int64_t page, int64_t slot,
                            int64_t kv_head, int64_t position, int64_t n, mla_key_rows *rows)
{
    int64_t first = rows->n_key;
    rows->n_key += n;
    address_rows(&segment->k, s->k_stride, page, slot, kv_head, n, rows->k + first);
    if (mla_tensor_present(&segment->k_rope)) {
        address_rows(&segment->k_rope, s->k_rope_stride, page, slot, kv_head, n, rows->rope + first);
    }
    if (mla_tensor_present(&segment->v)) {
        address_rows(&segment->v, s->v_stride, page, slot, kv_head, n, rows->v + first);
    }
    int64_t *to = rows->position + first, i = 0;
    for (; i + 4 <= n; i += 4) {
        to[i] = position + i;
        to[i + 1] = position + i + 1;
        to[i + 2] = position + i + 2;
        to[i + 3] = position + i + 3;
    }
    for (; i < n; i++) {
        to[i] = position + i;
    }
}

/* Page and slot of a position; false when the page table sends it nowhere. */
static inline bool locate(const mla_segment *segment, const mla_segment_shape *s, int64_t seq, int64_t position,
                          int64_t *page, int64_t *slot)
{
    switch (s->addressing) {
    case MLA_ADDRESS_PAGED: {
        int64_t column = position / s->page_size;
        if (column >= s->max_page) {
            return false;
        }
        const mla_tensor *table = &segment->page_table;
        *page = ((const int32_t *)table->data)[seq * table->stride[0] + column * table->stride[1]];
        *slot = position % s->page_size;
        return *page >= 0 && *page < s->n_page;
    }
    case MLA_ADDRESS_BATCHED:
        *page = seq;
        *slot = position;
        return true;
    default:
        *page = 0;
        *slot = mla_index_at(&segment->k_begin, seq) + position;
        return true;
    }
}

static int32_t list_entry(const mla_problem *problem, const mla_shape *shape, const mla_tensor *list, int64_t seq,
                          int64_t token, int64_t i)
{
    const int32_t *data = list->data;
    if (shape->batched) {
        return data[seq * list->stride[0] + token * list->stride[1] + i * list->stride[2]];
    }
    return data[(mla_query_begin(problem, shape, seq) + token) * list->stride[0] + i * list->stride[1]];
}

/* Takes up to n visible entries; those before cursor->at are known not to end the list. */
static void take_list(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t seq, int64_t token,
                      int64_t kv_head, mla_key_cursor *cursor, int64_t n, mla_key_rows *rows)
{
    const mla_segment *segment = &problem->segment[g];
    const mla_segment_shape *s = &shape->segment[g];
    bool logical = segment->list_address == MLA_LIST_LOGICAL;
    int64_t lo = 0, hi = s->n_page * s->page_size;
    if (logical) {
        mla_visible_range(problem, shape, g, seq, token, &lo, &hi);
    }
    while (n > 0 && cursor->at < cursor->end) {
        int64_t i = cursor->at++, entry = list_entry(problem, shape, &segment->list, seq, token, i);
        if (entry < 0 && segment->list_rule == MLA_LIST_STOP) {
            cursor->at = cursor->end;
            return;
        }
        if (entry < lo || entry >= hi) {
            continue;
        }
        int64_t page = entry / s->page_size, slot = entry % s->page_size;
        if (logical && !locate(segment, s, seq, entry, &page, &slot)) {
            continue;
        }
        n--;
        if (rows) {
            add_rows(segment, s, page, slot, kv_head, logical ? entry : i, 1, rows);
        }
    }
}

static void find_list(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t seq, int64_t token,
                      int64_t kv_head, int64_t begin, int64_t end, mla_key_rows *rows)
{
    const mla_segment *segment = &problem->segment[g];
    /* with STOP a negative entry anywhere before this block ends the list */
    for (int64_t i = 0; segment->list_rule == MLA_LIST_STOP && i < begin; i++) {
        if (list_entry(problem, shape, &segment->list, seq, token, i) < 0) {
            return;
        }
    }
    take_list(problem, shape, g, seq, token, kv_head, &(mla_key_cursor){begin, end}, end - begin, rows);
}

void mla_key_rows_find(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t seq, int64_t token,
                       int64_t kv_head, int64_t begin, int64_t end, mla_key_rows *rows)
{
    const mla_segment *segment = &problem->segment[g];
    const mla_segment_shape *s = &shape->segment[g];
    rows->n_key = 0;
    if (s->has_list) {
        find_list(problem, shape, g, seq, token, kv_head, begin, end, rows);
        return;
    }
    /* a page at a time: one division and one table look-up for all its rows */
    for (int64_t at = begin; at < end;) {
        int64_t page, slot, run = end - at;
        bool found = locate(segment, s, seq, at, &page, &slot);
        if (s->addressing == MLA_ADDRESS_PAGED) {
            int64_t left = s->page_size - at % s->page_size;
            run = run < left ? run : left;
        }
        if (found) {
            add_rows(segment, s, page, slot, kv_head, at, run, rows);
        }
        at += run;
    }
}

void mla_key_rows_take(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t seq, int64_t token,
                       int64_t kv_head, mla_key_cursor *cursor, int64_t n, mla_key_rows *rows)
{
    if (rows) {
        rows->n_key = 0;
    }
    if (shape->segment[g].has_list) {
        take_list(problem, shape, g, seq, token, kv_head, cursor, n, rows);
        return;
    }
    int64_t begin = cursor->at, left = cursor->end - begin;
    cursor->at += n < left ? n : left;
    if (rows) {
        mla_key_rows_find(problem, shape, g, seq, token, kv_head, begin, cursor->at, rows);
    }
}
