/*
 * tile_loop.c - attention over key blocks: every block of keys is converted once and used by all rows of a task.
 *
 * For each block: scores of all row panels, online softmax with slack, probabilities times values. Formats end in the
 * load kernels, addresses in rows.c; what remains here is the order of things and who may see what.
 */
#include "tile_loop.h"

#include <math.h>
#include <string.h>

#include "result.h"
#include "rows.h"

static size_t align_up(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

mla_layout mla_layout_make(const mla_cpu_kernels *kernels, const mla_problem *problem, const mla_shape *shape)
{
    mla_layout layout = {0};
    int64_t cp = kernels->col_panel;
    bool own_v = false, mask = false;
    for (int32_t g = 0; g < shape->n_segment; g++) {
        own_v = own_v || mla_tensor_present(&problem->segment[g].v);
        mask = mask || mla_tensor_present(&problem->segment[g].mask);
    }
    layout.n_col_panel = (shape->d_k + cp - 1) / cp;
    layout.n_v_panel = (shape->d_v + cp - 1) / cp;
    /* one line more than the block needs: panels a power of two apart would fight for the same cache sets */
    layout.panel_stride = MLA_KEY_BLOCK * cp + 16;
    layout.o_bytes = (size_t)(layout.n_v_panel * MLA_ROW_PANEL * cp) * sizeof(float);

    size_t at = 0;
    layout.q = at;
    at = align_up(at + (size_t)(MLA_TASK_PANELS * shape->d_k * MLA_ROW_PANEL) * sizeof(float));
    layout.k_block = at;
    at = align_up(at + (size_t)(layout.n_col_panel * layout.panel_stride) * sizeof(float));
    layout.v_block = at;
    at = align_up(at + (own_v ? (size_t)(layout.n_v_panel * layout.panel_stride) * sizeof(float) : 0));
    layout.s = at;
    at = align_up(at + (size_t)(MLA_TASK_PANELS * MLA_KEY_BLOCK * MLA_ROW_PANEL) * sizeof(float));
    layout.mask = at;
    at = align_up(at + (mask ? (size_t)(MLA_KEY_BLOCK * MLA_ROW_PANEL) * sizeof(float) : 0));
    layout.row = at;
    at = align_up(at + 2 * sizeof(mla_key_rows));
    for (int i = 0; i < 2; i++) {
        layout.acc[i] = at;
        at = align_up(at + MLA_TASK_PANELS * (sizeof(mla_row_state) + layout.o_bytes));
    }
    layout.worker_bytes = at;
    layout.slot_bytes = (sizeof(mla_row_state) + layout.o_bytes + 63) / 64 * 64;
    return layout;
}

static mla_format format_of(mla_dtype dtype)
{
    return dtype == MLA_DTYPE_F32 ? MLA_FORMAT_F32 : dtype == MLA_DTYPE_F16 ? MLA_FORMAT_F16 : MLA_FORMAT_BF16;
}

/* ---- one task in one worker -------------------------------------------------------------------------------------- */

typedef struct task {
    const mla_run_context *run;
    const mla_work_item *item;
    int64_t n_row, n_panel;
    float *q, *k_block, *v_block, *s, *mask;
    mla_key_rows *rows[2];
    float factor[MLA_TASK_ROWS];     /* row's scale without its power of two, base-2 units */
    int64_t begin[MLA_TASK_ROWS];    /* visible range of each row in the segment at hand, index space */
    int64_t end[MLA_TASK_ROWS];
    int32_t block_begin[MLA_TASK_ROWS]; /* the same, as places in the block at hand */
    int32_t block_end[MLA_TASK_ROWS];
} task;

static float element_at(const mla_tensor *t, int64_t i)
{
    return mla_tensor_present(t) ? ((const float *)t->data)[i * t->stride[0]] : 1.0f;
}

/* Transposes the task's query rows. The power of two of the row's scale goes into q, where it is exact and keeps q.k far
 * from overflow; the rest of the scale waits for the finished score, so that it costs one rounding only. */
static void pack_queries(task *t)
{
    const mla_run_context *run = t->run;
    const mla_problem *p = run->problem;
    const mla_shape *shape = run->shape;
    const mla_work_item *item = t->item;
    mla_pack_kernel pack = run->kernels->pack[format_of(p->q.dtype)];
    size_t size = mla_dtype_size(p->q.dtype);
    int64_t first = mla_query_begin(p, shape, item->seq);
    double common = (double)p->softmax_scale * (double)element_at(&p->q_descale, 0);

    memset(t->q, 0, (size_t)(t->n_panel * shape->d_k * MLA_ROW_PANEL) * sizeof(float));
    for (int64_t i = 0; i < t->n_panel * MLA_ROW_PANEL; i++) {
        t->factor[i] = 0;
        if (i >= t->n_row) {
            continue;
        }
        int64_t row = item->row_begin + i, token = row / shape->group;
        int64_t head = item->kv_head * shape->group + row % shape->group;
        int exponent;
        double mantissa = frexp(common * (double)element_at(&p->qk_descale, head), &exponent);
        t->factor[i] = (float)(mantissa * 1.4426950408889634);
        float power = (float)ldexp(1.0, exponent < -126 ? -126 : exponent > 127 ? 127 : exponent);
        float *q = t->q + (i / MLA_ROW_PANEL) * shape->d_k * MLA_ROW_PANEL + i % MLA_ROW_PANEL;
        int64_t at = item->seq * shape->q_stride[0] + (first + token) * shape->q_stride[1] + head * shape->q_stride[2];
        pack((const char *)p->q.data + (size_t)at * size, shape->d_nope, power, q);
        if (mla_tensor_present(&p->q_rope)) {
            at = item->seq * shape->q_rope_stride[0] + (first + token) * shape->q_rope_stride[1] +
                 head * shape->q_rope_stride[2];
            pack((const char *)p->q_rope.data + (size_t)at * size, shape->d_rope, power, q + shape->d_nope * MLA_ROW_PANEL);
        }
    }
}

static void load_block(const task *t, int32_t g, const mla_key_rows *rows)
{
    const mla_run_context *run = t->run;
    const mla_shape *shape = run->shape;
    const mla_segment *segment = &run->problem->segment[g];
    const mla_cpu_kernels *kernels = run->kernels;
    int64_t stride = run->layout.panel_stride;
    kernels->load[format_of(segment->k.dtype)](rows->k, rows->n_key, shape->d_nope, 0, t->k_block, stride);
    if (mla_tensor_present(&segment->k_rope)) {
        kernels->load[format_of(segment->k_rope.dtype)](rows->rope, rows->n_key, shape->d_rope, shape->d_nope, t->k_block,
                                                        stride);
    }
    if (mla_tensor_present(&segment->v)) {
        kernels->load[format_of(segment->v.dtype)](rows->v, rows->n_key, shape->d_v, 0, t->v_block, stride);
    }
}

/* Where the visible ranges of all rows lie in the block; returns whether some row does not see all of it. */
static bool place_ranges(task *t, const mla_key_rows *rows, bool list)
{
    bool partial = false;
    int32_t n_key = (int32_t)rows->n_key;
    for (int64_t i = 0; i < t->n_panel * MLA_ROW_PANEL; i++) {
        int32_t begin = 0, end = n_key;
        if (i >= t->n_row) {
            /* padding: sees everything, counts for nothing */
        } else if (list) {
            end = t->begin[i] < t->end[i] ? n_key : 0;
        } else if (i > 0 && t->begin[i] == t->begin[i - 1] && t->end[i] == t->end[i - 1]) {
            begin = t->block_begin[i - 1];
            end = t->block_end[i - 1];
        } else {
            while (begin < n_key && rows->position[begin] < t->begin[i]) {
                begin++;
            }
            while (end > begin && rows->position[end - 1] >= t->end[i]) {
                end--;
            }
        }
        t->block_begin[i] = begin;
        t->block_end[i] = end;
        partial = partial || begin > 0 || end < n_key;
    }
    return partial;
}

/* The additive mask of one row panel, base-2 units, [key][16]. */
static void fill_mask(const task *t, const mla_tensor *mask, int64_t panel, const mla_key_rows *rows)
{
    const mla_shape *shape = t->run->shape;
    int64_t first = mla_query_begin(t->run->problem, shape, t->item->seq);
    for (int64_t r = 0; r < MLA_ROW_PANEL; r++) {
        int64_t i = panel * MLA_ROW_PANEL + r;
        bool real = i < t->n_row;
        int64_t token = real ? (t->item->row_begin + i) / shape->group : 0;
        int64_t base = shape->batched ? t->item->seq * mask->stride[0] + token * mask->stride[1]
                                      : (first + token) * mask->stride[0];
        for (int64_t n = 0; n < rows->n_key; n++) {
            bool seen = real && n >= t->block_begin[i] && n < t->block_end[i];
            float value = seen ? mla_element_f32(mask, base + rows->position[n] * mask->stride[mask->ndim - 1]) : 0.0f;
            t->mask[n * MLA_ROW_PANEL + r] = value * 1.44269504f;
        }
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

/*
 * A probability of 0 keeps a hidden key away from a row only while the key's value is finite: 0 * NaN is NaN. True when a
 * value that some row may not see is not finite.
 */
static bool hidden_values_bite(const task *t, const float *v, int64_t n_key)
{
    const mla_layout *layout = &t->run->layout;
    int64_t cp = t->run->kernels->col_panel, d_v = t->run->shape->d_v;
    int64_t seen_begin = 0, seen_end = n_key; /* what all rows see */
    for (int64_t i = 0; i < t->n_row; i++) {
        seen_begin = t->block_begin[i] > seen_begin ? t->block_begin[i] : seen_begin;
        seen_end = t->block_end[i] < seen_end ? t->block_end[i] : seen_end;
    }
    for (int64_t n = 0; n < n_key; n++) {
        if (n >= seen_begin && n < seen_end) {
            n = seen_end - 1;
            continue;
        }
        for (int64_t c = 0; c < d_v; c += cp) {
            int64_t width = d_v - c < cp ? d_v - c : cp;
            if (!all_finite(v + (c / cp) * layout->panel_stride + n * cp, width)) {
                return true;
            }
        }
    }
    return false;
}

/* pv for one row panel and one column panel in which rows must be kept apart: each set of rows with the same visible
 * range runs over its own keys only, on a copy, from which only its own rows are taken back. */
static void pv_apart(const task *t, int64_t panel, const float *p, const float *v, int32_t n_row, int32_t n_col, float *o,
                     mla_prefetch *ahead)
{
    enum { WIDEST_PANEL = 64 };
    int64_t cp = t->run->kernels->col_panel;
    const int32_t *begin = t->block_begin + panel * MLA_ROW_PANEL, *end = t->block_end + panel * MLA_ROW_PANEL;
    _Alignas(64) float copy[MLA_ROW_PANEL * WIDEST_PANEL];
    for (int32_t r = 0; r < n_row;) {
        int32_t next = r + 1;
        while (next < n_row && begin[next] == begin[r] && end[next] == end[r]) {
            next++;
        }
        if (begin[r] < end[r]) {
            memcpy(copy, o, (size_t)(MLA_ROW_PANEL * cp) * sizeof(float));
            t->run->kernels->pv(p + begin[r] * MLA_ROW_PANEL, v + begin[r] * cp, end[r] - begin[r], n_row, n_col, copy,
                                ahead);
            memcpy(o + r * cp, copy + r * cp, (size_t)((next - r) * cp) * sizeof(float));
        }
        r = next;
    }
}

static int32_t rows_in_panel(const task *t, int64_t panel)
{
    int64_t left = t->n_row - panel * MLA_ROW_PANEL;
    return (int32_t)(left < MLA_ROW_PANEL ? left : MLA_ROW_PANEL);
}

/* Lines of the next block to fetch per step so that they are spread over all the arithmetic of this one. */
static mla_prefetch plan_prefetch(const task *t, int32_t g, const mla_key_rows *next)
{
    const mla_segment *segment = &t->run->problem->segment[g];
    mla_prefetch ahead = {0};
    if (!next) {
        return ahead;
    }
    ahead.row = (const char *const *)next->k;
    ahead.n_row = next->n_key;
    ahead.row_bytes = t->run->shape->d_nope * (int64_t)mla_dtype_size(segment->k.dtype);
    int64_t lines = ahead.n_row * ((ahead.row_bytes + 63) / 64);
    int64_t steps = t->n_panel * (t->run->layout.n_v_panel * 4 + t->run->layout.n_col_panel * 2);
    ahead.lines_per_step = lines / steps + 1;
    return ahead;
}

static void attend_block(task *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                         const mla_panel_result *result, const float *scale)
{
    const mla_run_context *run = t->run;
    const mla_shape *shape = run->shape;
    const mla_cpu_kernels *kernels = run->kernels;
    const mla_layout *layout = &run->layout;
    const mla_segment *segment = &run->problem->segment[g];
    int64_t cp = kernels->col_panel, n_key = rows->n_key, s_stride = MLA_KEY_BLOCK * MLA_ROW_PANEL;
    const float *v = mla_tensor_present(&segment->v) ? t->v_block : t->k_block;
    mla_prefetch ahead = plan_prefetch(t, g, next);

    load_block(t, g, rows);
    for (int64_t c = 0; c < shape->d_k; c += kernels->qk_columns) {
        int64_t n_col = shape->d_k - c < kernels->qk_columns ? shape->d_k - c : kernels->qk_columns;
        for (int64_t panel = 0; panel < t->n_panel; panel++) {
            kernels->qk(t->q + (panel * shape->d_k + c) * MLA_ROW_PANEL, t->k_block + c / cp * layout->panel_stride,
                        layout->panel_stride, n_col, n_key, rows_in_panel(t, panel), c > 0, t->s + panel * s_stride, &ahead);
        }
    }

    bool partial = place_ranges(t, rows, shape->segment[g].has_list);
    bool apart = partial && hidden_values_bite(t, v, n_key);
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        float factor[MLA_ROW_PANEL];
        bool masked = mla_tensor_present(&segment->mask);
        if (masked) {
            fill_mask(t, &segment->mask, panel, rows);
        }
        bool rescale = kernels->softmax(t->s + panel * s_stride, n_key, scale + panel * MLA_ROW_PANEL,
                                        partial ? t->block_begin + panel * MLA_ROW_PANEL : NULL,
                                        partial ? t->block_end + panel * MLA_ROW_PANEL : NULL, masked ? t->mask : NULL,
                                        result[panel].state, factor);
        if (rescale) {
            kernels->merge(result[panel].o, NULL, factor, NULL, layout->n_v_panel);
        }
    }
    for (int64_t c = 0; c < shape->d_v; c += cp) {
        int32_t n_col = (int32_t)(shape->d_v - c < cp ? shape->d_v - c : cp);
        const float *v_panel = v + c / cp * layout->panel_stride;
        for (int64_t panel = 0; panel < t->n_panel; panel++) {
            float *o = result[panel].o + c * MLA_ROW_PANEL;
            if (apart) {
                pv_apart(t, panel, t->s + panel * s_stride, v_panel, rows_in_panel(t, panel), n_col, o, &ahead);
            } else {
                kernels->pv(t->s + panel * s_stride, v_panel, n_key, rows_in_panel(t, panel), n_col, o, &ahead);
            }
        }
    }
}

/* Visible ranges of all rows in segment g; returns their union. */
static void find_ranges(task *t, int32_t g, int64_t *begin, int64_t *end)
{
    const mla_shape *shape = t->run->shape;
    *begin = INT64_MAX;
    *end = 0;
    for (int64_t i = 0; i < t->n_row; i++) {
        int64_t row = t->item->row_begin + i;
        if (i > 0 && row % shape->group != 0) {
            t->begin[i] = t->begin[i - 1];
            t->end[i] = t->end[i - 1];
            continue;
        }
        mla_index_range(t->run->problem, shape, g, t->item->seq, row / shape->group, &t->begin[i], &t->end[i]);
        if (t->begin[i] < t->end[i]) {
            *begin = t->begin[i] < *begin ? t->begin[i] : *begin;
            *end = t->end[i] > *end ? t->end[i] : *end;
        }
    }
}

/* The partial result of the chunk [begin, end) of segment g, which lies within one multiple of split_keys. */
static void attend_chunk(task *t, int32_t g, int64_t begin, int64_t end, const mla_panel_result *result)
{
    const mla_run_context *run = t->run;
    int64_t token = t->item->row_begin / run->shape->group;
    float descale = element_at(&run->problem->segment[g].descale, 0);
    float scale[MLA_TASK_ROWS];
    for (int64_t i = 0; i < t->n_panel * MLA_ROW_PANEL; i++) {
        scale[i] = t->factor[i] * descale;
    }
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        mla_result_clear(&result[panel], run->layout.o_bytes);
    }
    /* rows are found one block ahead, so that their lines can be fetched meanwhile */
    int64_t at = begin - begin % MLA_KEY_BLOCK;
    mla_key_rows *now = t->rows[0], *next = t->rows[1];
    now->n_key = 0;
    bool pending = false;
    for (; at < end || pending; at += MLA_KEY_BLOCK) {
        next->n_key = 0;
        if (at < end) {
            int64_t from = at > begin ? at : begin, to = at + MLA_KEY_BLOCK < end ? at + MLA_KEY_BLOCK : end;
            mla_key_rows_find(run->problem, run->shape, g, t->item->seq, token, t->item->kv_head, from, to, next);
        }
        if (now->n_key > 0) {
            attend_block(t, g, now, next, result, scale);
        }
        pending = at < end;
        mla_key_rows *swap = now;
        now = next;
        next = swap;
    }
    if (descale != 1.0f) {
        float factor[MLA_ROW_PANEL];
        for (int r = 0; r < MLA_ROW_PANEL; r++) {
            factor[r] = descale;
        }
        for (int64_t panel = 0; panel < t->n_panel; panel++) {
            run->kernels->merge(result[panel].o, NULL, factor, NULL, run->layout.n_v_panel);
        }
    }
}

static void panel_results(char *memory, size_t stride, int64_t n_panel, mla_panel_result *result)
{
    for (int64_t panel = 0; panel < n_panel; panel++) {
        result[panel] = mla_result_at(memory + (size_t)panel * stride);
    }
}

void mla_tile_item(const mla_run_context *run, const mla_work_item *item, char *scratch)
{
    const mla_layout *layout = &run->layout;
    task t = {
        .run = run,
        .item = item,
        .n_row = item->row_end - item->row_begin,
        .q = (float *)(scratch + layout->q),
        .k_block = (float *)(scratch + layout->k_block),
        .v_block = (float *)(scratch + layout->v_block),
        .s = (float *)(scratch + layout->s),
        .mask = (float *)(scratch + layout->mask),
        .rows = {(mla_key_rows *)(scratch + layout->row), (mla_key_rows *)(scratch + layout->row) + 1},
    };
    t.n_panel = (t.n_row + MLA_ROW_PANEL - 1) / MLA_ROW_PANEL;
    pack_queries(&t);

    mla_panel_result result[2][MLA_TASK_PANELS];
    if (item->slot >= 0) {
        int64_t begin, end;
        panel_results(run->slots + (size_t)item->slot * layout->slot_bytes, layout->slot_bytes, t.n_panel, result[0]);
        find_ranges(&t, item->segment, &begin, &end);
        attend_chunk(&t, item->segment, item->kv_begin > begin ? item->kv_begin : begin,
                     item->kv_end < end ? item->kv_end : end, result[0]);
        return;
    }
    for (int i = 0; i < 2; i++) {
        panel_results(scratch + layout->acc[i], sizeof(mla_row_state) + layout->o_bytes, t.n_panel, result[i]);
    }
    int64_t n_chunk = 0, split = run->plan->geometry.split_keys;
    for (int32_t g = 0; g < run->shape->n_segment; g++) {
        int64_t begin, end;
        find_ranges(&t, g, &begin, &end);
        for (int64_t from = begin, to; from < end; from = to) {
            to = from - from % split + split;
            to = to < end ? to : end;
            attend_chunk(&t, g, from, to, result[n_chunk > 0]);
            for (int64_t panel = 0; n_chunk > 0 && panel < t.n_panel; panel++) {
                mla_result_fold(run->kernels, &result[0][panel], &result[1][panel], layout->n_v_panel);
            }
            n_chunk++;
        }
    }
    for (int64_t panel = 0; panel < t.n_panel; panel++) {
        if (n_chunk == 0) {
            mla_result_clear(&result[0][panel], layout->o_bytes);
        }
        mla_result_write(run, item->seq, item->kv_head, item->row_begin + panel * MLA_ROW_PANEL, rows_in_panel(&t, panel),
                         &result[0][panel]);
    }
}

void mla_tile_combine(const mla_run_context *run, const mla_combine_item *item)
{
    size_t bytes = run->layout.slot_bytes;
    mla_panel_result sum = mla_result_at(run->slots + (size_t)item->slot_begin * bytes);
    for (int64_t i = 1; i < item->slot_count; i++) {
        mla_panel_result part = mla_result_at(run->slots + (size_t)(item->slot_begin + i * item->slot_stride) * bytes);
        mla_result_fold(run->kernels, &sum, &part, run->layout.n_v_panel);
    }
    mla_result_write(run, item->seq, item->kv_head, item->row_begin, (int32_t)(item->row_end - item->row_begin), &sum);
}
