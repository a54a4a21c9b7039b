/*
 * problem_check.h - what the files of the checker share.
 *
 * Order of the check: scalars, then every tensor alone, after tables of fields (problem_check.c); dims against each
 * other (problem_check.c, problem_check_segment.c); strides, and overlap of outputs (problem_check.c); last the values
 * inside index tensors (problem_check_values.c). Each step may rely on the ones before it.
 */
#ifndef MLA_CORE_PROBLEM_CHECK_H
#define MLA_CORE_PROBLEM_CHECK_H

#include "shape.h"
#include "tensor.h"

/* What is known of a problem so far. */
typedef struct mla_checker {
    const mla_problem *p;
    mla_shape shape;
    mla_extent n_seq, n_q, n_token, n_head, n_kv_head; /* n_q: batched only */
    mla_extent d_nope, d_rope, d_v;                    /* d_rope: with q_rope only */
} mla_checker;

static inline mla_field mla_problem_field(const mla_tensor *tensor, const char *path)
{
    return (mla_field){.tensor = tensor, .path = path, .segment = -1};
}

static inline mla_field mla_segment_field(const mla_tensor *tensor, const char *path, int32_t g)
{
    return (mla_field){.tensor = tensor, .path = path, .segment = g};
}

/* Dims of a tensor with one row per query token: {n_seq, n_q, tail...} of a batched q, {n_token, tail...} of a packed
 * one. The layouts are the notations of both. */
mla_status mla_check_per_token(const mla_checker *c, const mla_field *field, const char *batched, const char *packed,
                               int32_t n_tail, const mla_extent *tail);

/* Dims of segment g; fills c->shape.segment[g]. */
mla_status mla_check_segment(mla_checker *c, int32_t g);

/* Values of index tensors, which must be in host memory; c->shape is complete. */
mla_status mla_check_values(const mla_checker *c);

/* The same for a checked problem: what MLA_DEBUG=1 does with host copies of index tensors on a GPU. */
mla_status mla_check_index_values(const mla_problem *problem, const mla_shape *shape);

#endif
