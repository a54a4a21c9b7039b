/*
 * compare_rounded.c - the verdict on o where probabilities are rounded before they multiply the values.
 *
 * Rounding is a step function: where a probability stays away from the steps it swallows the small errors of the score,
 * and the result must be right to fp32 accuracy; where one lies on a step, an error in the last bit of the score moves
 * it by a whole quantum. So nothing is allowed for the rounding itself, only for the steps that an honest fp32 score
 * may take. With the notation of compare.c, and M the maximum m' of a tile:
 *
 * (1) The subject's p is off by a factor of exp(+-W): E_j for its score, max E for M, and what exp and the arithmetic
 *     up to the rounding cost: 8 u for HIF8 and 16BIT; for INT8 two exponentials, 1 / 127 and two operations, 19 u. E
 *     is that of compare.c with the largest magnitude in the place of |max|, for M may be any score, and the sink's if
 *     it is one. round() is monotonic, so what the subject rounded to lies in [round(p exp(-W)), round(p exp(W))].
 *     This also covers INT8's two roundings in a row. Let delta be the larger distance from there to the oracle's
 *     round(p): 0 for nearly all keys.
 *
 * (2) A tile's sum is multiplied by exp(M - M_last), in one or many steps: T = max E + u (12 + 10 records + 2 largest
 *     score) with the records among the tiles, 12 for INT8's unit; and 4 u for descales. (Errors of M_last cancel in o
 *     / l.)
 *
 * (3) l is a sum of exact probabilities, each off by exp(+-(E + 8 u + (2) without max E)): let r be the logarithm of
 *     the sum's relative error.
 *
 *         B = exp(r) sum w (delta + round(p) (exp(T) - 1)) |v| + (exp(r) - 1) |o|
 *             + u chain(n + 64) sum w round(p) |v| + u (chain(n + 64) + 6) |o| + underflow,     w = exp(M - M_last) / l
 */
#include <math.h>

#include "compare.h"
#include "ref/number.h"

#define U CK_U

/* What the error of a row is made of. */
typedef struct row_error {
    double slope, offset;  /* E = slope * magnitude + offset */
    double largest;        /* max E */
    double rescale;        /* (2) without max E */
    double log_sum;        /* r */
    double maximum, total; /* m' of the last tile and l */
} row_error;

static double clipped_exp(double x)
{
    return exp(fmin(x, 300));
}

static row_error find_errors(const ck_judge *j, const ck_place *at, const mla_ref_row_result *row)
{
    row_error e = {.slope = U * (ck_chain(j, (double)j->shape.d_k) + 10), .maximum = row->sink};
    double top = 0, records = 0;
    for (int64_t k = 0; k < row->n_candidate; k++) {
        top = fmax(top, row->magnitude[k]);
    }
    bool sink_leads = false;
    for (mla_ref_tile tile = mla_ref_tile_start(row);
         mla_ref_tile_next(j->problem, &j->shape, at->s, at->i, row, &tile);) {
        records += tile.maximum > tile.before;
        sink_leads = sink_leads || (row->sink > -INFINITY && tile.maximum == row->sink);
        e.maximum = tile.maximum;
    }
    top = sink_leads ? fmax(top, fabs(row->sink)) : top;
    e.offset = U * (top + 8);
    e.rescale = U * (10 * (records + 1) + 12 + 2 * top);
    double off = 0;
    for (int64_t k = 0; k < row->n_candidate; k++) {
        if (row->score[k] > -INFINITY) {
            double error = e.slope * row->magnitude[k] + e.offset, p = exp(row->score[k] - e.maximum);
            e.largest = fmax(e.largest, error);
            e.total += p;
            off += p * clipped_exp(error + e.rescale + CK_EXP_ERROR * U);
        }
    }
    if (row->sink > -INFINITY) {
        double error = U * (2 * fabs(row->sink) + top + 8), p = exp(row->sink - e.maximum);
        e.largest = sink_leads ? fmax(e.largest, error) : e.largest;
        e.total += p;
        off += p * clipped_exp(error + e.rescale + CK_EXP_ERROR * U);
    }
    e.log_sum = log(off / e.total);
    return e;
}

void ck_judge_rounded_o(ck_judge *j, const ck_place *at)
{
    const mla_problem *p = j->problem;
    const mla_shape *shape = &j->shape;
    mla_ref_row_result row;
    mla_ref_row_rounded(p, shape, at->s, at->i, at->h, j->scratch, j->o, &row);
    if (isnan(row.max) || row.sink == INFINITY) { /* NaN, or exactly 0 */
        for (int64_t c = 0; c < shape->d_v; c++) {
            ck_judge_o(j, at, c, j->o[c], 0);
        }
        return;
    }
    row_error e = find_errors(j, at, &row);
    double pv = ck_pv_descale(j, at->h), n = (double)row.n_visible, gathered = ck_chain(j, n + 64), largest_v = 0;
    for (int64_t c = 0; c < shape->d_v; c++) {
        j->absolute[c] = j->spread[c] = 0;
    }
    double before_round = U * (p->p_rounding == MLA_P_ROUND_INT8 ? 19 : CK_EXP_ERROR);
    double tile_error = e.largest + e.rescale + 4 * U;
    for (mla_ref_tile tile = mla_ref_tile_start(&row); mla_ref_tile_next(p, shape, at->s, at->i, &row, &tile);) {
        double weight = mla_ref_p_unit(p, &tile) * exp(tile.maximum - e.maximum) / e.total;
        for (int64_t k = tile.begin; k < tile.end; k++) {
            mla_ref_key key;
            if (!mla_ref_key_find(p, shape, tile.g, at->s, at->i, k - tile.segment_begin, &key)) {
                continue;
            }
            double w = e.slope * row.magnitude[k] + e.offset + e.largest + before_round;
            double x = mla_ref_p_in_units(p, &tile, row.score[k]), rounded = mla_ref_p_round(p, x);
            double delta =
                fmax(mla_ref_p_round(p, x * clipped_exp(w)) - rounded, rounded - mla_ref_p_round(p, x * exp(-w)));
            double error = weight * (delta * clipped_exp(tile_error) + rounded * (clipped_exp(tile_error) - 1));
            mla_ref_value(p, shape, tile.g, &key, at->h, j->v);
            for (int64_t c = 0; c < shape->d_v; c++) {
                double v = fabs(j->v[c] * pv);
                j->absolute[c] += weight * rounded * v;
                j->spread[c] += error * v;
                largest_v = fmax(largest_v, v);
            }
        }
    }
    double underflow = (n + 4) * (0x1p-141 * fmax(fabs(pv), 1) + 0x1p-100 * largest_v);
    for (int64_t c = 0; c < shape->d_v; c++) {
        double bound = clipped_exp(e.log_sum) * j->spread[c] + (clipped_exp(e.log_sum) - 1) * fabs(j->o[c]) +
                       U * gathered * j->absolute[c] + U * (gathered + 6) * fabs(j->o[c]) + underflow;
        ck_judge_o(j, at, c, j->o[c], bound);
        ck_n_judged++;
        ck_n_loose += bound > 0.01 * j->absolute[c] + underflow;
    }
}
