/*
 * result.c - where partial results meet and rows leave for the caller's memory.
 */
#include "result.h"

#include <math.h>
#include <string.h>

#include "scalar/convert.h"
#include "scalar/hif8.h"
#include "strided.h"
#include "task.h"

#define LN_2 0.69314718055994530942

float mla_element_f32(const void *data, mla_dtype dtype, int64_t i)
{
    switch (dtype) {
    case MLA_DTYPE_F16: return mla_f32_from_f16(((const uint16_t *)data)[i]);
    case MLA_DTYPE_BF16: return mla_f32_from_bf16(((const uint16_t *)data)[i]);
    case MLA_DTYPE_HIF8: return mla_f32_from_hif8(((const uint8_t *)data)[i]);
    case MLA_DTYPE_I8: return ((const int8_t *)data)[i];
    default: return ((const float *)data)[i];
    }
}

mla_panel_result mla_result_at(char *memory, int32_t n_row)
{
    return (mla_panel_result){.state = (mla_row_state *)memory,
                              .o = (float *)(memory + sizeof(mla_row_state)),
                              .n_row = n_row};
}

void mla_result_clear_state(const mla_panel_result *result)
{
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        result->state->m[r] = -INFINITY;
        result->state->l[r] = 0;
        result->state->max[r] = -INFINITY;
        result->state->floor[r] = -INFINITY;
    }
}

void mla_result_clear(const mla_cpu_kernels *kernels, const mla_panel_result *result, int64_t n_v_panel)
{
    mla_result_clear_state(result);
    /* kernels take rows in groups of up to 8; what they add to the last rows of a group must be numbers too */
    int64_t rows = (result->n_row + 7) / 8 * 8, cp = kernels->col_panel;
    for (int64_t panel = 0; panel < n_v_panel; panel++) {
        memset(result->o + panel * MLA_ROW_PANEL * cp, 0, (size_t)(rows * cp) * sizeof(float));
    }
}

void mla_result_fold(const mla_cpu_kernels *kernels, const mla_panel_result *into, const mla_panel_result *from,
                     int64_t n_v_panel)
{
    float a[MLA_ROW_PANEL], b[MLA_ROW_PANEL];
    mla_row_state *x = into->state, *y = from->state;
    for (int32_t r = 0; r < into->n_row; r++) {
        /* equality first: two empty parts, or two infinite maxima, must not meet in a subtraction */
        float m = x->m[r] > y->m[r] ? x->m[r] : y->m[r], x_base = mla_result_base(x, r), y_base = mla_result_base(y, r);
        float base = x_base > y_base ? x_base : y_base;
        a[r] = x_base == base ? 1.0f : exp2f(x_base - base);
        b[r] = y_base == base ? 1.0f : exp2f(y_base - base);
        x->l[r] =
            x->l[r] * (x->m[r] == m ? 1.0f : exp2f(x->m[r] - m)) + y->l[r] * (y->m[r] == m ? 1.0f : exp2f(y->m[r] - m));
        x->m[r] = m;
        x->max[r] = x->max[r] > y->max[r] ? x->max[r] : y->max[r];
    }
    kernels->merge(into->o, from->o, a, b, n_v_panel, into->n_row);
}

void mla_result_descale(const mla_run_context *run, int32_t g, const mla_panel_result *result, int64_t n_panel)
{
    float descale = mla_factor_at(&run->problem->segment[g].descale, 0), factor[MLA_ROW_PANEL];
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        factor[r] = descale;
    }
    for (int64_t panel = 0; descale != 1.0f && panel < n_panel; panel++) {
        run->kernels->merge(result[panel].o, NULL, factor, NULL, run->layout.n_v_panel, result[panel].n_row);
    }
}

/* One row's final factor for o, which is relative to `base`, and its lse in base-2 units, the sink joined. Fp64: cheap
 * here, and lse keeps its bits. */
static double finish_row(const mla_problem *p, int64_t head, double m, double l, double base, double *lse)
{
    double sink = -INFINITY;
    if (mla_tensor_present(&p->sink)) {
        sink = (double)mla_factor_at(&p->sink, head);
    }
    *lse = m + log2(l);
    if (sink == -INFINITY || isnan(l)) { /* a NaN score shows even beside an infinite sink */
        return 1 / l;                    /* base is m */
    }
    double logit = sink / LN_2;
    if (fabs(base) >= 0x1p24 && fabs(logit - base) <= fabs(base) * 0x1p-22) {
        logit = base; /* the same number but for fp32's rounding, of which not even one unit may reach exp2() */
    }
    double top = m > logit ? m : logit;
    double total = top == INFINITY ? INFINITY : l * exp2(m - top) + exp2(logit - top);
    if (p->lse_with_sink) {
        *lse = top + log2(total);
    }
    return top == INFINITY ? 0 : exp2(base - top) / total;
}

static int64_t place(const int64_t stride[3], int64_t seq, int64_t token, int64_t head)
{
    return seq * stride[0] + token * stride[1] + head * stride[2];
}

void mla_result_write(const mla_run_context *run, int64_t seq, int32_t kv_head, int64_t row_begin,
                      const mla_panel_result *result)
{
    mla_result_write_columns(run, seq, kv_head, row_begin, result, 0, run->layout.n_v_panel);
}

void mla_result_write_columns(const mla_run_context *run, int64_t seq, int32_t kv_head, int64_t row_begin,
                              const mla_panel_result *result, int64_t begin, int64_t end)
{
    const mla_problem *p = run->problem;
    const mla_shape *shape = run->shape;
    int64_t o_size = (int64_t)mla_dtype_size(p->o.dtype);
    int64_t column = begin * run->kernels->col_panel, n_col = end * run->kernels->col_panel - column;
    n_col = column + n_col < shape->d_v ? n_col : shape->d_v - column;
    mla_store_kernel store = run->kernels->store[mla_format_of(p->o.dtype)];
    int64_t first = mla_query_begin(p, shape, seq);
    for (int32_t r = 0; r < result->n_row; r++) {
        int64_t token = first + (row_begin + r) / shape->group;
        int64_t head = kv_head * shape->group + (row_begin + r) % shape->group;
        double lse = 0;
        /* a NaN score shows in the sum, not in the maximum */
        float largest = isnan(result->state->l[r]) ? NAN : result->state->max[r];
        /* no key was seen, or every one of them had a score of -inf */
        bool empty = largest == -INFINITY;
        double factor = empty ? 0
                              : finish_row(p, head, (double)result->state->m[r], (double)result->state->l[r],
                                           (double)mla_result_base(result->state, r), &lse);
        if (mla_tensor_present(&p->pv_descale)) {
            factor *= (double)mla_factor_at(&p->pv_descale, head);
        }
        char *o = (char *)p->o.data + (place(shape->o_stride, seq, token, head) + column) * o_size;
        if (factor == 0) {
            memset(o, 0, (size_t)(n_col * o_size)); /* +0 in every format, whatever the accumulator holds */
        } else {
            store(result->o + r * run->kernels->col_panel, n_col, (float)factor, o);
        }
        if (begin > 0) {
            continue;
        }
        if (mla_tensor_present(&p->lse)) {
            double value = empty ? mla_empty_lse(p->lse_empty) : p->lse_base == MLA_LSE_NATURAL ? lse * LN_2 : lse;
            mla_run_store(&p->lse, place(shape->lse_stride, seq, token, head), 1, &value);
        }
        if (mla_tensor_present(&p->max)) {
            ((float *)p->max.data)[place(shape->max_stride, seq, token, head)] =
                empty ? -INFINITY
                      : (float)((double)largest * LN_2) + 0.0f; /* no -0: which of equal zeros won is chance */
        }
    }
}
