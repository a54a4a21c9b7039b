/*
 * ref_internal.h - what the oracle's own files share.
 */
#ifndef MLA_REF_INTERNAL_H
#define MLA_REF_INTERNAL_H

#include "ref.h"

/* What is added to the score of a position (of a place in a PHYSICAL list); 0 without a mask. */
double mla_ref_mask(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i,
                    int64_t position);

#endif
