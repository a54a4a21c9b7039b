/*
 * ref_internal.h - what the oracle's own files share.
 */
#ifndef MLA_REF_INTERNAL_H
#define MLA_REF_INTERNAL_H

#include "ref.h"

/* Finds candidate j as mla_ref_key_find() does, but a key that the mask hides counts as seen. */
bool mla_ref_key_place(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i, int64_t j,
                       mla_ref_key *key);

/* q [d_k] of a row, [nope | rope]; token: in the sequence when q is batched, else in all. */
void mla_ref_query(const mla_problem *problem, const mla_shape *shape, int64_t s, int64_t token, int64_t h, double *q);

/* k [n] of a key: the first n columns of [nope | rope]. */
void mla_ref_key_columns(const mla_problem *problem, const mla_shape *shape, int32_t g, const mla_ref_key *key,
                         int64_t kv_head, int64_t n, double *k);

/* Optional f32 factors: element i, or 1 when the tensor is absent. */
double mla_ref_factor(const mla_tensor *t, int64_t i);

/* What is added to the score of a position (of a place in a PHYSICAL list); 0 without a mask. */
double mla_ref_mask(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i,
                    int64_t position);

#endif
