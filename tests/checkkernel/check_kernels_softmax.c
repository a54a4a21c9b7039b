/*
 * check_kernels_softmax.c - the softmax kernels against fp64. See check_kernels.c.
 */
#include <math.h>
#include <stdio.h>

#include "kernel_tools.h"

/*
 * Judges one row after a call. score[n]: exact scores of the keys it sees, -inf for the others; size[n]: what bounds
 * their rounding error, |s * scale| + |mask|. old: the state before. p[n]: what the kernel made of them.
 */
static void judge_row(const char *where, const double *score, const double *size, int64_t n_key,
                      const mla_row_state *old, const mla_row_state *state, int32_t r, float factor, const float *p,
                      int64_t p_stride)
{
    double top = -INFINITY, slack = 0, sum = 0, sum_error = 0;
    for (int64_t n = 0; n < n_key; n++) {
        top = fmax(top, score[n]);
        slack = score[n] > -INFINITY ? fmax(slack, 2 * 0x1p-24 * size[n]) : slack; /* product and sum */
    }
    double m = (double)state->m[r], old_m = (double)old->m[r], largest = fmax(top, (double)old->max[r]);
    if (largest == -INFINITY) {
        if (state->m[r] != -INFINITY || state->l[r] != 0 || state->max[r] != -INFINITY) {
            ck_fail("%s: a row that has seen nothing has m %g, l %g, max %g", where, m, (double)state->l[r],
                    (double)state->max[r]);
        }
    } else {
        kernel_near((double)state->max[r], largest, slack, "%s: max", where);
        /* m lags behind the largest score by less than the slack, and is a score or what it was */
        if (!(m <= largest + slack && m >= largest - (double)MLA_RESCALE_SLACK - slack)) {
            ck_fail("%s: m = %g with a largest score of %g", where, m, largest);
        }
        if (old_m > -INFINITY && m < old_m) {
            ck_fail("%s: m fell from %g to %g", where, old_m, m);
        }
    }
    if (m == old_m || old_m == -INFINITY) {
        if (factor != 1) {
            ck_fail("%s: factor = %g although nothing needs it", where, (double)factor);
        }
    } else {
        double want = exp2(old_m - m);
        kernel_near((double)factor, want, (KERNEL_EXP_ERROR + 0x1p-24 * fabs(old_m - m)) * want + KERNEL_VANISHING,
                    "%s: factor", where);
    }
    for (int64_t n = 0; n < n_key; n++) {
        double got = (double)p[n * p_stride];
        if (score[n] == -INFINITY) {
            if (got != 0) {
                ck_fail("%s: p[%lld] = %g of a key that is not seen", where, (long long)n, got);
            }
            continue;
        }
        double want = exp2(score[n] - m);
        double error = KERNEL_EXP_ERROR + 0x1p-24 * (2 * size[n] + fabs(score[n] - m));
        kernel_near(got, want, want * expm1(error) + KERNEL_VANISHING, "%s: p[%lld]", where, (long long)n);
        sum += got;
        sum_error += got;
    }
    double carried = (double)old->l[r] * (double)factor;
    kernel_near((double)state->l[r], carried + sum,
                0x1p-24 * (kernel_chain((double)n_key + 1) * (sum_error + carried) + carried), "%s: l", where);
}

/* Several blocks one after the other through the same state, rows with different ranges, scales and masks. */
static void softmax_once(const kernel_case *k, int64_t n_key, bool ranged, bool masked, double spread, ck_random *r)
{
    size_t mark = ck_mark();
    float *s = kernel_floats("s", n_key * MLA_ROW_PANEL), *scale = kernel_floats("scale", MLA_ROW_PANEL);
    float *mask = masked ? kernel_floats("mask", n_key * MLA_ROW_PANEL) : NULL;
    float *factor = kernel_floats("factor", MLA_ROW_PANEL);
    int32_t *begin = ranged ? ck_buffer("begin", MLA_ROW_PANEL * sizeof *begin) : NULL;
    int32_t *end = ranged ? ck_buffer("end", MLA_ROW_PANEL * sizeof *end) : NULL;
    mla_row_state *state = ck_buffer("state", sizeof *state);
    double score[MLA_ROW_PANEL][MLA_KEY_ROWS], size[MLA_ROW_PANEL][MLA_KEY_ROWS];
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        state->m[x] = state->max[x] = -INFINITY;
        state->l[x] = 0;
        scale[x] = (float)(ck_uniform(r) + 0.2);
    }
    for (int block = 0; block < 4; block++) {
        for (int x = 0; x < MLA_ROW_PANEL; x++) {
            if (ranged) { /* empty ranges, whole ones, and anything between */
                begin[x] = (int32_t)ck_below(r, n_key + 1);
                end[x] = (int32_t)ck_between(r, begin[x], n_key);
                if (x % 5 == 4) {
                    begin[x] = 0;
                    end[x] = (int32_t)n_key;
                }
            }
            for (int64_t n = 0; n < n_key; n++) {
                bool seen = !ranged || (n >= begin[x] && n < end[x]);
                float raw = (float)(spread * (ck_normal(r) + 0.3 * block)), add = masked ? (float)ck_normal(r) * 3 : 0;
                if (masked && ck_chance(r, 0.1)) {
                    add = -INFINITY;
                }
                s[n * MLA_ROW_PANEL + x] = seen ? raw : ck_chance(r, 0.5) ? NAN : INFINITY;
                if (masked) {
                    mask[n * MLA_ROW_PANEL + x] = seen ? add : NAN;
                }
                score[x][n] = seen ? (double)raw * (double)scale[x] + (double)add : -INFINITY;
                size[x][n] = fabs((double)raw * (double)scale[x]) + (isfinite(add) ? fabs((double)add) : 0);
            }
        }
        mla_row_state old = *state;
        bool rescale = k->table->softmax(s, n_key, scale, begin, end, mask, state, factor), any = false;
        for (int x = 0; x < MLA_ROW_PANEL; x++) {
            char where[96];
            snprintf(where, sizeof where, "%lld keys%s%s, block %d, row %d", (long long)n_key, ranged ? ", ranges" : "",
                     masked ? ", mask" : "", block, x);
            judge_row(where, score[x], size[x], n_key, &old, state, x, factor[x], s + x, MLA_ROW_PANEL);
            any = any || factor[x] != 1;
        }
        CK_REQUIRE(rescale == any);
    }
    ck_release(mark);
}

void kernel_check_softmax(void)
{
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int64_t n_key = 1; n_key <= MLA_KEY_ROWS; n_key += n_key < 20 ? 1 : 4) {
        for (int variant = 0; variant < 4; variant++) {
            softmax_once(k, n_key, variant & 1, variant & 2, 3, &r);
        }
    }
    for (int variant = 0; variant < 4; variant++) {
        softmax_once(k, MLA_KEY_ROWS, variant & 1, variant & 2, 1e-4, &r);
        softmax_once(k, MLA_KEY_ROWS, variant & 1, variant & 2, 60, &r);
        softmax_once(k, MLA_KEY_ROWS, variant & 1, variant & 2, 1e4, &r);
    }
}
