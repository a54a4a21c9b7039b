/*
 * ref.h - the oracle: attention in fp64, straight from the formula of mla_problem.h.
 *
 * It is written to be believed by reading: one row (query token, query head) at a time, all scores first, then their
 * softmax, then the sum of the values. It has its own number formats and its own arithmetic of visible ranges, so that
 * a mistake elsewhere cannot hide in it. A key that the row may not see is never touched.
 *
 * Conventions that the formula leaves open:
 *   - a key whose mask is -inf is one the row may not see;
 *   - a row that sees no key gives o = +0, max = -inf and the lse of lse_empty, whatever the sink;
 *   - a score that is NaN makes that (token, head) NaN: o, lse and max.
 */
#ifndef MLA_REF_H
#define MLA_REF_H

#include "core/shape.h"

/* Where a key lies, as the indices of shape.h's k_stride. */
typedef struct mla_ref_key {
    int64_t page, slot;
    int64_t position; /* what the mask is indexed by: position in the sequence; PHYSICAL list: place in the list */
} mla_ref_key;

/* How many keys token i of sequence s could see in segment g: those of the visible range, or the list's entries up to
 * its end. Whether it sees candidate j of them, 0 <= j < count, is for mla_ref_key_find() to say. */
int64_t mla_ref_candidates(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i);

/* Finds candidate j; false when it names no visible key. Looks at index tensors and the mask only. */
bool mla_ref_key_find(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t s, int64_t i, int64_t j,
                      mla_ref_key *key);

/* One value row as query head h reads it, descale included: v [d_v]. */
void mla_ref_value(const mla_problem *problem, const mla_shape *shape, int32_t g, const mla_ref_key *key, int64_t h,
                   double *v);

typedef struct mla_ref_row_result {
    double lse;          /* in the problem's base, with or without the sink, as the problem asks; or lse_empty */
    double max;          /* largest score */
    int64_t n_visible;   /* keys seen */
    double sum;          /* of exp(score - max) over keys and sink: key j has weight exp(score[j] - max) / sum */
    double sink;         /* the sink's logit, -inf without one */
    int64_t n_candidate; /* over all segments, segment 0 first */
    /* Per candidate, inside the scratch memory: the score, and what bounds its rounding error:
     * |scales| * sum over d of |q[d] k[d]|, + |mask|. A key that is not seen has score -inf and magnitude 0. */
    const double *score, *magnitude;
} mla_ref_row_result;

/* Bytes of scratch that mla_ref_row() and mla_ref_row_rounded() need for any row of the problem. */
size_t mla_ref_scratch_bytes(const mla_problem *problem, const mla_shape *shape);

/* The row of token i of sequence s and query head h with exact probabilities, whatever p_rounding says. o [d_v], not
 * yet rounded; scratch is aligned to 8 bytes. */
void mla_ref_row(const mla_problem *problem, const mla_shape *shape, int64_t s, int64_t i, int64_t h, void *scratch,
                 double *o, mla_ref_row_result *row);

/*
 * The same with probabilities as p_rounding defines them; without a rounding it is mla_ref_row(). Only o differs: lse
 * and max are made from probabilities before they are rounded. The definition is in fp32; here all but the rounding
 * itself is in fp64. Where a probability lies so close to the border between two rounded ones that an fp32 score may
 * push it over, this is one of the right results, and whoever compares has to allow for the other.
 */
void mla_ref_row_rounded(const mla_problem *problem, const mla_shape *shape, int64_t s, int64_t i, int64_t h,
                         void *scratch, double *o, mla_ref_row_result *row);

/* A tile of a row whose probabilities are rounded. */
typedef struct mla_ref_tile {
    int32_t g;                       /* its segment */
    int64_t segment_begin;           /* the segment's first candidate, of row->score */
    int64_t begin, end;              /* its candidates; those that name no visible key have no place in it */
    double before, maximum, largest; /* running maximum m before it and m' after it; t, its own */
} mla_ref_tile;

/* Before the first tile. */
mla_ref_tile mla_ref_tile_start(const mla_ref_row_result *row);

/* Steps to the next tile of the row; false behind the last one. */
bool mla_ref_tile_next(const mla_problem *problem, const mla_shape *shape, int64_t s, int64_t i,
                       const mla_ref_row_result *row, mla_ref_tile *tile);

/* round(p) = unit * mla_ref_p_round(p / unit): the unit, and p / unit before it is rounded, of a score in the tile. */
double mla_ref_p_unit(const mla_problem *problem, const mla_ref_tile *tile);
double mla_ref_p_in_units(const mla_problem *problem, const mla_ref_tile *tile, double score);
double mla_ref_p_round(const mla_problem *problem, double p_in_units);

#endif
