/*
 * row.c - one row of attention: scores, softmax, weighted sum.
 */
#include <math.h>
#include <stddef.h>

#include "number.h"
#include "ref.h"
#include "ref_internal.h"

double mla_ref_factor(const mla_tensor *t, int64_t i)
{
    return mla_tensor_present(t) ? mla_ref_load(t->data, t->dtype, i * t->stride[0]) : 1.0;
}

/* n elements from element `at` on, the innermost stride being 1. */
static void load_row(const mla_tensor *t, int64_t at, int64_t n, double *row)
{
    mla_ref_load_row(t->data, t->dtype, at, n, row);
}

void mla_ref_query(const mla_problem *problem, const mla_shape *shape, int64_t s, int64_t token, int64_t h, double *q)
{
    const int64_t *stride = shape->q_stride;
    load_row(&problem->q, s * stride[0] + token * stride[1] + h * stride[2], shape->d_nope, q);
    if (mla_tensor_present(&problem->q_rope)) {
        stride = shape->q_rope_stride;
        load_row(&problem->q_rope, s * stride[0] + token * stride[1] + h * stride[2], shape->d_rope, q + shape->d_nope);
    }
}

/* Element offset of a stored row. */
static int64_t key_offset(const int64_t *stride, const mla_ref_key *key, int64_t kv_head)
{
    return key->page * stride[0] + key->slot * stride[1] + kv_head * stride[2];
}

/* n columns of a stored row that begins at element `at`, piece by piece. */
static void load_pieces(const mla_tensor *t, int64_t at, const mla_pieces *pieces, int64_t n, double *row)
{
    for (int64_t d = 0; d < n; d += pieces->columns) {
        int64_t columns = n - d < pieces->columns ? n - d : pieces->columns;
        load_row(t, at + mla_column_offset(pieces, d), columns, row + d);
    }
}

void mla_ref_key_columns(const mla_problem *problem, const mla_shape *shape, int32_t g, const mla_ref_key *key,
                         int64_t kv_head, int64_t n, double *k)
{
    const mla_segment *segment = &problem->segment[g];
    const mla_segment_shape *sizes = &shape->segment[g];
    int64_t n_nope = n < shape->d_nope ? n : shape->d_nope;
    load_pieces(&segment->k, key_offset(sizes->k_stride, key, kv_head), &sizes->k_pieces, n_nope, k);
    if (n > n_nope) {
        load_pieces(&segment->k_rope, key_offset(sizes->k_rope_stride, key, kv_head), &sizes->k_rope_pieces, n - n_nope,
                    k + n_nope);
    }
}

void mla_ref_value(const mla_problem *problem, const mla_shape *shape, int32_t g, const mla_ref_key *key, int64_t h,
                   double *v)
{
    const mla_segment *segment = &problem->segment[g];
    int64_t kv_head = h / shape->group;
    if (mla_tensor_present(&segment->v)) {
        load_row(&segment->v, key_offset(shape->segment[g].v_stride, key, kv_head), shape->d_v, v);
    } else {
        mla_ref_key_columns(problem, shape, g, key, kv_head, shape->d_v, v);
    }
    double descale = mla_ref_factor(&segment->descale, 0);
    for (int64_t c = 0; c < shape->d_v; c++) {
        v[c] *= descale;
    }
}

/* Most candidates that any row of the problem has, over all segments. */
static int64_t most_candidates(const mla_problem *problem, const mla_shape *shape)
{
    int64_t most = 0;
    for (int64_t s = 0; s < shape->n_seq; s++) {
        int64_t n = 0;
        for (int32_t g = 0; g < shape->n_segment; g++) {
            n += shape->segment[g].has_list ? shape->segment[g].n_entry : mla_key_length(problem, shape, g, s);
        }
        most = n > most ? n : most;
    }
    return most;
}

/* scratch: score [most candidates], magnitude [most candidates], q [d_k], k [d_k], v [d_v], one behind the other */
size_t mla_ref_scratch_bytes(const mla_problem *problem, const mla_shape *shape)
{
    return sizeof(double) * (size_t)(2 * most_candidates(problem, shape) + 2 * shape->d_k + shape->d_v);
}

static double lse_of_empty(const mla_problem *problem)
{
    switch (problem->lse_empty) {
    case MLA_LSE_EMPTY_POS_INF: return INFINITY;
    case MLA_LSE_EMPTY_NEG_INF: return -INFINITY;
    default: return 0;
    }
}

void mla_ref_row(const mla_problem *problem, const mla_shape *shape, int64_t s, int64_t i, int64_t h, void *scratch,
                 double *o, mla_ref_row_result *row)
{
    double *q = scratch;
    double *k = q + shape->d_k;
    double *v = k + shape->d_k;
    double *score = v + shape->d_v;
    int64_t n_candidate[MLA_MAX_SEGMENT] = {0};
    *row = (mla_ref_row_result){.max = -INFINITY, .sink = -INFINITY};
    for (int32_t g = 0; g < shape->n_segment; g++) {
        n_candidate[g] = mla_ref_candidates(problem, shape, g, s, i);
        row->n_candidate += n_candidate[g];
    }
    double *magnitude = score + row->n_candidate;
    row->score = score;
    row->magnitude = magnitude;
    for (int64_t c = 0; c < shape->d_v; c++) {
        o[c] = 0;
    }

    /* scores */
    if (row->n_candidate > 0) { /* the q of a row without keys may be garbage */
        mla_ref_query(problem, shape, s, mla_query_begin(problem, shape, s) + i, h, q);
    }
    bool is_nan = false;
    int64_t at = 0;
    for (int32_t g = 0; g < shape->n_segment; g++) {
        double scale = (double)problem->softmax_scale * mla_ref_factor(&problem->q_descale, 0) *
                       mla_ref_factor(&problem->segment[g].descale, 0);
        double qk_descale = mla_ref_factor(&problem->qk_descale, h);
        for (int64_t j = 0; j < n_candidate[g]; j++, at++) {
            mla_ref_key key;
            score[at] = -INFINITY;
            magnitude[at] = 0;
            if (!mla_ref_key_find(problem, shape, g, s, i, j, &key)) {
                continue;
            }
            mla_ref_key_columns(problem, shape, g, &key, h / shape->group, shape->d_k, k);
            double dot = 0, absolute = 0;
            for (int64_t d = 0; d < shape->d_nope; d++) {
                dot += q[d] * k[d];
                absolute += fabs(q[d] * k[d]);
            }
            dot *= qk_descale; /* not of a rope part that is apart */
            absolute *= fabs(qk_descale);
            for (int64_t d = shape->d_nope; d < shape->d_k; d++) {
                dot += q[d] * k[d];
                absolute += fabs(q[d] * k[d]);
            }
            double mask = mla_ref_mask(problem, shape, g, s, i, key.position);
            score[at] = scale * dot + mask;
            magnitude[at] = fabs(scale) * absolute + fabs(mask);
            row->max = fmax(row->max, score[at]);
            row->n_visible++;
            is_nan = is_nan || isnan(score[at]);
        }
    }
    if (mla_tensor_present(&problem->sink)) {
        row->sink = mla_ref_factor(&problem->sink, h);
    }
    if (row->n_visible == 0) {
        row->lse = lse_of_empty(problem);
        return;
    }

    /* softmax over keys and sink; the sink's value is 0 */
    double sum_keys = 0; /* of exp(score - max) */
    for (at = 0; at < row->n_candidate; at++) {
        sum_keys += exp(score[at] - row->max);
    }
    row->sum = sum_keys + exp(row->sink - row->max); /* inf for a sink that leaves nothing to the keys */
    row->max = is_nan ? NAN : row->max;
    row->lse = row->max + log(sum_keys);
    if (problem->lse_with_sink && row->sink > row->lse) {
        row->lse = row->sink == INFINITY ? INFINITY : row->sink + log1p(exp(row->lse - row->sink));
    } else if (problem->lse_with_sink) {
        row->lse += log1p(exp(row->sink - row->lse));
    }
    row->lse = problem->lse_base == MLA_LSE_BASE2 ? row->lse / log(2.0) : row->lse;

    /* values */
    double pv_descale = mla_ref_factor(&problem->pv_descale, h);
    at = 0;
    for (int32_t g = 0; g < shape->n_segment; g++) {
        for (int64_t j = 0; j < n_candidate[g]; j++, at++) {
            mla_ref_key key;
            if (!mla_ref_key_find(problem, shape, g, s, i, j, &key)) {
                continue;
            }
            double p = exp(score[at] - row->max) / row->sum;
            mla_ref_value(problem, shape, g, &key, h, v);
            for (int64_t c = 0; c < shape->d_v; c++) {
                o[c] += p * v[c];
            }
        }
    }
    for (int64_t c = 0; c < shape->d_v; c++) {
        o[c] *= pv_descale;
    }
}
