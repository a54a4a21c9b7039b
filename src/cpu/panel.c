/*
 * panel.c - the way of many rows: a block of keys is converted once and used by all row panels.
 *
 * For each block: scores of all panels, online softmax with slack, probabilities times values. Formats end in the load
 * kernels, addresses in rows.c; what remains here is the order of things and who may see what.
 */
#include <math.h>
#include <string.h>

#include "task.h"

enum { S_STRIDE = MLA_KEY_BLOCK * MLA_ROW_PANEL, WIDEST_COL_PANEL = 64 };

void mla_panel_pack(mla_task_state *t, double descale)
{
    const mla_problem *p = t->run->problem;
    const mla_shape *shape = t->run->shape;
    const mla_pack_kernel *pack = t->run->kernels->pack;
    memset(t->q, 0, (size_t)(t->n_panel * shape->d_k * MLA_ROW_PANEL) * sizeof(float));
    memset(t->scale, 0, sizeof t->scale);
    for (int64_t i = 0; i < t->n_row; i++) {
        const void *q, *q_rope;
        float power = mla_task_split_scale(t, i, descale);
        float *to = t->q + i / MLA_ROW_PANEL * shape->d_k * MLA_ROW_PANEL + i % MLA_ROW_PANEL;
        mla_task_query(t, i, &q, &q_rope);
        pack[mla_format_of(p->q.dtype)](q, shape->d_nope, power, to);
        if (q_rope) {
            pack[mla_format_of(p->q_rope.dtype)](q_rope, shape->d_rope, power, to + shape->d_nope * MLA_ROW_PANEL);
        }
    }
}

static void load_block(const mla_task_state *t, int32_t g, const mla_key_rows *rows)
{
    const mla_shape *shape = t->run->shape;
    const mla_segment *segment = &t->run->problem->segment[g];
    const mla_load_kernel *load = t->run->kernels->load;
    int64_t n_key = rows->n_key, stride = t->run->layout.panel_stride;
    load[mla_format_of(segment->k.dtype)](rows->k, n_key, shape->d_nope, 0, t->k_block, stride);
    if (mla_tensor_present(&segment->k_rope)) {
        load[mla_format_of(segment->k_rope.dtype)](rows->rope, n_key, shape->d_rope, shape->d_nope, t->k_block, stride);
    }
    if (mla_tensor_present(&segment->v)) {
        load[mla_format_of(segment->v.dtype)](rows->v, n_key, shape->d_v, 0, t->v_block, stride);
    }
}

static bool all_finite(const float *v, int64_t n)
{
    uint32_t worst = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, v + i, sizeof bits);
        bits &= 0x7f800000u;
        worst = bits > worst ? bits : worst;
    }
    return worst != 0x7f800000u;
}

/* Does row i of the task see key n of the block? */
static bool sees(const mla_task_state *t, int32_t g, const mla_key_rows *rows, int64_t i, int64_t n)
{
    const mla_tensor *mask = &t->run->problem->segment[g].mask;
    return n >= t->block_begin[i] && n < t->block_end[i] &&
           (!mla_tensor_present(mask) || mla_task_mask_at(t, mask, rows, i, n) != -INFINITY);
}

/*
 * A probability of 0 keeps a hidden key away from a row only while the key's value is finite: 0 * NaN is NaN. True when
 * a value that some row may not see is not finite. With a mask any value may be hidden.
 */
static bool hidden_values_bite(const mla_task_state *t, bool masked, const float *v, int64_t n_key)
{
    int64_t cp = t->run->kernels->col_panel, d_v = t->run->shape->d_v;
    int64_t seen_begin = 0, seen_end = masked ? 0 : n_key; /* what all rows see */
    for (int64_t i = 0; i < t->n_row; i++) {
        seen_begin = t->block_begin[i] > seen_begin ? t->block_begin[i] : seen_begin;
        seen_end = t->block_end[i] < seen_end ? t->block_end[i] : seen_end;
    }
    for (int64_t n = 0; n < n_key; n++) {
        if (n >= seen_begin && n < seen_end) {
            continue;
        }
        for (int64_t c = 0; c < d_v; c += cp) {
            int64_t width = d_v - c < cp ? d_v - c : cp;
            if (!all_finite(v + c / cp * t->run->layout.panel_stride + n * cp, width)) {
                return true;
            }
        }
    }
    return false;
}

/* pv for one row panel and one column panel in which rows must be kept apart: each token's rows go over a copy of the
 * values in which those hidden from the token are 0, into a copy of the accumulators, from which only these rows are
 * taken back. Bit for bit what pv gives when hidden values are finite. */
static void pv_apart(const mla_task_state *t, int32_t g, const mla_key_rows *rows, int64_t panel, const float *p,
                     const float *v, int32_t n_col, float *o, mla_prefetch *ahead)
{
    int64_t cp = t->run->kernels->col_panel, n_key = rows->n_key;
    int32_t n_row = mla_task_panel_rows(t, panel);
    _Alignas(64) float value[MLA_KEY_BLOCK * WIDEST_COL_PANEL], sum[MLA_ROW_PANEL * WIDEST_COL_PANEL];
    for (int32_t r = 0, next; r < n_row; r = next) {
        int64_t i = panel * MLA_ROW_PANEL + r;
        next = r + 1;
        while (next < n_row && mla_task_token(t, panel * MLA_ROW_PANEL + next) == mla_task_token(t, i)) {
            next++;
        }
        for (int64_t n = 0; n < n_key; n++) {
            if (sees(t, g, rows, i, n)) {
                memcpy(value + n * cp, v + n * cp, (size_t)cp * sizeof(float));
            } else {
                memset(value + n * cp, 0, (size_t)cp * sizeof(float));
            }
        }
        memcpy(sum, o, (size_t)(MLA_ROW_PANEL * cp) * sizeof(float));
        t->run->kernels->pv(p, value, n_key, n_row, n_col, sum, ahead);
        memcpy(o + r * cp, sum + r * cp, (size_t)((next - r) * cp) * sizeof(float));
    }
}

/* Fetches the next block's lines a few per step, so that they are spread over all the arithmetic of this one. */
static mla_prefetch plan_prefetch(const mla_task_state *t, int32_t g, const mla_key_rows *next)
{
    mla_prefetch ahead = {.row = (const char *const *)next->k, .n_row = next->n_key};
    ahead.row_bytes = t->run->shape->d_nope * (int64_t)mla_dtype_size(t->run->problem->segment[g].k.dtype);
    int64_t lines = ahead.n_row * ((ahead.row_bytes + 63) / 64);
    int64_t steps = t->n_panel * (t->run->layout.n_v_panel * 4 + t->run->layout.n_col_panel * 2);
    ahead.lines_per_step = lines / steps + 1;
    return ahead;
}

static void probabilities(mla_task_state *t, int32_t g, const mla_key_rows *rows, bool partial,
                          const mla_panel_result *result)
{
    const mla_cpu_kernels *kernels = t->run->kernels;
    const mla_tensor *mask = &t->run->problem->segment[g].mask;
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        int64_t first = panel * MLA_ROW_PANEL;
        const float *addend = NULL;
        if (mla_tensor_present(mask)) {
            for (int64_t n = 0; n < rows->n_key; n++) {
                for (int64_t r = 0; r < MLA_ROW_PANEL; r++) {
                    t->mask[n * MLA_ROW_PANEL + r] = mla_task_mask_at(t, mask, rows, first + r, n);
                }
            }
            addend = t->mask;
        }
        float factor[MLA_ROW_PANEL];
        bool rescale = kernels->softmax(t->s + panel * S_STRIDE, rows->n_key, t->scale + first,
                                        partial ? t->block_begin + first : NULL, partial ? t->block_end + first : NULL,
                                        addend, result[panel].state, factor);
        if (rescale) {
            kernels->merge(result[panel].o, NULL, factor, NULL, t->run->layout.n_v_panel, result[panel].n_row);
        }
    }
}

void mla_panel_attend(mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                      const mla_panel_result *result)
{
    const mla_shape *shape = t->run->shape;
    const mla_cpu_kernels *kernels = t->run->kernels;
    const mla_layout *layout = &t->run->layout;
    int64_t cp = kernels->col_panel;
    const float *v = mla_tensor_present(&t->run->problem->segment[g].v) ? t->v_block : t->k_block;
    mla_prefetch ahead = plan_prefetch(t, g, next);

    load_block(t, g, rows);
    for (int64_t c = 0; c < shape->d_k; c += kernels->qk_columns) {
        int64_t n_col = shape->d_k - c < kernels->qk_columns ? shape->d_k - c : kernels->qk_columns;
        for (int64_t panel = 0; panel < t->n_panel; panel++) {
            kernels->qk(t->q + (panel * shape->d_k + c) * MLA_ROW_PANEL, t->k_block + c / cp * layout->panel_stride,
                        layout->panel_stride, n_col, rows->n_key, mla_task_panel_rows(t, panel), c > 0,
                        t->s + panel * S_STRIDE, &ahead);
        }
    }

    bool partial = mla_task_place_ranges(t, rows, shape->segment[g].has_list);
    bool masked = mla_tensor_present(&t->run->problem->segment[g].mask);
    bool apart = (partial || masked) && hidden_values_bite(t, masked, v, rows->n_key);
    probabilities(t, g, rows, partial, result);

    for (int64_t c = 0; c < shape->d_v; c += cp) {
        int32_t n_col = (int32_t)(shape->d_v - c < cp ? shape->d_v - c : cp);
        const float *v_panel = v + c / cp * layout->panel_stride;
        for (int64_t panel = 0; panel < t->n_panel; panel++) {
            const float *p = t->s + panel * S_STRIDE;
            float *o = result[panel].o + c * MLA_ROW_PANEL;
            if (apart) {
                pv_apart(t, g, rows, panel, p, v_panel, n_col, o, &ahead);
            } else {
                kernels->pv(p, v_panel, rows->n_key, mla_task_panel_rows(t, panel), n_col, o, &ahead);
            }
        }
    }
}
