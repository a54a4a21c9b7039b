/*
 * rounded.c - a row whose probabilities are rounded before they multiply the values: tile after tile, as mla_p_rounding
 * says in mla_problem.h.
 */
#include <math.h>

#include "number.h"
#include "ref.h"
#include "ref_internal.h"

/* exp(a - b) of maxima that may both be infinite: nothing has to be rescaled then. */
static double ratio(double a, double b)
{
    return a == b ? 1 : exp(a - b);
}

mla_ref_tile mla_ref_tile_start(const mla_ref_row_result *row)
{
    return (mla_ref_tile){.before = row->sink, .maximum = row->sink, .largest = -INFINITY};
}

bool mla_ref_tile_next(const mla_problem *problem, const mla_shape *shape, int64_t s, int64_t i,
                       const mla_ref_row_result *row, mla_ref_tile *tile)
{
    int64_t at = tile->end, n = mla_ref_candidates(problem, shape, tile->g, s, i);
    while (at == tile->segment_begin + n) {
        if (tile->g + 1 == shape->n_segment) {
            return false;
        }
        tile->g++;
        tile->segment_begin += n;
        n = mla_ref_candidates(problem, shape, tile->g, s, i);
    }
    tile->begin = at;
    tile->before = tile->maximum;
    tile->largest = -INFINITY;
    for (int32_t n_place = 0; at < tile->segment_begin + n && n_place < problem->p_tile; at++) {
        mla_ref_key key;
        n_place += mla_ref_key_place(problem, shape, tile->g, s, i, at - tile->segment_begin, &key);
        tile->largest = fmax(tile->largest, row->score[at]);
    }
    tile->end = at;
    tile->maximum = fmax(tile->before, tile->largest);
    return true;
}

double mla_ref_p_unit(const mla_problem *problem, const mla_ref_tile *tile)
{
    return problem->p_rounding == MLA_P_ROUND_INT8 ? ratio(tile->largest, tile->maximum) / 127 : 1;
}

double mla_ref_p_in_units(const mla_problem *problem, const mla_ref_tile *tile, double score)
{
    /* for INT8 exp(score - m') / unit, in which m' cancels: nothing underflows beside a large maximum */
    return problem->p_rounding == MLA_P_ROUND_INT8 ? 127 * exp(score - tile->largest) : exp(score - tile->maximum);
}

double mla_ref_p_round(const mla_problem *problem, double p)
{
    switch (problem->p_rounding) {
    case MLA_P_ROUND_16BIT: return mla_ref_decode(problem->q.dtype, mla_ref_encode(problem->q.dtype, p));
    case MLA_P_ROUND_HIF8: return mla_ref_decode(MLA_DTYPE_HIF8, mla_ref_encode(MLA_DTYPE_HIF8, 16 * p)) / 16;
    case MLA_P_ROUND_INT8: return rint(mla_ref_decode(MLA_DTYPE_F16, mla_ref_encode(MLA_DTYPE_F16, p)));
    default: return p;
    }
}

void mla_ref_row_rounded(const mla_problem *problem, const mla_shape *shape, int64_t s, int64_t i, int64_t h,
                         void *scratch, double *o, mla_ref_row_result *row)
{
    mla_ref_row(problem, shape, s, i, h, scratch, o, row);
    if (problem->p_rounding == MLA_P_ROUND_NONE || row->n_visible == 0 || isnan(row->max)) {
        return;
    }
    double *v = (double *)scratch + 2 * shape->d_k; /* behind q and k: mla_ref_row() has no more use for it */
    for (int64_t c = 0; c < shape->d_v; c++) {
        o[c] = 0;
    }
    double l = row->sink > -INFINITY ? 1 : 0;
    for (mla_ref_tile tile = mla_ref_tile_start(row); mla_ref_tile_next(problem, shape, s, i, row, &tile);) {
        double rescale = ratio(tile.before, tile.maximum), unit = mla_ref_p_unit(problem, &tile);
        l *= rescale;
        for (int64_t c = 0; c < shape->d_v; c++) {
            o[c] *= rescale;
        }
        for (int64_t at = tile.begin; at < tile.end; at++) {
            mla_ref_key key;
            if (!mla_ref_key_find(problem, shape, tile.g, s, i, at - tile.segment_begin, &key)) {
                continue;
            }
            l += exp(row->score[at] - tile.maximum);
            double p = unit * mla_ref_p_round(problem, mla_ref_p_in_units(problem, &tile, row->score[at]));
            mla_ref_value(problem, shape, tile.g, &key, h, v);
            for (int64_t c = 0; c < shape->d_v; c++) {
                o[c] += p * v[c];
            }
        }
    }
    for (int64_t c = 0; c < shape->d_v; c++) {
        o[c] = o[c] / l * mla_ref_factor(&problem->pv_descale, h);
    }
}
