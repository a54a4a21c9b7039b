/*
 * verify.c - see verify.h.
 */
#include "verify.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_number.h"
#include "terminal.h"

#define U 0x1p-24      /* unit roundoff of fp32 */
#define DEVIATIONS 8.0 /* of the probabilistic rounding bound */
#define CONSTANT 8.0   /* roundings outside the sums: scaling, exp, division, merging */
#define FIXED 0x1p-9   /* fixed point's limit to the standard deviation of scores and values */

static bool present(const mla_tensor *t)
{
    return t->ndim != 0;
}

static int64_t element_count(const mla_tensor *t)
{
    int64_t count = 1;
    for (int32_t i = 0; i < t->ndim; i++) {
        count *= t->dim[i];
    }
    return count;
}

/* Element (row, column) of a view whose last dim is the column and whose others are counted together. */
static int64_t view_offset(const mla_tensor *t, int64_t row, int64_t column)
{
    int64_t offset = column * t->stride[t->ndim - 1];
    for (int32_t i = t->ndim - 2; i >= 0; i--) {
        offset += row % t->dim[i] * t->stride[i];
        row /= t->dim[i];
    }
    return offset;
}

/* One stored number as fp32, whatever its format. */
static float load_any(const mla_tensor *t, int64_t at)
{
    switch (t->dtype) {
    case MLA_DTYPE_HIF8: return mla_hif8_decode(((const uint8_t *)t->data)[at]);
    case MLA_DTYPE_I8: return (float)((const int8_t *)t->data)[at];
    default: return number_load(t->data, t->dtype, at);
    }
}

/* The first n columns of |source| into columns [at, at + n) of a contiguous fp32 copy with `width` columns. */
static void copy_absolute(const mla_tensor *source, int64_t n, float *to, int64_t width, int64_t at)
{
    int64_t columns = source->dim[source->ndim - 1];
    int64_t n_row = columns == 0 ? 0 : element_count(source) / columns;
    for (int64_t row = 0; row < n_row; row++) {
        for (int64_t i = 0; i < n; i++) {
            to[row * width + at + i] = fabsf(load_any(source, view_offset(source, row, i)));
        }
    }
}

/* The problem with absolute values, and what it owns. */
typedef struct absolute {
    void *owned[24];
    size_t n_owned;
    bool failed;
} absolute;

static void *absolute_alloc(absolute *a, size_t count, size_t size)
{
    void *memory = cli_alloc(count, size);
    if (memory == NULL) {
        a->failed = true;
    } else {
        a->owned[a->n_owned++] = memory;
    }
    return memory;
}

static mla_tensor absolute_copy(absolute *a, const mla_tensor *t)
{
    mla_tensor copy = *t;
    if (present(t)) {
        float *data = absolute_alloc(a, (size_t)element_count(t), sizeof *data);
        copy = mla_tensor_make(data, MLA_DTYPE_F32, t->ndim, t->dim);
        if (data != NULL) {
            copy_absolute(t, t->dim[t->ndim - 1], data, t->dim[t->ndim - 1], 0);
        }
    }
    return copy;
}

/* t of layout NZ, [n_page][d / c][page_size][c], as fp32 rows [n_page][page_size][1][d]. */
static mla_tensor rows_of_nz(absolute *a, const mla_tensor *t)
{
    if (!present(t)) {
        return *t;
    }
    int64_t n_piece = t->dim[1], page_size = t->dim[2], piece = t->dim[3];
    float *data = absolute_alloc(a, (size_t)element_count(t), sizeof *data);
    for (int64_t row = 0; data != NULL && row < t->dim[0] * n_piece * page_size; row++) {
        int64_t page = row / (n_piece * page_size), x = row / page_size % n_piece, slot = row % page_size;
        for (int64_t i = 0; i < piece; i++) {
            data[((page * page_size + slot) * n_piece + x) * piece + i] = load_any(t, view_offset(t, row, i));
        }
    }
    return mla_tensor_make(data, MLA_DTYPE_F32, 4, (int64_t[]){t->dim[0], page_size, 1, n_piece * piece});
}

static void absolute_release(absolute *a)
{
    while (a->n_owned > 0) {
        free(a->owned[--a->n_owned]);
    }
}

/* |v| of a segment, where `absolute_k` is |k| already: a view of it where the layout allows, else a copy. */
static mla_tensor absolute_v(absolute *a, const mla_problem *p, const mla_segment *s, const mla_tensor *absolute_k)
{
    if (present(&s->v)) {
        return absolute_copy(a, &s->v);
    }
    mla_tensor v = *absolute_k;
    int32_t last = v.ndim - 1;
    if (p->d_v <= v.dim[last]) {
        v.dim[last] = p->d_v;
        return v;
    }
    /* values that reach into a rope part of its own */
    int64_t d_nope = v.dim[last];
    v.dim[last] = p->d_v;
    float *data = absolute_alloc(a, (size_t)element_count(&v), sizeof *data);
    v = mla_tensor_make(data, MLA_DTYPE_F32, v.ndim, v.dim);
    if (data != NULL) {
        copy_absolute(&s->k, d_nope, data, p->d_v, 0);
        copy_absolute(&s->k_rope, p->d_v - d_nope, data, p->d_v, d_nope);
    }
    return v;
}

static double largest_finite(const mla_tensor *t)
{
    double largest = 0;
    int64_t columns = t->dim[t->ndim - 1];
    int64_t n_row = columns == 0 ? 0 : element_count(t) / columns;
    for (int64_t row = 0; row < n_row; row++) {
        for (int64_t c = 0; c < columns; c++) {
            double x = fabs((double)number_load(t->data, t->dtype, view_offset(t, row, c)));
            if (isfinite(x) && x > largest) {
                largest = x;
            }
        }
    }
    return largest;
}

/* The largest of optional factors, all positive. */
static double largest_factor(const mla_tensor *t)
{
    return present(t) ? largest_finite(t) : 1;
}

/* The most keys a row can see: an upper bound from lengths and lists. */
static double key_count(const mla_problem *p)
{
    double total = 0;
    for (int32_t g = 0; g < p->n_segment; g++) {
        const mla_segment *s = &p->segment[g];
        int64_t most = 0;
        if (present(&s->list)) {
            most = s->list.dim[s->list.ndim - 1];
        } else if (present(&s->length)) {
            for (int64_t i = 0; i < s->length.dim[0]; i++) {
                int64_t length = ((const int32_t *)s->length.data)[i * s->length.stride[0]];
                most = length > most ? length : most;
            }
        } else if (s->k.ndim == 4) {
            most = s->k.dim[s->layout == MLA_KEY_LAYOUT_NZ ? 2 : 1];
        } else if (s->k.ndim == 3) {
            most = s->k.dim[0];
        }
        total += (double)most;
    }
    return total;
}

static mla_status run_oracle(const mla_problem *problem)
{
    mla_plan_options options = {.backend = MLA_BACKEND_REF};
    return mla_attention(problem, &options);
}

/* Contiguous fp32 view with the leading dims of o: [.., head] or [.., head][d_v]. */
static mla_tensor truth_view(const verify_truth *t, float *data, bool with_columns)
{
    int64_t dim[4] = {t->dim[0], t->dim[1]};
    int32_t n = t->n_dim;
    dim[n++] = t->n_head;
    if (with_columns) {
        dim[n++] = t->d_v;
    }
    return mla_tensor_make(data, MLA_DTYPE_F32, n, dim);
}

/* The oracle with |v| and exact probabilities: out is A. */
static mla_status weigh(const mla_problem *problem, const mla_problem *absolutes, verify_truth *truth)
{
    mla_problem p = *problem;
    p.pv_descale = absolutes->pv_descale;
    for (int32_t g = 0; g < p.n_segment; g++) {
        p.segment[g].v = absolutes->segment[g].v;
        double v_max = largest_finite(&p.segment[g].v) * largest_factor(&p.pv_descale) *
                       largest_factor(&absolutes->segment[g].descale);
        truth->v_max = v_max > truth->v_max ? v_max : truth->v_max;
    }
    p.o = truth_view(truth, truth->weight, true);
    p.lse = (mla_tensor){0};
    p.max = (mla_tensor){0};
    return run_oracle(&p);
}

/* The oracle with |q| and |k|: the largest score is S. */
static mla_status score(const mla_problem *absolutes, verify_truth *truth, float *scratch)
{
    mla_problem p = *absolutes;
    p.softmax_scale = fabsf(p.softmax_scale);
    p.sink = (mla_tensor){0};
    p.d_v = 1;
    for (int32_t g = 0; g < p.n_segment; g++) {
        mla_segment *s = &p.segment[g];
        s->v = (mla_tensor){0};
        if (present(&s->mask)) {
            double bias = largest_finite(&s->mask);
            truth->score_bias = bias > truth->score_bias ? bias : truth->score_bias;
            s->mask = (mla_tensor){0};
        }
    }
    p.o = truth_view(truth, scratch, true);
    p.o.dim[p.o.ndim - 1] = 1;
    p.o = mla_tensor_make(scratch, MLA_DTYPE_F32, p.o.ndim, p.o.dim);
    p.lse = (mla_tensor){0};
    p.max = truth_view(truth, truth->score, false);
    return run_oracle(&p);
}

static void find_weight_rms(verify_truth *truth)
{
    int64_t n_pair = truth->n_row * truth->n_head;
    truth->weight_rms = cli_alloc((size_t)n_pair, sizeof(float));
    for (int64_t pair = 0; truth->weight_rms != NULL && pair < n_pair; pair++) {
        double sum = 0;
        for (int64_t c = 0; c < truth->d_v; c++) {
            double weight = (double)truth->weight[pair * truth->d_v + c];
            sum += weight * weight;
        }
        truth->weight_rms[pair] = (float)sqrt(sum / (double)truth->d_v);
    }
}

mla_status verify_prepare(const mla_problem *problem, mla_arithmetic arithmetic, verify_truth *truth)
{
    double begin = cli_now();
    *truth = (verify_truth){0};
    const mla_tensor *o = &problem->o;
    truth->n_dim = o->ndim - 2;
    truth->n_row = 1;
    for (int32_t i = 0; i < truth->n_dim; i++) {
        truth->dim[i] = o->dim[i];
        truth->n_row *= o->dim[i];
    }
    truth->n_head = o->dim[o->ndim - 2];
    truth->d_v = problem->d_v;
    truth->n_key = key_count(problem);
    truth->d_k = (double)problem->q.dim[problem->q.ndim - 1];
    if (present(&problem->q_rope)) {
        truth->d_k += (double)problem->q_rope.dim[problem->q_rope.ndim - 1];
    }
    truth->q_dtype = problem->q.dtype;
    switch (problem->p_rounding) {
    case MLA_P_ROUND_16BIT: truth->p_step = problem->q.dtype == MLA_DTYPE_F16 ? 0x1p-10 : 0x1p-7; break;
    case MLA_P_ROUND_INT8: truth->p_step_least = 1.0 / 127; break;
    case MLA_P_ROUND_HIF8:
        truth->p_step = 0x1p-2;
        truth->p_step_least = 0x1p-13;
        break;
    default: break;
    }
    truth->p_step += arithmetic == MLA_ARITHMETIC_BF16     ? 0x1p-8 /* half a step, since they go to the nearest */
                     : arithmetic == MLA_ARITHMETIC_BF16X2 ? 0x1p-16
                     : arithmetic == MLA_ARITHMETIC_F16    ? 0x1p-11
                                                           : 0;
    bool f16 = arithmetic == MLA_ARITHMETIC_F16 ||
               (problem->p_rounding == MLA_P_ROUND_16BIT && problem->q.dtype == MLA_DTYPE_F16);
    truth->p_step_least += f16 ? 0x1p-24 : 0;
    truth->lse_unit = problem->lse_base == MLA_LSE_BASE2 ? 1 / log(2) : 1;

    size_t n_pair = (size_t)(truth->n_row * truth->n_head), n_value = n_pair * (size_t)truth->d_v;
    truth->o = cli_alloc(n_value, sizeof(float));
    truth->weight = cli_alloc(n_value, sizeof(float));
    truth->lse = cli_alloc(n_pair, sizeof(float));
    truth->score = cli_alloc(n_pair, sizeof(float));
    float *scratch = cli_alloc(n_pair, sizeof(float));

    /* the same keys as rows, and exact probabilities */
    absolute a = {0};
    mla_problem plain = *problem;
    plain.p_rounding = MLA_P_ROUND_NONE;
    plain.p_tile = 0;
    for (int32_t g = 0; g < problem->n_segment; g++) {
        mla_segment *s = &plain.segment[g];
        if (s->layout == MLA_KEY_LAYOUT_NZ) {
            s->layout = MLA_KEY_LAYOUT_ROW;
            s->k = rows_of_nz(&a, &problem->segment[g].k);
            s->k_rope = rows_of_nz(&a, &problem->segment[g].k_rope);
        }
    }
    mla_problem absolutes = plain;
    if (!a.failed) {
        absolutes.q = absolute_copy(&a, &plain.q);
        absolutes.q_rope = absolute_copy(&a, &plain.q_rope);
        absolutes.q_descale = absolute_copy(&a, &plain.q_descale);
        absolutes.qk_descale = absolute_copy(&a, &plain.qk_descale);
        absolutes.pv_descale = absolute_copy(&a, &plain.pv_descale);
    }
    for (int32_t g = 0; !a.failed && g < problem->n_segment; g++) {
        mla_segment *s = &absolutes.segment[g];
        s->k = absolute_copy(&a, &plain.segment[g].k);
        s->k_rope = absolute_copy(&a, &plain.segment[g].k_rope);
        s->v = absolute_v(&a, &plain, &plain.segment[g], &s->k);
        s->descale = absolute_copy(&a, &plain.segment[g].descale);
    }

    mla_status status = MLA_STATUS_OUT_OF_MEMORY;
    if (!a.failed && truth->o != NULL && truth->weight != NULL && truth->lse != NULL && truth->score != NULL &&
        scratch != NULL) {
        mla_problem p = *problem;
        p.o = truth_view(truth, truth->o, true);
        p.lse = truth_view(truth, truth->lse, false);
        p.max = (mla_tensor){0};
        status = run_oracle(&p);
        if (status == MLA_STATUS_OK) {
            status = weigh(&plain, &absolutes, truth);
        }
        if (status == MLA_STATUS_OK) {
            status = score(&absolutes, truth, scratch);
        }
        if (status == MLA_STATUS_OK && arithmetic == MLA_ARITHMETIC_INT16) {
            find_weight_rms(truth);
            status = truth->weight_rms != NULL ? MLA_STATUS_OK : MLA_STATUS_OUT_OF_MEMORY;
        }
    }
    absolute_release(&a);
    free(scratch);
    truth->seconds = cli_now() - begin;
    if (status != MLA_STATUS_OK) {
        verify_release(truth);
    }
    return status;
}

void verify_release(verify_truth *truth)
{
    free(truth->o);
    free(truth->lse);
    free(truth->weight);
    free(truth->score);
    free(truth->weight_rms);
    *truth = (verify_truth){0};
}

/* Growth of n rounding errors in a sum. */
static double growth(double n)
{
    double probable = DEVIATIONS * sqrt(n);
    return probable < n ? probable : n;
}

/* Half a unit in the last place of a dtype at x. */
static double half_ulp(mla_dtype dtype, double x)
{
    int digits = dtype == MLA_DTYPE_BF16 ? 8 : dtype == MLA_DTYPE_F16 ? 11 : 24;
    int lowest = dtype == MLA_DTYPE_F16    ? -24
                 : dtype == MLA_DTYPE_BF16 ? -133
                                           : -149; /* exponent of the smallest step */
    int exponent = INT_MIN / 2;
    if (x != 0) {
        frexp(x, &exponent);
    }
    int step = exponent - digits > lowest ? exponent - digits : lowest;
    return ldexp(0.5, step);
}

static double largest_of(mla_dtype dtype)
{
    return dtype == MLA_DTYPE_F16 ? 65504 : dtype == MLA_DTYPE_BF16 ? 0x1.fep127 : 0x1.fffffep127;
}

/* How much of its bound a value uses up beyond the rounding of the output, which everybody commits; 0 when both are
 * the same infinity or both NaN, infinite when only one is. */
static double judge(double got, double truth, verify_bound bound, double largest)
{
    if (isnan(truth) || isnan(got)) {
        return isnan(truth) && isnan(got) ? 0 : INFINITY;
    }
    if (isinf(truth)) {
        return got == truth ? 0 : INFINITY;
    }
    if (isinf(got)) { /* overflow of the output type is right only where the truth is past its end */
        return fabs(truth) + bound.arithmetic + bound.output >= largest && (got > 0) == (truth > 0) ? 0 : INFINITY;
    }
    double error = fabs(got - truth) - bound.output;
    return error <= 0 ? 0 : error / bound.arithmetic;
}

static void name_element(const verify_truth *t, int64_t row, int64_t head, int64_t column, char *text, size_t size)
{
    int64_t seq = t->n_dim == 2 ? row / t->dim[1] : 0, token = t->n_dim == 2 ? row % t->dim[1] : row;
    if (column < 0) { /* not by index: lse is often a transposed view */
        snprintf(text, size, "lse of request %" PRId64 ", token %" PRId64 ", head %" PRId64, seq, token, head);
    } else if (t->n_dim == 2) {
        snprintf(text, size, "out[%" PRId64 "][%" PRId64 "][%" PRId64 "][%" PRId64 "]", seq, token, head, column);
    } else {
        snprintf(text, size, "out[%" PRId64 "][%" PRId64 "][%" PRId64 "]", token, head, column);
    }
}

verify_bound verify_bound_of(const verify_truth *t, int64_t row, int64_t head, int64_t column, mla_dtype o_dtype,
                             bool recorded)
{
    int64_t pair = row * t->n_head + head;
    double factor = recorded ? 2 : 1;
    bool empty = t->score[pair] == -INFINITY;
    double s = empty ? 0 : fabs((double)t->score[pair]) + t->score_bias;
    double score_error = U * (growth(t->d_k) + CONSTANT) * s + CONSTANT * U;
    score_error += t->weight_rms ? DEVIATIONS * FIXED : 0;
    double sums = U * (growth(t->n_key) + CONSTANT);
    if (column < 0) {
        double truth = fabs((double)t->lse[pair]);
        return (verify_bound){factor * (score_error + sums) * t->lse_unit + U * truth, U * truth};
    }
    if (empty) {
        return (verify_bound){0, 0};
    }
    int64_t at = pair * t->d_v + column;
    double truth = fabs((double)t->o[at]), weight = fabs((double)t->weight[at]);
    double underflow = t->n_key * 0x1p-126 * t->v_max; /* probabilities too small for fp32 may count as 0 */
    double p_rounding = !recorded || t->q_dtype == MLA_DTYPE_F32 ? 0 : t->q_dtype == MLA_DTYPE_BF16 ? 0x1p-9 : 0x1p-12;
    /* the truth was itself rounded to fp32 */
    double spread = factor * ((2 * score_error + sums) * weight + underflow) + p_rounding * weight + U * truth;
    spread += t->weight_rms ? DEVIATIONS * FIXED * (double)t->weight_rms[pair] : 0;
    spread += t->p_step * weight + t->p_step_least * t->n_key * t->v_max;
    return (verify_bound){spread,
                          half_ulp(o_dtype, truth + spread)}; /* it is rounded near the truth, maybe a binade up */
}

/* o or lse seen as [row * head][column] */
static float element(const mla_tensor *t, int64_t pair, int64_t column)
{
    if (column < 0) { /* lse: one more dim of extent 1, so that rows and columns count as in o */
        mla_tensor flat = *t;
        flat.dim[flat.ndim] = 1;
        flat.stride[flat.ndim++] = 0;
        return ((const float *)t->data)[view_offset(&flat, pair, 0)];
    }
    return number_load(t->data, t->dtype, view_offset(t, pair, column));
}

/* What storing a value in this dtype alone costs; 0 where it overflows. */
static double rounding_error(double value, mla_dtype dtype)
{
    uint32_t room = 0;
    number_store(&room, dtype, 0, (float)value);
    double error = (double)number_load(&room, dtype, 0) - value;
    return isfinite(error) ? error : 0;
}

void verify_compare(const verify_truth *t, const mla_tensor *o, const mla_tensor *lse, bool recorded,
                    verify_report *report)
{
    double error2 = 0, truth2 = 0, rounding2 = 0;
    int64_t worst_row = 0, worst_head = 0, worst_column = 0;
    *report = (verify_report){.passed = true, .worst = -1, .o_dtype = o->dtype};
    int64_t first = lse != NULL && present(lse) ? -1 : 0;
    for (int64_t pair = 0; pair < t->n_row * t->n_head; pair++) {
        int64_t row = pair / t->n_head, head = pair % t->n_head;
        for (int64_t column = first; column < t->d_v; column++) {
            double got = (double)element(column < 0 ? lse : o, pair, column);
            double truth = (double)(column < 0 ? t->lse[pair] : t->o[pair * t->d_v + column]);
            verify_bound bound = verify_bound_of(t, row, head, column, o->dtype, recorded);
            double ratio = judge(got, truth, bound, largest_of(column < 0 ? MLA_DTYPE_F32 : o->dtype));
            if (column >= 0 && isfinite(got) && isfinite(truth)) {
                error2 += (got - truth) * (got - truth);
                rounding2 += rounding_error(truth, o->dtype) * rounding_error(truth, o->dtype);
                truth2 += truth * truth;
            }
            report->n_value++;
            if (ratio > report->worst) {
                report->worst = ratio;
                worst_row = row;
                worst_head = head;
                worst_column = column;
            }
        }
    }
    if (report->n_value == 0) {
        report->worst = 0;
        snprintf(report->sentence, sizeof report->sentence, "nothing to compare");
        return;
    }
    report->passed = report->worst <= 1;
    report->normwise = truth2 > 0 ? sqrt(error2 / truth2) : sqrt(error2);
    report->rounding = truth2 > 0 ? sqrt(rounding2 / truth2) : sqrt(rounding2);
    int64_t pair = worst_row * t->n_head + worst_head;
    char name[112];
    name_element(t, worst_row, worst_head, worst_column, name, sizeof name);
    verify_bound bound = verify_bound_of(t, worst_row, worst_head, worst_column, o->dtype, recorded);
    snprintf(report->sentence, sizeof report->sentence, "%s = %.8g, should be %.8g within %.2g", name,
             (double)element(worst_column < 0 ? lse : o, pair, worst_column),
             (double)(worst_column < 0 ? t->lse[pair] : t->o[pair * t->d_v + worst_column]),
             bound.arithmetic + bound.output);
}

void verify_print(const char *label, const verify_report *report, const char *lead, const char *tail)
{
    print_verdict(label, true, "%sarithmetic uses %.1f %% of its bound%s", lead, 100 * report->worst, tail);
    if (mla_dtype_size(report->o_dtype) != 2 || report->rounding == 0) {
        print_fact("", "    norm-wise error %.1e", report->normwise);
    } else if (report->rounding > 0.95 * report->normwise) {
        print_fact("", "    norm-wise error %.1e, nearly all of it the rounding of a %s output", report->normwise,
                   mla_dtype_name(report->o_dtype));
    } else {
        print_fact("", "    norm-wise error %.1e, where the rounding of a %s output alone gives %.1e", report->normwise,
                   mla_dtype_name(report->o_dtype), report->rounding);
    }
}
