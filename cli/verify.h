/*
 * verify.h - is a result right? Answered with the oracle and an error bound computed for every element.
 *
 * docs/capture-format.md states the bound. Its ingredients come from the oracle too: S is the largest score of the
 * problem with |q| and |k|, A is the output of the problem with |v|. So the bound obeys the same visibility rules as
 * the result.
 */
#ifndef MLA_CLI_VERIFY_H
#define MLA_CLI_VERIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mla/mla.h"

/* What is true of a problem: filled by verify_prepare(), contiguous, [row][head] and [row][head][d_v] with the rows
 * of o. */
typedef struct verify_truth {
    float *o, *lse;
    float *weight; /* A: sum of p |v|, per element of o */
    float *score;  /* S: per (row, head) */
    int64_t n_row, n_head, d_v;
    int32_t n_dim; /* leading dims of o before [head][d_v]: 1 or 2 */
    int64_t dim[2];
    double n_key; /* most keys that a row may see */
    double d_k;
    double score_bias; /* largest |mask| that is added to a score */
    double v_max;      /* largest finite |v|, descales included */
    double lse_unit;   /* 1, or 1 / ln 2 for an lse of base 2 */
    /* what one step of a rounded probability is at most: a part of p, plus this */
    double p_step, p_step_least;
    float *weight_rms; /* in fixed point: root mean square of A over each (row, head); else NULL */
    mla_dtype q_dtype;
    double seconds; /* what the oracle took */
} verify_truth;

typedef struct verify_report {
    bool passed;
    int64_t n_value; /* compared, o and lse together */
    double worst;    /* largest (error - bound.output) / bound.arithmetic: 1 or less is right */
    double normwise; /* ||o - truth|| / ||truth|| over all finite elements */
    double rounding; /* the same of the truth rounded to o's dtype: what nobody can be better than */
    mla_dtype o_dtype;
    char sentence[256]; /* the worst element, in words */
} verify_report;

/*
 * Runs the oracle on the problem (its o and lse are not touched), and twice more for the bound, which is that of what the
 * result is computed in (mla_plan_info.arithmetic). With two segments their descales must have one sign. MLA_STATUS_OUT_OF_MEMORY, or what the library returns.
 */
mla_status verify_prepare(const mla_problem *problem, mla_arithmetic arithmetic, verify_truth *truth);
void verify_release(verify_truth *truth); /* a zeroed one is fine */

/* What element (row, head, column) of an output of that dtype may differ by; column -1: of lse. */
typedef struct verify_bound {
    double arithmetic; /* rounding errors on the way */
    double output;     /* half a unit in the last place of the output */
} verify_bound;

verify_bound verify_bound_of(const verify_truth *truth, int64_t row, int64_t head, int64_t column, mla_dtype o_dtype,
                             bool recorded);

/*
 * Compares o (any float dtype) and lse (absent: not compared), both with the dims of the problem's. `recorded`: they
 * come from another implementation, see docs/capture-format.md.
 */
void verify_compare(const verify_truth *truth, const mla_tensor *o, const mla_tensor *lse, bool recorded,
                    verify_report *report);

/* A report that passed, in words on two lines: "<lead>arithmetic uses 0.1 % of its bound<tail>" and "norm-wise error
 * 1.7e-03, nearly all of it the rounding of a bf16 output". */
void verify_print(const char *label, const verify_report *report, const char *lead, const char *tail);

#endif
