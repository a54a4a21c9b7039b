/*
 * stream.c - the way of few rows: keys are used where they lie. The kernel does all arithmetic; here its queries,
 * accumulators and row addresses are laid out.
 */
#include <math.h>
#include <string.h>

#include "features.h"
#include "result.h"
#include "task.h"

/* Rows of the block at hand followed by those that the kernel fetches ahead. */
enum { ROW_ADDRESSES = MLA_KEY_BLOCK + MLA_STREAM_BEHIND };

enum { WIDEST_STEP = 32 }; /* two vectors of 16 lanes */

static int64_t round_step(const mla_cpu_kernels *kernels, int64_t n)
{
    return (n + kernels->stream_step - 1) / kernels->stream_step * kernels->stream_step;
}

int64_t mla_stream_stride(const mla_cpu_kernels *kernels, const mla_shape *shape)
{
    if (kernels->stream_step == 0) {
        return 0;
    }
    /* nope (or the whole key) and rope each start a step of their own */
    int64_t k = round_step(kernels, shape->d_nope) + round_step(kernels, shape->d_rope),
            v = round_step(kernels, shape->d_v);
    return k > v ? k : v;
}

bool mla_stream_serves(const mla_task_state *t)
{
    const mla_problem *p = t->run->problem;
    const mla_dtype dtype = p->segment[0].k.dtype;
    if (p->p_rounding != MLA_P_ROUND_NONE || t->nope_apart) {
        return false;
    }
    for (int32_t g = 0; g < t->run->shape->n_segment; g++) {
        const mla_segment *segment = &p->segment[g];
        if (segment->layout != MLA_KEY_LAYOUT_ROW || segment->k.dtype != dtype ||
            (mla_tensor_present(&segment->k_rope) && segment->k_rope.dtype != dtype) ||
            (mla_tensor_present(&segment->v) && segment->v.dtype != dtype)) {
            return false;
        }
    }
    return mla_task_sequence_rows(t) <= MLA_STREAM_ROWS && t->run->kernels->stream[mla_format_of(dtype)] != NULL;
}

/* The parts of a key row and of a value row. */
static void find_parts(const mla_task_state *t, int32_t g, const void *const (*row)[ROW_ADDRESSES],
                       mla_stream_block *block)
{
    const mla_shape *shape = t->run->shape;
    const mla_segment *segment = &t->run->problem->segment[g];
    block->n_k_part = 1;
    block->k[0] = (mla_stream_part){row[0], shape->d_nope, 0};
    if (mla_tensor_present(&segment->k_rope)) {
        block->n_k_part = 2;
        block->k[1] = (mla_stream_part){row[1], shape->d_rope, round_step(t->run->kernels, shape->d_nope)};
    }
    block->n_v_part = 1;
    if (mla_tensor_present(&segment->v)) {
        block->v[0] = (mla_stream_part){row[2], shape->d_v, 0};
        return;
    }
    block->v[0] = block->k[0];
    if (shape->d_v <= shape->d_nope) {
        block->v[0].n_col = shape->d_v;
        return;
    }
    block->n_v_part = 2;
    block->v[1] = block->k[1];
    block->v[1].n_col = shape->d_v - shape->d_nope;
}

/* Place of column c: itself, or evens first within each step. */
static inline int64_t place_of(mla_stream_order order, int64_t step, int64_t c)
{
    int64_t in_step = c % step;
    return order == MLA_STREAM_PLAIN ? c : c - in_step + in_step / 2 + in_step % 2 * (step / 2);
}

void mla_stream_pack(mla_task_state *t, double descale)
{
    const mla_problem *p = t->run->problem;
    const mla_shape *shape = t->run->shape;
    const mla_cpu_kernels *kernels = t->run->kernels;
    mla_stream_order order = kernels->stream_order[mla_format_of(p->segment[0].k.dtype)];
    int64_t stride = mla_stream_stride(kernels, shape);
    memset(t->stream_q, 0, (size_t)(MLA_STREAM_ROWS * stride) * sizeof(float));
    memset(t->scale, 0, sizeof t->scale);
    for (int64_t i = 0; i < t->n_row; i++) {
        const void *q, *q_rope;
        float power = mla_task_split_scale(t, i, descale);
        float *to = t->stream_q + i * stride;
        mla_task_query(t, i, &q, &q_rope);
        for (int64_t c = 0; c < shape->d_nope; c++) {
            to[place_of(order, kernels->stream_step, c)] = mla_element_f32(q, p->q.dtype, c) * power;
        }
        to += round_step(kernels, shape->d_nope);
        for (int64_t c = 0; q_rope && c < shape->d_rope; c++) {
            to[place_of(order, kernels->stream_step, c)] = mla_element_f32(q_rope, p->q_rope.dtype, c) * power;
        }
    }
}

void mla_stream_begin(mla_task_state *t)
{
    int64_t stride = mla_stream_stride(t->run->kernels, t->run->shape);
    memset(t->stream_o, 0, (size_t)(t->n_row * stride) * sizeof(float));
}

/* One step of columns out of the order in which they were kept. */
static void in_order(mla_stream_order order, int64_t step, const float *from, float *to)
{
    int64_t half = step / 2;
    for (int64_t c = 0; order == MLA_STREAM_EVEN_ODD && c < half; c++) {
        to[2 * c] = from[c];
        to[2 * c + 1] = from[half + c];
    }
    if (order == MLA_STREAM_PLAIN) {
        memcpy(to, from, (size_t)step * sizeof *to);
    }
}

/* Columns [at, at + n) of one row inside a panelled accumulator; returns at + n. */
static int64_t put_columns(float *o, int64_t col_panel, int64_t at, const float *from, int64_t n)
{
    for (int64_t some; n > 0; at += some, from += some, n -= some) {
        some = col_panel - at % col_panel;
        some = some < n ? some : n;
        memcpy(o + at / col_panel * MLA_ROW_PANEL * col_panel + at % col_panel, from, (size_t)some * sizeof *o);
    }
    return at;
}

void mla_stream_end(mla_task_state *t, int32_t g, const mla_panel_result *result)
{
    const mla_cpu_kernels *kernels = t->run->kernels;
    mla_stream_order order = kernels->stream_order[mla_format_of(t->run->problem->segment[g].k.dtype)];
    mla_stream_block block = {0};
    find_parts(t, g, (const void *const(*)[ROW_ADDRESSES])NULL, &block);
    int64_t cp = kernels->col_panel, step = kernels->stream_step, stride = mla_stream_stride(kernels, t->run->shape);
    for (int64_t r = 0; r < t->n_row; r++) {
        int64_t at = 0; /* the parts' columns follow each other in o */
        for (int32_t i = 0; i < block.n_v_part; i++) {
            const float *from = t->stream_o + r * stride + block.v[i].at;
            for (int64_t c = 0; c < block.v[i].n_col; c += step) {
                float piece[WIDEST_STEP];
                int64_t n = block.v[i].n_col - c < step ? block.v[i].n_col - c : step;
                in_order(order, step, from + c, piece);
                at = put_columns(result->o + r * cp, cp, at, piece, n);
            }
        }
        /* the rest of the last panel is merged along, so these must be numbers */
        for (const float zero = 0; at % cp != 0;) {
            at = put_columns(result->o + r * cp, cp, at, &zero, 1);
        }
    }
}

/* One list of addresses: the block's, then the next block's, then the last one again. */
static void list_rows(const void *const *now, int64_t n_now, const void *const *next, int64_t n_next, const void **row)
{
    memcpy(row, now, (size_t)n_now * sizeof *row);
    for (int64_t i = 0; i < MLA_STREAM_BEHIND; i++) {
        row[n_now + i] = i < n_next ? next[i] : now[n_now - 1];
    }
}

void mla_stream_attend(mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                       const mla_panel_result *result)
{
    const mla_segment *segment = &t->run->problem->segment[g];
    bool list = t->run->shape->segment[g].has_list, masked = mla_tensor_present(&segment->mask);
    bool partial = mla_task_place_ranges(t, rows, list);
    const void *row[3][ROW_ADDRESSES];
    list_rows(rows->k, rows->n_key, next->k, next->n_key, row[0]);
    if (mla_tensor_present(&segment->k_rope)) {
        list_rows(rows->rope, rows->n_key, next->rope, next->n_key, row[1]);
    }
    if (mla_tensor_present(&segment->v)) {
        list_rows(rows->v, rows->n_key, next->v, next->n_key, row[2]);
    }
    float addend[MLA_KEY_BLOCK][MLA_STREAM_ROWS];
    for (int64_t n = 0; (partial || masked) && n < rows->n_key; n++) {
        for (int64_t i = 0; i < MLA_STREAM_ROWS; i++) {
            bool seen = i < t->n_row && n >= t->block_begin[i] && n < t->block_end[i];
            addend[n][i] = !seen ? -INFINITY : masked ? mla_task_mask_at(t, &segment->mask, rows, i, n) : 0.0f;
        }
    }
    mla_stream_block block = {
        .fetch_again = mla_cpu_forgets_fetches(),
        .odd = !list && rows->position[0] % 2 != 0,
        .n_key = rows->n_key,
        .n_row = (int32_t)t->n_row,
        .stride = mla_stream_stride(t->run->kernels, t->run->shape),
        .q = t->stream_q,
        .o = t->stream_o,
        .scale = t->scale,
        .addend = partial || masked ? &addend[0][0] : NULL,
        .state = result->state,
    };
    find_parts(t, g, (const void *const(*)[ROW_ADDRESSES])row, &block);
    t->run->kernels->stream[mla_format_of(segment->k.dtype)](&block);
}
