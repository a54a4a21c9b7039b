/*
 * shape.h - everything about a checked problem that its tensors imply: sizes, lengths, where a row lies.
 *
 * mla_problem_resolve() is the only producer: a mla_shape exists only for a problem that passed every check, so the
 * code below it may trust what the comments here say.
 */
#ifndef MLA_CORE_SHAPE_H
#define MLA_CORE_SHAPE_H

#include <math.h>

#include "mla/mla_problem.h"
#include "status.h"

typedef enum mla_addressing { MLA_ADDRESS_PAGED = 0, MLA_ADDRESS_BATCHED = 1, MLA_ADDRESS_PACKED = 2 } mla_addressing;

/* How the columns of a stored row lie: in pieces of `columns` of them side by side, each `stride` elements behind the
 * one before it. A row in one piece has all its columns in it. */
typedef struct mla_pieces {
    int64_t columns, stride;
} mla_pieces;

/* Element offset of a column from the first one of its row. */
static inline int64_t mla_column_offset(const mla_pieces *pieces, int64_t column)
{
    return column / pieces->columns * pieces->stride + column % pieces->columns;
}

typedef struct mla_segment_shape {
    mla_addressing addressing;
    int64_t n_page;    /* paged: pages in the pool; batched: sequences; packed: 1 */
    int64_t page_size; /* paged: rows per page; batched: max_len; packed: rows in all */
    int64_t max_page;  /* paged: columns of the page table */
    int64_t n_entry;   /* width of the key list, 0 without a list */
    bool has_list;
    /* element strides of k, k_rope and v, addressed [page][slot][kv_head]; packed: page stride 0. A row's columns lie
     * side by side (one piece) in v, and in k and k_rope unless the layout says otherwise */
    int64_t k_stride[3], k_rope_stride[3], v_stride[3];
    mla_pieces k_pieces, k_rope_pieces;
} mla_segment_shape;

typedef struct mla_shape {
    int64_t n_seq, n_head, n_kv_head;
    int64_t group;          /* query heads per kv head */
    int64_t n_q;            /* batched: query slots per sequence; packed: 0 */
    int64_t n_token;        /* batched: n_seq * n_q; packed: rows of q */
    int64_t d_nope, d_rope; /* d_rope is 0 when the rope part is inside q and k */
    int64_t d_k, d_v;       /* d_k = d_nope + d_rope */
    bool batched;
    int32_t n_segment;
    mla_segment_shape segment[MLA_MAX_SEGMENT];
    /* element strides, addressed [seq][token in seq][head]; packed: [0][token][head] with stride 0 for seq */
    int64_t q_stride[3], q_rope_stride[3], o_stride[3], lse_stride[3], max_stride[3];
} mla_shape;

/* The one checker. On success fills *shape (may be NULL when only the verdict is wanted). On failure: the status of the
 * first broken rule, with its sentence. */
mla_status mla_problem_resolve(const mla_problem *problem, mla_shape *shape);

/* ---- questions about one sequence; pure, cheap, host memory only ---------------------------------------------------- */

/* i32 element i of a one-dimensional index tensor */
static inline int64_t mla_index_at(const mla_tensor *t, int64_t i)
{
    return ((const int32_t *)t->data)[i * t->stride[0]];
}

/* The word for a p_rounding that passed the check, for sentences. */
static inline const char *mla_p_rounding_word(mla_p_rounding p_rounding)
{
    static const char *const word[] = {"none", "16bit", "int8", "hif8"};
    return word[p_rounding];
}

/* The lse of a row without keys. */
static inline double mla_empty_lse(mla_lse_empty rule)
{
    return rule == MLA_LSE_EMPTY_POS_INF ? INFINITY : rule == MLA_LSE_EMPTY_NEG_INF ? -INFINITY : 0;
}

/* Is the optional tensor given? */
static inline bool mla_tensor_present(const mla_tensor *t)
{
    return t->ndim != 0 || t->data != NULL;
}

/* First query token of sequence s in a packed q (0 when batched). */
static inline int64_t mla_query_begin(const mla_problem *p, const mla_shape *shape, int64_t s)
{
    if (shape->batched) {
        return 0;
    }
    return mla_tensor_present(&p->q_begin) ? mla_index_at(&p->q_begin, s) : s;
}

/* Query slots of sequence s: rows of o to be written. */
static inline int64_t mla_query_slots(const mla_problem *p, const mla_shape *shape, int64_t s)
{
    if (shape->batched) {
        return shape->n_q;
    }
    return mla_tensor_present(&p->q_begin) ? mla_index_at(&p->q_begin, s + 1) - mla_index_at(&p->q_begin, s) : 1;
}

/* Query tokens in use, 0 .. slots; the others see nothing. */
static inline int64_t mla_query_used(const mla_problem *p, const mla_shape *shape, int64_t s)
{
    int64_t slots = mla_query_slots(p, shape, s);
    if (!mla_tensor_present(&p->q_length)) {
        return slots;
    }
    int64_t used = mla_index_at(&p->q_length, s);
    return used < 0 ? 0 : used > slots ? slots : used;
}

/* Valid keys of sequence s in segment g, >= 0. For a PHYSICAL list without length: 0 (the rule ALL is then implied). */
static inline int64_t mla_key_length(const mla_problem *p, const mla_shape *shape, int32_t g, int64_t s)
{
    const mla_segment *segment = &p->segment[g];
    if (mla_tensor_present(&segment->length)) {
        int64_t length = mla_index_at(&segment->length, s);
        return length < 0 ? 0 : length;
    }
    switch (shape->segment[g].addressing) {
    case MLA_ADDRESS_BATCHED: return shape->segment[g].page_size;
    case MLA_ADDRESS_PACKED:
        return mla_tensor_present(&segment->k_begin)
                   ? mla_index_at(&segment->k_begin, s + 1) - mla_index_at(&segment->k_begin, s)
                   : 0;
    default: return 0;
    }
}

#endif
