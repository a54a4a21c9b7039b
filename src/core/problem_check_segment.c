/*
 * problem_check_segment.c - dims of one segment: how its rows are addressed, and everything that goes with them.
 */
#include <inttypes.h>

#include "problem_check.h"

#define PACKED_LAYOUT "[n_row][n_kv_head][d]"
#define PAGED_LAYOUT "[n_page][page_size][n_kv_head][d]"
#define BATCHED_LAYOUT "[n_seq][max_len][n_kv_head][d] without a page table"
#define NZ_LAYOUT "[n_page][d / c][page_size][c] of layout NZ"

static bool is_nz(const mla_segment *segment)
{
    return segment->layout == MLA_KEY_LAYOUT_NZ;
}

/* Does a list name rows of k itself, without a page table? */
static bool lists_rows(const mla_segment *segment)
{
    return mla_tensor_present(&segment->list) && segment->list_address == MLA_LIST_PHYSICAL;
}

static const char *layout_of(const mla_segment *segment)
{
    return is_nz(segment)                                                    ? NZ_LAYOUT
           : segment->k.ndim == 3                                            ? PACKED_LAYOUT
           : mla_tensor_present(&segment->page_table) || lists_rows(segment) ? PAGED_LAYOUT
                                                                             : BATCHED_LAYOUT;
}

/* Which dim of a k of 4 counts the rows of a page. */
static int32_t slot_axis(const mla_segment *segment)
{
    return is_nz(segment) ? 2 : 1;
}

static mla_status check_absent(const mla_tensor *t, const char *path, int32_t g, const char *because)
{
    if (!mla_tensor_present(t)) {
        return MLA_STATUS_OK;
    }
    mla_field field = mla_segment_field(t, path, g);
    return mla_fail(MLA_STATUS_BAD_VALUE, "%s must be absent: %s", mla_field_label(&field).text, because);
}

static mla_status check_given(const mla_tensor *t, const char *path, int32_t g, const char *because)
{
    if (mla_tensor_present(t)) {
        return MLA_STATUS_OK;
    }
    mla_field field = mla_segment_field(t, path, g);
    return mla_fail(MLA_STATUS_NULL_POINTER, "%s is missing: %s", mla_field_label(&field).text, because);
}

/* Strides by [page][slot][kv_head], one page when packed, and the pieces of a row of layout ROW. */
static void row_strides(const mla_tensor *t, int64_t *stride, mla_pieces *pieces)
{
    bool packed = t->ndim == 3;
    stride[0] = packed ? 0 : t->stride[0];
    stride[1] = t->stride[packed ? 0 : 1];
    stride[2] = t->stride[packed ? 1 : 2];
    *pieces = (mla_pieces){.columns = t->dim[t->ndim - 1]};
}

/* k or k_rope of layout NZ, `d` columns in pieces that its own dims tell. */
static mla_status check_nz(const mla_segment *segment, const mla_tensor *t, const char *path, int32_t g, mla_extent d,
                           int64_t *stride, mla_pieces *pieces)
{
    mla_field k = mla_segment_field(&segment->k, "k", g), field = mla_segment_field(t, path, g);
    mla_extent any = mla_any_extent();
    MLA_TRY(mla_field_check_dims(&field, NZ_LAYOUT, 4,
                                 t == &segment->k
                                     ? (mla_extent[]){any, any, any, any}
                                     : (mla_extent[]){mla_dim_extent(k, 0), any, mla_dim_extent(k, 2), any}));
    int64_t columns;
    if (__builtin_mul_overflow(t->dim[1], t->dim[3], &columns) || columns != d.value) {
        return mla_fail(MLA_STATUS_BAD_SHAPE,
                        "%s.dim[1] = %" PRId64 " pieces of dim[3] = %" PRId64 " columns are not the %" PRId64
                        " columns of %s: " NZ_LAYOUT,
                        mla_field_label(&field).text, t->dim[1], t->dim[3], d.value, mla_field_label(&d.of).text);
    }
    stride[0] = t->stride[0];
    stride[1] = t->stride[2];
    stride[2] = 0; /* one kv head */
    *pieces = (mla_pieces){.columns = t->dim[3], .stride = t->stride[1]};
    return MLA_STATUS_OK;
}

/* k_rope or v: rows where k has its own, `d` columns. */
static mla_status check_beside_k(const mla_segment *segment, const mla_tensor *t, const char *path, int32_t g,
                                 mla_extent d, int64_t *stride, mla_pieces *pieces)
{
    if (is_nz(segment)) {
        return check_nz(segment, t, path, g, d, stride, pieces);
    }
    mla_field k = mla_segment_field(&segment->k, "k", g), field = mla_segment_field(t, path, g);
    mla_extent extent[4];
    int32_t ndim = segment->k.ndim;
    for (int32_t i = 0; i < ndim - 1; i++) {
        extent[i] = mla_dim_extent(k, i);
    }
    extent[ndim - 1] = d;
    MLA_TRY(mla_field_check_dims(&field, layout_of(segment), ndim, extent));
    row_strides(t, stride, pieces);
    return MLA_STATUS_OK;
}

/* Does the rank of k agree with the tensors that say how it is addressed? Asked before anything else, for a k without
 * its head dim looks like one with too many heads. */
static mla_status check_rank(const mla_segment *segment, int32_t g)
{
    mla_field k = mla_segment_field(&segment->k, "k", g);
    mla_field page_table = mla_segment_field(&segment->page_table, "page_table", g);
    int32_t ndim = segment->k.ndim;
    bool packed = mla_tensor_present(&segment->k_begin);
    bool physical = lists_rows(segment);
    if (is_nz(segment) && ndim != 4) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.ndim = %" PRId32 " must be 4: " NZ_LAYOUT, mla_field_label(&k).text,
                        ndim);
    }
    if (mla_tensor_present(&segment->page_table) && !packed && !physical && ndim != 4) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.ndim = %" PRId32 " must be 4 because %s is given: " PAGED_LAYOUT,
                        mla_field_label(&k).text, ndim, mla_field_label(&page_table).text);
    }
    if (ndim != 3 && ndim != 4) {
        return mla_fail(MLA_STATUS_BAD_SHAPE,
                        "%s.ndim = %" PRId32 " must be 4 (" PAGED_LAYOUT ") or 3 (" PACKED_LAYOUT ")",
                        mla_field_label(&k).text, ndim);
    }
    if (ndim == 4) {
        return check_absent(&segment->k_begin, "k_begin", g, "a k of 4 dims is not packed");
    }
    MLA_TRY(check_absent(&segment->page_table, "page_table", g, "a k of 3 dims has no pages"));
    return physical ? MLA_STATUS_OK : check_given(&segment->k_begin, "k_begin", g, "a k of 3 dims is packed");
}

/* How many kv heads there are: for segment 0 to say, unless it has room for one alone. */
static mla_status check_heads(mla_checker *c, int32_t g)
{
    const mla_segment *segment = &c->p->segment[g];
    mla_field k = mla_segment_field(&segment->k, "k", g);
    int32_t ndim = segment->k.ndim;
    if (g > 0) {
        if (is_nz(segment) && c->shape.n_kv_head != 1) {
            return mla_fail(MLA_STATUS_BAD_SHAPE, "%s of layout NZ has one kv head, but %s.dim[%" PRId32 "] = %" PRId64,
                            mla_field_label(&k).text, mla_field_label(&c->n_kv_head.of).text, c->n_kv_head.axis,
                            c->n_kv_head.value);
        }
        return MLA_STATUS_OK;
    }
    c->n_kv_head = is_nz(segment) ? mla_number_extent("the kv heads of layout NZ", 1) : mla_dim_extent(k, ndim - 2);
    int64_t n_kv_head = c->n_kv_head.value;
    if (n_kv_head < 1 || c->n_head.value % n_kv_head != 0) {
        return mla_fail(MLA_STATUS_BAD_SHAPE,
                        "%s.dim[%" PRId32 "] = %" PRId64 " kv heads do not divide %s.dim[%" PRId32 "] = %" PRId64
                        " query heads",
                        mla_field_label(&k).text, ndim - 2, n_kv_head, mla_field_label(&c->n_head.of).text,
                        c->n_head.axis, c->n_head.value);
    }
    c->shape.n_kv_head = n_kv_head;
    c->shape.group = c->n_head.value / n_kv_head;
    return MLA_STATUS_OK;
}

/* Values that are the first columns of the key: how many there may be. */
static mla_status check_values_inside(const mla_checker *c, int32_t g)
{
    const mla_problem *p = c->p;
    const mla_segment *segment = &p->segment[g];
    mla_field k = mla_segment_field(&segment->k, "k", g);
    const char *with = is_nz(segment)                      ? "with layout NZ"
                       : p->p_rounding == MLA_P_ROUND_INT8 ? "with p_rounding = 2 (int8)"
                                                           : NULL;
    if (with != NULL && p->d_v > c->shape.d_nope) {
        return mla_fail(MLA_STATUS_BAD_VALUE,
                        "d_v = %" PRId64 " must be at most %" PRId64
                        ": %s values are the first d_v columns of %s alone",
                        p->d_v, c->shape.d_nope, with, mla_field_label(&k).text);
    }
    if (p->d_v > c->shape.d_k) {
        return mla_fail(MLA_STATUS_BAD_VALUE,
                        "d_v = %" PRId64 " must be at most d_k = %" PRId64 ": values are the first d_v columns of %s",
                        p->d_v, c->shape.d_k, mla_field_label(&k).text);
    }
    return MLA_STATUS_OK;
}

static mla_status check_rows(mla_checker *c, int32_t g)
{
    const mla_problem *p = c->p;
    const mla_segment *segment = &p->segment[g];
    mla_segment_shape *s = &c->shape.segment[g];
    mla_field k = mla_segment_field(&segment->k, "k", g);
    int32_t ndim = segment->k.ndim;
    MLA_TRY(check_rank(segment, g));
    MLA_TRY(check_heads(c, g));
    if (is_nz(segment)) {
        MLA_TRY(check_nz(segment, &segment->k, "k", g, c->d_nope, s->k_stride, &s->k_pieces));
    } else {
        MLA_TRY(mla_field_check_dims(&k, layout_of(segment), ndim,
                                     ndim == 4
                                         ? (mla_extent[]){mla_any_extent(), mla_any_extent(), c->n_kv_head, c->d_nope}
                                         : (mla_extent[]){mla_any_extent(), c->n_kv_head, c->d_nope}));
        row_strides(&segment->k, s->k_stride, &s->k_pieces);
    }
    if (p->p_rounding == MLA_P_ROUND_INT8) {
        MLA_TRY(mla_field_check_dtype(&k, MLA_DTYPE_BIT(MLA_DTYPE_I8)));
        MLA_TRY(check_absent(&segment->v, "v", g, "with p_rounding = 2 (int8) values are the columns of k"));
    }

    if (mla_tensor_present(&p->q_rope)) {
        MLA_TRY(check_given(&segment->k_rope, "k_rope", g,
                            "q_rope is given, so the key has a rope part of its own too"));
        MLA_TRY(check_beside_k(segment, &segment->k_rope, "k_rope", g, c->d_rope, s->k_rope_stride, &s->k_rope_pieces));
    } else {
        MLA_TRY(check_absent(&segment->k_rope, "k_rope", g, "q_rope is absent, so the rope part is inside q and k"));
    }
    if (!mla_tensor_present(&segment->v)) {
        return check_values_inside(c, g);
    }
    if (is_nz(segment)) {
        return check_absent(&segment->v, "v", g, "values of layout NZ are the columns of k");
    }
    mla_pieces one;
    return check_beside_k(segment, &segment->v, "v", g, c->d_v, s->v_stride, &one);
}

/* Paged, batched or packed. */
static mla_status check_addressing(mla_checker *c, int32_t g)
{
    const mla_segment *segment = &c->p->segment[g];
    mla_segment_shape *s = &c->shape.segment[g];
    mla_field k = mla_segment_field(&segment->k, "k", g);
    mla_field k_begin = mla_segment_field(&segment->k_begin, "k_begin", g);
    mla_field page_table = mla_segment_field(&segment->page_table, "page_table", g);
    bool table = mla_tensor_present(&segment->page_table);
    bool physical = s->has_list && segment->list_address == MLA_LIST_PHYSICAL;

    if (segment->k.ndim == 3) {
        s->addressing = MLA_ADDRESS_PACKED;
        s->n_page = 1;
        s->page_size = segment->k.dim[0];
        if (mla_tensor_present(&segment->k_begin)) {
            mla_extent n = mla_any_extent();
            MLA_TRY(mla_field_check_dims(&k_begin, "[n_seq + 1]", 1, &n));
            if (segment->k_begin.dim[0] - 1 != c->shape.n_seq) {
                return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[0] = %" PRId64 " must be n_seq + 1 = %" PRId64 " + 1",
                                mla_field_label(&k_begin).text, segment->k_begin.dim[0], c->shape.n_seq);
            }
        }
    } else {
        bool paged = table || physical;
        s->addressing = paged ? MLA_ADDRESS_PAGED : MLA_ADDRESS_BATCHED;
        s->n_page = segment->k.dim[0];
        s->page_size = segment->k.dim[slot_axis(segment)];
        if (table) {
            MLA_TRY(mla_field_check_dims(&page_table, "[n_seq][max_page]", 2,
                                         (mla_extent[]){c->n_seq, mla_any_extent()}));
            s->max_page = segment->page_table.dim[1];
        }
        if (paged && s->page_size < 1) {
            return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[%" PRId32 "] = 0 must be at least 1: the page size",
                            mla_field_label(&k).text, slot_axis(segment));
        }
        if (!paged) {
            MLA_TRY(mla_field_check_dims(&k,
                                         is_nz(segment) ? "[n_seq][d / c][max_len][c] without a page table"
                                                        : BATCHED_LAYOUT,
                                         4,
                                         (mla_extent[]){c->n_seq, mla_any_extent(), mla_any_extent(),
                                                        mla_any_extent()}));
        }
    }
    if (mla_tensor_present(&segment->length)) {
        mla_field length = mla_segment_field(&segment->length, "length", g);
        MLA_TRY(mla_field_check_dims(&length, "[n_seq]", 1, &c->n_seq));
    } else if (s->addressing == MLA_ADDRESS_PAGED && !physical) {
        MLA_TRY(check_given(&segment->length, "length", g, "a page table does not tell how many keys there are"));
    }
    return MLA_STATUS_OK;
}

/* [n_seq], or one per query token. */
static mla_status check_list_length(mla_checker *c, int32_t g)
{
    const mla_tensor *t = &c->p->segment[g].list_length;
    mla_field field = mla_segment_field(t, "list_length", g);
    if (c->shape.batched && t->ndim == 2) {
        return mla_field_check_dims(&field, "[n_seq][n_q]", 2, (mla_extent[]){c->n_seq, c->n_q});
    }
    if (!c->shape.batched && t->ndim == 1 && t->dim[0] == c->shape.n_token) {
        return MLA_STATUS_OK;
    }
    return mla_field_check_dims(&field, c->shape.batched ? "[n_seq] or [n_seq][n_q]" : "[n_seq] or [n_token]", 1,
                                &c->n_seq);
}

static mla_status check_list(mla_checker *c, int32_t g)
{
    const mla_segment *segment = &c->p->segment[g];
    mla_segment_shape *s = &c->shape.segment[g];
    s->has_list = mla_tensor_present(&segment->list);
    if (!s->has_list) {
        return check_absent(&segment->list_length, "list_length", g, "there is no list");
    }
    mla_field list = mla_segment_field(&segment->list, "list", g);
    mla_extent n_entry = mla_any_extent();
    MLA_TRY(mla_check_per_token(c, &list, "[n_seq][n_q][n_entry]", "[n_token][n_entry]", 1, &n_entry));
    s->n_entry = segment->list.dim[segment->list.ndim - 1];
    if (mla_tensor_present(&segment->list_length)) {
        MLA_TRY(check_list_length(c, g));
    }
    if (segment->list_address == MLA_LIST_PHYSICAL) {
        if (segment->visible.rule != MLA_VISIBLE_ALL) {
            return mla_fail(MLA_STATUS_BAD_VALUE,
                            "segment[%" PRId32 "].visible.rule = %d must be 0: a PHYSICAL list names rows of the pool, "
                            "not positions of a sequence",
                            g, (int)segment->visible.rule);
        }
        MLA_TRY(check_absent(&segment->mask, "mask", g, "a PHYSICAL list has no positions that its columns could be"));
    }
    return MLA_STATUS_OK;
}

mla_status mla_check_segment(mla_checker *c, int32_t g)
{
    const mla_segment *segment = &c->p->segment[g];
    MLA_TRY(check_rows(c, g));
    MLA_TRY(check_list(c, g));
    MLA_TRY(check_addressing(c, g));
    if (segment->visible.rule != MLA_VISIBLE_COMPRESSED) {
        MLA_TRY(check_absent(&segment->visible.residual, "visible.residual", g, "the rule is not COMPRESSED"));
    } else if (mla_tensor_present(&segment->visible.residual)) {
        mla_field residual = mla_segment_field(&segment->visible.residual, "visible.residual", g);
        MLA_TRY(mla_field_check_dims(&residual, "[n_seq]", 1, &c->n_seq));
    }
    if (mla_tensor_present(&segment->mask)) {
        mla_field mask = mla_segment_field(&segment->mask, "mask", g);
        mla_extent max_len = mla_any_extent();
        MLA_TRY(mla_check_per_token(c, &mask, "[n_seq][n_q][max_len]", "[n_token][max_len]", 1, &max_len));
    }
    return MLA_STATUS_OK;
}
