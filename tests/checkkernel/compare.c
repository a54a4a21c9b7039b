/*
 * compare.c - verdicts against the oracle.
 *
 * An output must be what rounding to nearest even makes of some number within B of the exact value. Rounding is
 * monotonic, so the test is  round(exact - B) <= output <= round(exact + B):  nothing is added for the output type, and
 * infinities and subnormals need no rule of their own.
 *
 * Where B comes from. All of the subject's arithmetic is fp32: a result is off by at most u = 2^-24 of its size.
 *
 * (1) A sum of n terms, in any order: |error| <= chain(n) u sum |terms|, with chain(n) = n in the worst case. Random
 *     data do not line up their rounding errors; then chain(n) = 8 sqrt(n) holds but for a probability of 2 n exp(-32)
 *     (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, theorem 2.4). Structured inputs get the worst case.
 *
 * (2) A score s = scale <q, k> + mask in fp32, in base 2 units or not. magnitude = |scale| sum |q k| + |mask|:
 *       chain(d_k)   the sum
 *       9            four scales and log2(e) multiplied together, folding them into q, the mask times log2(e), the
 *                    addition of a rope part whose scales are others, and that of the mask, each at most u * magnitude
 *       1 + |m|      the subtraction of the running maximum m: u |s - m| <= u (magnitude + |m|); m may lag behind the
 *                    true maximum by 8 in base 2 units
 *     E = u ((chain(d_k) + 10) magnitude + |max| + 8), absolute, in natural units.
 *
 * (3) A weight w = exp(s - m): relative error exp(E) - 1, and 8 u for the exponential function (4 ulp).
 *     When the maximum grows, what was gathered so far is multiplied by such a weight, at (8 + 2) u each time. From any
 *     key on, that happens at most once per record: per score larger than all that came between. Let records be the
 *     most there are from any key on. A split starts its own maximum, so a weight may be rescaled for records within
 *     its split, once when the split joins the others, and for records among the splits that follow. So weights are off
 *     by a factor of exp(+-W),
 *         W = E + (8 + 10 (2 records + 2)) u.
 *
 * (4) o = sum p v over keys and the sink, whose v is 0 and whose logit is exact: E_sink = u (2 |sink| + |max| + 8).
 *     Let r_i = exp(+-W_i) be what the weights are off by and * the key with the largest p. Then exactly
 *         o' - o = sum p_i (r_i / r_* - 1) (v_i - o) / sum p_i r_i / r_*
 *     hence  |o' - o| <= sum p_i (exp(W_i + W_*) - 1) |v_i - o| / max(p_*, exp(-2 max W)).  This stays sharp when one
 *     key dominates, where sum p |v| would not. And o' is a mean of the v_i: |o' - o| <= max |v_i - o| at any rate.
 *     Then numerator and denominator are sums of n keys: chain(n + 64) u each, 64 for tails of panels and for merging;
 *     and 6 u for division, descales and the last multiplication:
 *         B = that + u chain(n + 64) sum p |v| + u (chain(n + 64) + 6) |o| + underflow,
 *     underflow = (n + 4) (2^-149 2^8 |scales| + 2^-100 max |v|): products below the smallest number, and weights that
 *     vanish.
 *
 *     Where the plan says bf16 (mla_arithmetic), and the rows are too many to be streamed, p is rounded to bf16 before it
 *     multiplies v: at most 2^-8 of every term, 2^-16 in two parts, in all as much of sum p' |v|, p' being the subject's weights: p' <= p exp(2 max
 *     W), and they add up to 1, so that the sum is at most max |v|. Operands and sums below 2^-126 count as 0. Of o that
 *     costs 2^-126 per key and addition, relative to weights of which the largest is at least 1; of a score d_k times
 *     that and as much of the largest q and k, together below 2^-100 as long as no number of an input exceeds 2^10.
 *
 * (5) lse = m + log(sum): |error| <= log sum p exp(W) + u (chain(n + 64) + 8) + u (3 |lse| + 3 |max|), the last for
 *     leaving base 2 and for adding the two parts. max: the largest E of any key, and leaving base 2.
 *
 * (6) Fixed point adds to E of a key and to B of a column what compare_fixed.c says, the latter times exp(2 max W) for the
 *     weights that it is made of.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "core/plan.h"
#include "cpu/kernels.h"
#include "ref/number.h"

#define U CK_U

double ck_worst_ratio;
int64_t ck_n_judged, ck_n_loose;
double ck_p_unit, ck_p_least;

double ck_chain(const ck_judge *j, double n)
{
    double random = 8 * sqrt(n);
    return j->structured || n < random ? n : random;
}

int64_t ck_output_offset(const int64_t *stride, const ck_place *at)
{
    return at->s * stride[0] + at->token * stride[1] + at->h * stride[2];
}

/* One output element. column -1: not part of a row of o. */
static void judge_element(const mla_tensor *t, const char *name, int64_t offset, double exact, double bound,
                          const ck_place *at, int64_t column)
{
    char where[96];
    if (column >= 0) {
        snprintf(where, sizeof where, "%s[seq %lld][token %lld][head %lld][%lld]", name, (long long)at->s,
                 (long long)at->i, (long long)at->h, (long long)column);
    } else {
        snprintf(where, sizeof where, "%s[seq %lld][token %lld][head %lld]", name, (long long)at->s, (long long)at->i,
                 (long long)at->h);
    }
    if (ck_is_untouched(t->data, t->dtype, offset)) {
        ck_fail("%s was not written", where);
    }
    double got = mla_ref_load(t->data, t->dtype, offset);
    if (isnan(exact) || isnan(got)) {
        if (isnan(exact) != isnan(got)) {
            ck_fail("%s = %g, expected %g", where, got, exact);
        }
        return;
    }
    double low = isinf(exact) ? exact : mla_ref_decode(t->dtype, mla_ref_encode(t->dtype, exact - bound));
    double high = isinf(exact) ? exact : mla_ref_decode(t->dtype, mla_ref_encode(t->dtype, exact + bound));
    if (!(low <= got && got <= high)) {
        ck_fail("%s = %.9g, expected %.9g, off by %.3g, allowed %.3g before rounding to %s", where, got, exact,
                fabs(got - exact), bound, mla_dtype_name(t->dtype));
    }
    if (isfinite(got) && isfinite(exact)) {
        double rounded = mla_ref_decode(t->dtype, mla_ref_encode(t->dtype, exact));
        double slack = bound + fabs(rounded - exact); /* what the exact value itself loses by rounding */
        double ratio = slack > 0 ? fabs(got - exact) / slack : 0;
        if (t->dtype == MLA_DTYPE_F32 &&
            ratio > ck_worst_ratio) { /* of 16-bit outputs it would show the rounding only */
            ck_worst_ratio = ratio;
        }
    }
}

/* A row that sees nothing: +0, not -0, and the fixed lse. */
static void judge_empty(const ck_judge *j, const ck_place *at, const mla_ref_row_result *row)
{
    const mla_problem *p = j->problem;
    int64_t offset = ck_output_offset(j->shape.o_stride, at);
    for (int64_t c = 0; c < j->shape.d_v; c++) {
        judge_element(&p->o, "o", offset + c, 0, 0, at, c);
        double got = mla_ref_load(p->o.data, p->o.dtype, offset + c);
        if (signbit(got)) {
            ck_fail("o[seq %lld][token %lld][head %lld][%lld] = -0 in a row that sees no key", (long long)at->s,
                    (long long)at->i, (long long)at->h, (long long)c);
        }
    }
    if (mla_tensor_present(&p->lse)) {
        judge_element(&p->lse, "lse", ck_output_offset(j->shape.lse_stride, at), row->lse, 0, at, -1);
    }
    if (mla_tensor_present(&p->max)) {
        judge_element(&p->max, "max", ck_output_offset(j->shape.max_stride, at), -INFINITY, 0, at, -1);
    }
}

/* What the error of a row is made of, over keys and sink. */
typedef struct weights {
    bool bf16;            /* are the row's probabilities rounded to bf16, once or in two parts? */
    double overall;       /* W is E + overall */
    double slope, offset; /* E = slope * magnitude + offset */
    double largest_w, w_star, p_star;
    double sink_w, sink_p;
    double max_error; /* largest E */
    double log_mean;  /* log sum p exp(W) over keys alone, or with the sink, as lse counts it */
} weights;

/* Most records from any key on. Seen from the last key backwards, the records from key k on are k itself and those from
 * the next larger score on; candidates for being that one lie on a stack, the nearest on top, each larger than those
 * above. */
static int64_t most_records(const mla_ref_row_result *row)
{
    typedef struct record {
        double score;
        int64_t n;
    } record;
    record *stack = malloc((size_t)row->n_candidate * sizeof *stack);
    CK_REQUIRE(stack != NULL);
    int64_t height = 0, most = 0;
    for (int64_t k = row->n_candidate - 1; k >= 0; k--) {
        if (!(row->score[k] > -INFINITY)) {
            continue;
        }
        while (height > 0 && stack[height - 1].score <= row->score[k]) {
            height--;
        }
        int64_t n = 1 + (height > 0 ? stack[height - 1].n : 0);
        stack[height++] = (record){row->score[k], n};
        most = n > most ? n : most;
    }
    free(stack);
    return most;
}

static weights weigh(const ck_judge *j, const ck_place *at, const mla_ref_row_result *row)
{
    weights w = {.slope = U * (ck_chain(j, (double)j->shape.d_k) + 10), .offset = U * (fabs(row->max) + 8)};
    w.bf16 = j->bf16 && mla_query_slots(j->problem, &j->shape, at->s) * j->shape.group > MLA_STREAM_ROWS;
    w.offset += w.bf16 ? 0x1p-100 : 0;
    w.overall = U * (CK_EXP_ERROR + (CK_EXP_ERROR + 2) * (double)(2 * most_records(row) + 2));
    double sum = 0, sum_p = 0, share = 0; /* share: of all weight, what keys have */
    for (int64_t k = 0; k < row->n_candidate; k++) {
        if (row->score[k] == -INFINITY) {
            continue;
        }
        double e = w.slope * row->magnitude[k] + w.offset + j->score_error[k];
        double p = exp(row->score[k] - row->max) / row->sum;
        share += p;
        w.max_error = fmax(w.max_error, e);
        w.largest_w = fmax(w.largest_w, e + w.overall);
        if (p > w.p_star) {
            w.p_star = p;
            w.w_star = e + w.overall;
        }
        double p_key = exp(row->score[k] - row->max); /* the sink may make p itself vanish */
        sum += p_key * exp(fmin(e + w.overall, 300));
        sum_p += p_key;
    }
    if (row->sink > -INFINITY) {
        w.sink_p = fmax(0, 1 - share);
        w.sink_w = row->sink == INFINITY ? 0 : U * (2 * fabs(row->sink) + fabs(row->max) + 8) + w.overall;
        w.largest_w = fmax(w.largest_w, w.sink_w);
        if (w.sink_p > w.p_star) {
            w.p_star = w.sink_p;
            w.w_star = w.sink_w;
        }
        if (j->problem->lse_with_sink && row->sink != INFINITY) {
            double s = exp(fmin(row->sink - row->max, 700));
            sum += s * exp(fmin(w.sink_w, 300));
            sum_p += s;
        }
    }
    w.log_mean = log(sum / sum_p);
    return w;
}

double ck_pv_descale(const ck_judge *j, int64_t h)
{
    const mla_tensor *t = &j->problem->pv_descale;
    return mla_tensor_present(t) ? mla_ref_load(t->data, t->dtype, h * t->stride[0]) : 1;
}

void ck_judge_o(const ck_judge *j, const ck_place *at, int64_t column, double exact, double bound)
{
    judge_element(&j->problem->o, "o", ck_output_offset(j->shape.o_stride, at) + column, exact, bound, at, column);
}

/* With exact probabilities, as (4) says. */
static void judge_o(ck_judge *j, const ck_place *at, const mla_ref_row_result *row, const weights *w)
{
    const mla_problem *p = j->problem;
    const mla_shape *shape = &j->shape;
    double n = (double)row->n_visible;
    double gathered = ck_chain(j, n + 64);
    double pv = ck_pv_descale(j, at->h);
    for (int64_t c = 0; c < shape->d_v; c++) {
        j->absolute[c] = 0;
        j->spread[c] = w->sink_p * expm1(fmin(w->sink_w + w->w_star, 300)) * fabs(j->o[c]);
        j->hull[c] = w->sink_p > 0 ? fabs(j->o[c]) : 0;
    }
    double largest_v = 0;
    int64_t k = 0;
    for (int32_t g = 0; g < shape->n_segment; g++) {
        int64_t n_candidate = mla_ref_candidates(p, shape, g, at->s, at->i);
        for (int64_t x = 0; x < n_candidate; x++, k++) {
            mla_ref_key key;
            if (!mla_ref_key_find(p, shape, g, at->s, at->i, x, &key)) {
                continue;
            }
            double weight = exp(row->score[k] - row->max) / row->sum;
            double e = w->slope * row->magnitude[k] + w->offset + j->score_error[k];
            double factor = weight * expm1(fmin(e + w->overall + w->w_star, 300));
            mla_ref_value(p, shape, g, &key, at->h, j->v);
            for (int64_t c = 0; c < shape->d_v; c++) {
                double v = j->v[c] * pv;
                double away = fabs(v - j->o[c]);
                j->absolute[c] += weight * fabs(v);
                j->spread[c] += factor * away;
                j->hull[c] = away > j->hull[c] ? away : j->hull[c];
                largest_v = fabs(v) > largest_v ? fabs(v) : largest_v;
            }
        }
    }
    double least_sum = fmax(w->p_star, exp(-2 * w->largest_w));
    double underflow = (n + 4) * (0x1p-141 * fmax(fabs(pv), 1) + 0x1p-100 * largest_v);
    underflow += w->bf16 ? (n + 4) * 0x1p-124 * fmax(fabs(pv), 1) : 0;
    for (int64_t c = 0; c < shape->d_v; c++) {
        double unit = !w->bf16 ? ck_p_unit : j->two_parts ? 0x1p-16 : 0x1p-8;
        double rounding = unit * fmin(j->absolute[c] * exp(2 * w->largest_w), largest_v) + n * ck_p_least * largest_v;
        double bound = rounding + fmin(j->spread[c] / least_sum, j->hull[c]) + U * gathered * j->absolute[c] +
                       U * (gathered + 6) * fabs(j->o[c]) + underflow +
                       j->value_error[c] * fabs(pv) * exp(fmin(2 * w->largest_w, 300));
        ck_judge_o(j, at, c, j->o[c], bound);
        ck_n_judged++;
        /* scores in fixed point may be off by 8 * 2^-9 on random data; worst cases there are not meant to be sharp */
        double loose = !ck_fixed_may_apply(j) ? 0.01 : j->structured ? INFINITY : 0.05;
        ck_n_loose += bound > loose * j->absolute[c] + underflow;
    }
}

static void judge_row(ck_judge *j, const ck_place *at)
{
    const mla_problem *p = j->problem;
    const mla_shape *shape = &j->shape;
    mla_ref_row_result row;
    mla_ref_row(p, shape, at->s, at->i, at->h, j->scratch, j->o, &row);
    if (row.n_visible == 0) {
        judge_empty(j, at, &row);
        return;
    }
    j->score_error = malloc(((size_t)row.n_candidate + (size_t)shape->d_v) * sizeof(double));
    CK_REQUIRE(j->score_error != NULL);
    j->value_error = j->score_error + row.n_candidate;
    ck_fixed_errors(j, at, &row);
    weights w = weigh(j, at, &row);
    if (p->p_rounding == MLA_P_ROUND_NONE) {
        judge_o(j, at, &row, &w);
    } else {
        ck_judge_rounded_o(j, at);
    }
    double gathered = ck_chain(j, (double)row.n_visible + 64);
    double base = p->lse_base == MLA_LSE_BASE2 ? 1 / log(2.0) : 1;
    if (mla_tensor_present(&p->lse)) {
        double bound = base * (w.log_mean + U * (gathered + 8 + 3 * fabs(row.max))) + 3 * U * fabs(row.lse);
        judge_element(&p->lse, "lse", ck_output_offset(shape->lse_stride, at), row.lse, bound, at, -1);
    }
    if (mla_tensor_present(&p->max)) {
        double bound = w.max_error + 2 * U * fabs(row.max);
        judge_element(&p->max, "max", ck_output_offset(shape->max_stride, at), row.max, bound, at, -1);
    }
    free(j->score_error);
}

/* Of a row that is not recomputed: everything was written. A NaN is caught here only where the whole problem has
 * none. */
static void glance(const ck_judge *j, const ck_place *at)
{
    const mla_problem *p = j->problem;
    int64_t offset = ck_output_offset(j->shape.o_stride, at);
    for (int64_t c = 0; c < j->shape.d_v; c++) {
        double got = mla_ref_load(p->o.data, p->o.dtype, offset + c);
        if (isnan(got)) {
            ck_fail("o[seq %lld][token %lld][head %lld][%lld] %s", (long long)at->s, (long long)at->i, (long long)at->h,
                    (long long)c, ck_is_untouched(p->o.data, p->o.dtype, offset + c) ? "was not written" : "is NaN");
        }
    }
    if (mla_tensor_present(&p->lse)) {
        double got = mla_ref_load(p->lse.data, p->lse.dtype, ck_output_offset(j->shape.lse_stride, at));
        if (isnan(got)) {
            ck_fail("lse[seq %lld][token %lld][head %lld] is NaN or was not written", (long long)at->s,
                    (long long)at->i, (long long)at->h);
        }
    }
}

void ck_compare(const mla_problem *problem, bool structured, int64_t work)
{
    ck_judge j = {.problem = problem, .structured = structured};
    if (mla_problem_resolve(problem, &j.shape) != MLA_STATUS_OK) {
        ck_fail("the library refuses: %s", mla_last_error());
    }
    j.two_parts = ck_arithmetic(problem) == MLA_ARITHMETIC_BF16X2;
    j.bf16 = j.two_parts || ck_arithmetic(problem) == MLA_ARITHMETIC_BF16;
    const mla_shape *shape = &j.shape;
    size_t d_v = (size_t)shape->d_v;
    double *columns = malloc(5 * d_v * sizeof *columns);
    j.o = columns;
    j.v = columns + d_v;
    j.spread = columns + 2 * d_v;
    j.absolute = columns + 3 * d_v;
    j.hull = columns + 4 * d_v;
    j.scratch = malloc(mla_ref_scratch_bytes(problem, shape) + 8);
    CK_REQUIRE(columns != NULL && j.scratch != NULL);

    double total = 0; /* (token, head, key) triples; a row without keys is worth one */
    for (int64_t s = 0; s < shape->n_seq; s++) {
        for (int64_t i = 0; i < mla_query_slots(problem, shape, s); i++) {
            int64_t n = 1;
            for (int32_t g = 0; g < shape->n_segment; g++) {
                n += mla_ref_candidates(problem, shape, g, s, i);
            }
            total += (double)(n * shape->n_head);
        }
    }
    double share = total > 0 ? (double)work / total : 1;
    ck_random pick = {ck_hash(ck_seed, 77)};
    for (int64_t s = 0; s < shape->n_seq; s++) {
        int64_t slots = mla_query_slots(problem, shape, s);
        for (int64_t i = 0; i < slots; i++) {
            for (int64_t h = 0; h < shape->n_head; h++) {
                ck_place at = {s, i, h, mla_query_begin(problem, shape, s) + i};
                bool corner = (i == 0 || i == slots - 1) && (h == 0 || h == shape->n_head - 1);
                if (share >= 1 || (corner && (s == 0 || s == shape->n_seq - 1)) || ck_chance(&pick, share)) {
                    judge_row(&j, &at);
                } else {
                    glance(&j, &at);
                }
            }
        }
    }
    free(j.scratch);
    free(columns);
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static uint32_t bits_at(const mla_tensor *t, int64_t index)
{
    if (t->dtype == MLA_DTYPE_F32) {
        return ((const uint32_t *)t->data)[index];
    }
    return ((const uint16_t *)t->data)[index];
}

static void same_bits(const mla_tensor *a, const mla_tensor *b, const char *name, const char *what)
{
    CK_REQUIRE(a->ndim == b->ndim && a->dtype == b->dtype);
    int64_t dim[4] = {1, 1, 1, 1};
    for (int32_t x = 0; x < a->ndim; x++) {
        CK_REQUIRE(a->dim[x] == b->dim[x]);
        dim[x] = a->dim[x];
    }
    for (int64_t i0 = 0; i0 < dim[0]; i0++) {
        for (int64_t i1 = 0; i1 < dim[1]; i1++) {
            for (int64_t i2 = 0; i2 < dim[2]; i2++) {
                for (int64_t i3 = 0; i3 < dim[3]; i3++) {
                    int64_t at_a = ck_offset(a, i0, i1, i2, i3), at_b = ck_offset(b, i0, i1, i2, i3);
                    if (bits_at(a, at_a) != bits_at(b, at_b)) {
                        ck_fail("%s: %s[%lld][%lld][%lld][%lld] = %.9g and %.9g differ in their bits", what, name,
                                (long long)i0, (long long)i1, (long long)i2, (long long)i3,
                                mla_ref_load(a->data, a->dtype, at_a), mla_ref_load(b->data, b->dtype, at_b));
                    }
                }
            }
        }
    }
}

void ck_same_bits(const mla_problem *a, const mla_problem *b, const char *what)
{
    same_bits(&a->o, &b->o, "o", what);
    if (mla_tensor_present(&a->lse)) {
        same_bits(&a->lse, &b->lse, "lse", what);
    }
    if (mla_tensor_present(&a->max)) {
        same_bits(&a->max, &b->max, "max", what);
    }
}
