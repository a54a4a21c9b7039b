/*
 * merge_states.c - results over parts of the keys become one.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/shape.h"
#include "mla/mla.h"
#include "strided.h"

typedef struct merge {
    const mla_tensor *o_part, *lse_part, *o, *lse; /* lse: NULL if not wanted */
    int64_t n_part;
    mla_lse_base base;
    mla_lse_empty empty;
} merge;

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* A field called "o_part[3]" unless its tensor has a name; the text lives in *label. */
static mla_field part_field(const mla_tensor *part, const char *name, int64_t i, mla_label *label)
{
    snprintf(label->text, sizeof label->text, "%s[%" PRId64 "]", name, i);
    return (mla_field){part, label->text, -1};
}

/* The dims of `like`, of which the field has the first ones. */
static mla_status check_dims(const mla_field *field, const mla_field *like, int32_t ndim)
{
    return mla_field_check_dims_of(field, ndim == like->tensor->ndim ? "[...][d]" : "[...] of [...][d]", ndim, like);
}

static bool same_view(const mla_tensor *a, const mla_tensor *b)
{
    return a->data == b->data && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->dim, b->dim, sizeof *a->dim * (size_t)a->ndim) == 0 &&
           memcmp(a->stride, b->stride, sizeof *a->stride * (size_t)a->ndim) == 0;
}

static mla_status check_parts(const merge *m, const mla_field *o, const mla_field *lse)
{
    for (int64_t i = 0; i < m->n_part; i++) {
        mla_label label[2];
        mla_field o_part = part_field(&m->o_part[i], "o_part", i, &label[0]);
        mla_field lse_part = part_field(&m->lse_part[i], "lse_part", i, &label[1]);
        MLA_TRY(mla_field_check_operand(&o_part, MLA_DTYPES_FLOAT));
        MLA_TRY(mla_field_check_operand(&lse_part, MLA_DTYPES_FLOAT));
        MLA_TRY(check_dims(&o_part, o, o->tensor->ndim));
        MLA_TRY(check_dims(&lse_part, o, o->tensor->ndim - 1));
        if (!same_view(m->o, &m->o_part[i])) {
            MLA_TRY(mla_field_check_apart(o, &o_part));
        }
        MLA_TRY(mla_field_check_apart(o, &lse_part));
        if (m->lse) {
            if (!same_view(m->lse, &m->lse_part[i])) {
                MLA_TRY(mla_field_check_apart(lse, &lse_part));
            }
            MLA_TRY(mla_field_check_apart(lse, &o_part));
        }
    }
    return MLA_STATUS_OK;
}

static mla_status check(const merge *m)
{
    if (!m->o_part || !m->lse_part || !m->o) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "%s is NULL", !m->o_part ? "o_part" : !m->lse_part ? "lse_part" : "o");
    }
    if (m->n_part < 1) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "n_part = %" PRId64 " must be at least 1", m->n_part);
    }
    if (m->base != MLA_LSE_NATURAL && m->base != MLA_LSE_BASE2) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "lse_base = %d is not an mla_lse_base", (int)m->base);
    }
    if (m->empty != MLA_LSE_EMPTY_POS_INF && m->empty != MLA_LSE_EMPTY_NEG_INF && m->empty != MLA_LSE_EMPTY_ZERO) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "lse_empty = %d is not an mla_lse_empty", (int)m->empty);
    }
    mla_field o = {m->o, "o", -1}, lse = {m->lse, "lse", -1};
    MLA_TRY(mla_field_check_operand(&o, MLA_DTYPES_FLOAT));
    MLA_TRY(mla_field_check_output(&o));
    if (m->o->ndim < 2) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.ndim = 1 must be at least 2: [...][d]", mla_field_label(&o).text);
    }
    if (m->lse) {
        MLA_TRY(mla_field_check_operand(&lse, MLA_DTYPES_FLOAT));
        MLA_TRY(check_dims(&lse, &o, m->o->ndim - 1));
        MLA_TRY(mla_field_check_output(&lse));
        MLA_TRY(mla_field_check_apart(&lse, &o));
    }
    return check_parts(m, &o, &lse);
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

/* Element `row` (row-major) of an lse. */
static int64_t lse_place(const mla_tensor *lse, int64_t row)
{
    int32_t last = lse->ndim - 1;
    int64_t width = lse->dim[last];
    return mla_run_begin(lse, row / width) + row % width * lse->stride[last];
}

static double part_lse(const merge *m, int64_t part, int64_t row)
{
    float value;
    mla_run_load(&m->lse_part[part], lse_place(&m->lse_part[part], row), 1, &value);
    return (double)value;
}

static bool is_empty(const merge *m, double lse)
{
    return isinf(lse) || (lse == 0 && m->empty == MLA_LSE_EMPTY_ZERO);
}

static double power(const merge *m, double x)
{
    return m->base == MLA_LSE_BASE2 ? exp2(x) : exp(x);
}

/* What the weights of one row's parts are relative to: the largest lse, NaN if there is one, -inf if no part has a key;
 * and the sum of exp(lse - top). */
typedef struct total {
    double top, sum;
} total;

static total row_total(const merge *m, int64_t row)
{
    total all = {-INFINITY, 0};
    for (int64_t i = 0; i < m->n_part; i++) {
        double lse = part_lse(m, i, row);
        if (!is_empty(m, lse) && !isnan(all.top) && !(lse <= all.top)) {
            all.top = lse;
        }
    }
    for (int64_t i = 0; i < m->n_part; i++) {
        double lse = part_lse(m, i, row);
        all.sum += is_empty(m, lse) ? 0 : power(m, lse - all.top);
    }
    return all;
}

static double merged_lse(const merge *m, total all)
{
    if (all.top == -INFINITY) {
        return mla_empty_lse(m->empty);
    }
    return all.top + (m->base == MLA_LSE_BASE2 ? log2(all.sum) : log(all.sum));
}

static void add(double *sum, double weight, const float *x, int64_t n, bool first)
{
    for (int64_t i = 0; i < n && first; i += MLA_RUN_STEP) { /* not added to 0, which would turn -0 into 0 */
        for (int64_t k = 0; k < MLA_RUN_STEP; k++) {
            sum[i + k] = weight * (double)x[i + k];
        }
    }
    for (int64_t i = 0; i < n && !first; i += MLA_RUN_STEP) {
        for (int64_t k = 0; k < MLA_RUN_STEP; k++) {
            sum[i + k] += weight * (double)x[i + k];
        }
    }
}

/* sum [n]: columns c, c + 1, ... of the row. */
static void merge_run(const merge *m, int64_t row, total all, int64_t c, int64_t n, double sum[MLA_RUN])
{
    float x[MLA_RUN] = {0};
    bool first = true;
    for (int64_t i = 0; i < m->n_part; i++) {
        const mla_tensor *part = &m->o_part[i];
        double lse = part_lse(m, i, row);
        if (!is_empty(m, lse)) {
            mla_run_load(part, mla_run_begin(part, row) + c * part->stride[part->ndim - 1], n, x);
            add(sum, power(m, lse - all.top) / all.sum, x, n, first);
            first = false;
        }
    }
    if (first) {
        memset(sum, 0, sizeof *sum * (size_t)n);
    }
}

/* lse is written last, for it may lie where one of the parts' is read. */
static void merge_row(const merge *m, int64_t row)
{
    total all = row_total(m, row);
    int32_t last = m->o->ndim - 1;
    for (int64_t c = 0; c < m->o->dim[last]; c += MLA_RUN) {
        int64_t n = m->o->dim[last] - c < MLA_RUN ? m->o->dim[last] - c : MLA_RUN;
        double sum[MLA_RUN];
        merge_run(m, row, all, c, n, sum);
        mla_run_store(m->o, mla_run_begin(m->o, row) + c * m->o->stride[last], n, sum);
    }
    if (m->lse) {
        double lse = merged_lse(m, all);
        mla_run_store(m->lse, lse_place(m->lse, row), 1, &lse);
    }
}

mla_status mla_merge_states(const mla_tensor *o_part, const mla_tensor *lse_part, int64_t n_part, mla_lse_base lse_base,
                            mla_lse_empty lse_empty, const mla_tensor *o, const mla_tensor *lse)
{
    merge m = {o_part, lse_part, o, lse, n_part, lse_base, lse_empty};
    MLA_TRY(check(&m));
    int64_t n_row = mla_run_count(o);
    for (int64_t row = 0; row < n_row; row++) {
        merge_row(&m, row);
    }
    return MLA_STATUS_OK;
}
