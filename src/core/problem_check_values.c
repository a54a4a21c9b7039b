/*
 * problem_check_values.c - the numbers inside index tensors in host memory: begins, lengths, page ids.
 *
 * Costs one read per sequence and one per page in use. Entries of key lists are not looked at: there a bad one is legal
 * and names no key.
 */
#include <inttypes.h>

#include "problem_check.h"
#include "range.h"

/* begin[0 .. n_seq]: from 0 to at most `limit`, never falling. */
static mla_status check_begins(const mla_field *field, int64_t n_seq, int64_t limit, const char *of)
{
    int64_t before = 0;
    for (int64_t i = 0; i <= n_seq; i++) {
        int64_t begin = mla_index_at(field->tensor, i);
        if (begin < before) {
            return mla_fail(MLA_STATUS_OUT_OF_RANGE, "%s[%" PRId64 "] = %" PRId64 " must be at least %s%" PRId64,
                            mla_field_label(field).text, i, begin, i == 0 ? "" : "the one before it, ", before);
        }
        if (begin > limit) {
            return mla_fail(MLA_STATUS_OUT_OF_RANGE, "%s[%" PRId64 "] = %" PRId64 " exceeds the %" PRId64 " %s",
                            mla_field_label(field).text, i, begin, limit, of);
        }
        before = begin;
    }
    return MLA_STATUS_OK;
}

static mla_status check_query_values(const mla_checker *c)
{
    const mla_problem *p = c->p;
    mla_field q_begin = mla_problem_field(&p->q_begin, "q_begin");
    mla_field q_length = mla_problem_field(&p->q_length, "q_length");
    if (mla_tensor_present(&p->q_begin)) {
        MLA_TRY(check_begins(&q_begin, c->shape.n_seq, c->shape.n_token, "tokens of q"));
    }
    if (mla_tensor_present(&p->q_length)) {
        for (int64_t s = 0; s < c->shape.n_seq; s++) {
            int64_t used = mla_index_at(&p->q_length, s), slots = mla_query_slots(p, &c->shape, s);
            if (used > slots) {
                return mla_fail(MLA_STATUS_OUT_OF_RANGE,
                                "%s[%" PRId64 "] = %" PRId64 " exceeds the sequence's %" PRId64 " query tokens",
                                mla_field_label(&q_length).text, s, used, slots);
            }
        }
    }
    return MLA_STATUS_OK;
}

static mla_status check_length(const mla_checker *c, int32_t g, int64_t s)
{
    const mla_segment *segment = &c->p->segment[g];
    const mla_segment_shape *shape = &c->shape.segment[g];
    mla_field field = mla_segment_field(&segment->length, "length", g);
    int64_t length = mla_index_at(&segment->length, s), capacity = shape->page_size;
    if (shape->addressing == MLA_ADDRESS_PAGED) {
        if (__builtin_mul_overflow(shape->max_page, shape->page_size, &capacity) || length <= capacity) {
            return MLA_STATUS_OK;
        }
        return mla_fail(MLA_STATUS_OUT_OF_RANGE,
                        "%s[%" PRId64 "] = %" PRId64 " exceeds the page table's %" PRId64 " pages * %" PRId64 " tokens",
                        mla_field_label(&field).text, s, length, shape->max_page, shape->page_size);
    }
    if (shape->addressing == MLA_ADDRESS_PACKED) {
        capacity = mla_index_at(&segment->k_begin, s + 1) - mla_index_at(&segment->k_begin, s);
    }
    if (length > capacity) {
        return mla_fail(MLA_STATUS_OUT_OF_RANGE,
                        "%s[%" PRId64 "] = %" PRId64 " exceeds the sequence's %" PRId64 " keys",
                        mla_field_label(&field).text, s, length, capacity);
    }
    return MLA_STATUS_OK;
}

/* The page table's entries for positions [begin, end), and no other. */
static mla_status check_pages(const mla_checker *c, int32_t g, int64_t s, int64_t begin, int64_t end)
{
    const mla_segment *segment = &c->p->segment[g];
    const mla_segment_shape *shape = &c->shape.segment[g];
    if (begin == end) {
        return MLA_STATUS_OK;
    }
    const mla_tensor *table = &segment->page_table;
    const int32_t *row = (const int32_t *)table->data + s * table->stride[0];
    int64_t last = (end - 1) / shape->page_size;
    for (int64_t column = begin / shape->page_size; column <= last; column++) {
        int64_t page = row[column * table->stride[1]];
        if (page < 0 || page >= shape->n_page) {
            mla_field field = mla_segment_field(table, "page_table", g), k = mla_segment_field(&segment->k, "k", g);
            return mla_fail(MLA_STATUS_OUT_OF_RANGE,
                            "%s[%" PRId64 "][%" PRId64 "] = %" PRId64 " is not one of the %" PRId64 " pages of %s",
                            mla_field_label(&field).text, s, column, page, shape->n_page, mla_field_label(&k).text);
        }
    }
    return MLA_STATUS_OK;
}

static mla_status check_sequence(const mla_checker *c, int32_t g, int64_t s)
{
    const mla_segment *segment = &c->p->segment[g];
    const mla_segment_shape *shape = &c->shape.segment[g];
    const mla_tensor *residual = &segment->visible.residual, *mask = &segment->mask;
    if (mla_tensor_present(&segment->length)) {
        MLA_TRY(check_length(c, g, s));
    }
    if (mla_tensor_present(residual) && mla_index_at(residual, s) < 0) {
        mla_field field = mla_segment_field(residual, "visible.residual", g);
        return mla_fail(MLA_STATUS_OUT_OF_RANGE, "%s[%" PRId64 "] = %" PRId64 " is negative",
                        mla_field_label(&field).text, s, mla_index_at(residual, s));
    }
    int64_t begin, end;
    mla_visible_union(c->p, &c->shape, g, s, &begin, &end);
    if (shape->addressing == MLA_ADDRESS_PAGED) {
        MLA_TRY(check_pages(c, g, s, begin, end));
    }
    if (mla_tensor_present(mask) && end > mask->dim[mask->ndim - 1]) {
        mla_field field = mla_segment_field(mask, "mask", g);
        return mla_fail(MLA_STATUS_BAD_SHAPE,
                        "%s.dim[%" PRId32 "] = %" PRId64 " does not cover the %" PRId64 " keys that sequence %" PRId64
                        " may see",
                        mla_field_label(&field).text, mask->ndim - 1, mask->dim[mask->ndim - 1], end, s);
    }
    return MLA_STATUS_OK;
}

/* Negative counts as 0, so only the upper end can be wrong. */
static mla_status check_list_lengths(const mla_checker *c, int32_t g)
{
    const mla_tensor *t = &c->p->segment[g].list_length;
    mla_field field = mla_segment_field(t, "list_length", g);
    int64_t n_entry = c->shape.segment[g].n_entry, columns = t->ndim == 2 ? t->dim[1] : 1;
    for (int64_t i = 0; i < t->dim[0] && columns > 0; i++) {
        for (int64_t j = 0; j < columns; j++) {
            int64_t length = ((const int32_t *)t->data)[i * t->stride[0] + (t->ndim == 2 ? j * t->stride[1] : 0)];
            if (length > n_entry) {
                return mla_fail(MLA_STATUS_OUT_OF_RANGE,
                                "%s entry %" PRId64 " = %" PRId64 " exceeds the list's %" PRId64 " entries",
                                mla_field_label(&field).text, i * columns + j, length, n_entry);
            }
        }
    }
    return MLA_STATUS_OK;
}

static mla_status check_segment_values(const mla_checker *c, int32_t g)
{
    const mla_problem *p = c->p;
    const mla_segment *segment = &p->segment[g];
    const mla_segment_shape *shape = &c->shape.segment[g];
    if (mla_tensor_present(&segment->list_length)) {
        MLA_TRY(check_list_lengths(c, g));
    }
    if (shape->has_list && segment->list_address == MLA_LIST_PHYSICAL) {
        return MLA_STATUS_OK; /* length, k_begin and the page table are not used */
    }
    if (mla_tensor_present(&segment->k_begin)) {
        mla_field k_begin = mla_segment_field(&segment->k_begin, "k_begin", g);
        MLA_TRY(check_begins(&k_begin, c->shape.n_seq, shape->page_size, "rows of k"));
    }
    /* Without any index tensor all sequences are alike, and there may be more of them than one can count. */
    bool alike = !mla_tensor_present(&segment->length) && !mla_tensor_present(&segment->k_begin) &&
                 !mla_tensor_present(&segment->visible.residual) && !mla_tensor_present(&p->q_begin) &&
                 !mla_tensor_present(&p->q_length);
    int64_t n = alike && c->shape.n_seq > 1 ? 1 : c->shape.n_seq;
    for (int64_t s = 0; s < n; s++) {
        MLA_TRY(check_sequence(c, g, s));
    }
    return MLA_STATUS_OK;
}

mla_status mla_check_values(const mla_checker *c)
{
    MLA_TRY(check_query_values(c));
    for (int32_t g = 0; g < c->p->n_segment; g++) {
        MLA_TRY(check_segment_values(c, g));
    }
    return MLA_STATUS_OK;
}

mla_status mla_check_index_values(const mla_problem *problem, const mla_shape *shape)
{
    const mla_checker c = {.p = problem, .shape = *shape};
    return mla_check_values(&c);
}
