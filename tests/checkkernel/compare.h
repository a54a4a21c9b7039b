/*
 * compare.h - what the two kinds of verdict share: compare.c for exact probabilities, compare_rounded.c for rounded
 * ones.
 */
#ifndef CHECKKERNEL_COMPARE_H
#define CHECKKERNEL_COMPARE_H

#include "checkkernel.h"
#include "ref/ref.h"

/* All of the subject's arithmetic is fp32: a result is off by at most this part of its size. */
#define CK_U 0x1p-24
/* Of the exponential function, in the same units: 4 ulp. */
#define CK_EXP_ERROR 8.0

typedef struct ck_judge {
    const mla_problem *problem;
    mla_shape shape;
    bool structured;
    bool bf16, two_parts;                     /* does the subject compute it in bf16, probabilities in two parts? */
    double *o, *v, *spread, *absolute, *hull; /* [d_v] each */
    double *score_error, *value_error;        /* what fixed point may add, [candidate] and [d_v] */
    void *scratch;
} ck_judge;

typedef struct ck_place {
    int64_t s, i, h, token; /* token: row of the outputs, in the sequence (batched) or in all (packed) */
} ck_place;

/* Growth of the error of a sum of n terms. */
double ck_chain(const ck_judge *j, double n);
int64_t ck_output_offset(const int64_t *stride, const ck_place *at);
double ck_pv_descale(const ck_judge *j, int64_t h);

/* One element of o: within `bound` of `exact`, before rounding. */
void ck_judge_o(const ck_judge *j, const ck_place *at, int64_t column, double exact, double bound);

/* May rows of the problem go by fixed point? Fills score_error and value_error for a row: zeros where it does not. */
bool ck_fixed_may_apply(const ck_judge *j);
void ck_fixed_errors(ck_judge *j, const ck_place *at, const mla_ref_row_result *row);

/* The row of o whose probabilities are rounded; j->scratch holds what mla_ref_row() left there. */
void ck_judge_rounded_o(ck_judge *j, const ck_place *at);

#endif
