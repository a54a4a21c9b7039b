/*
 * stream.c - the way of few rows: keys are used where they lie. The kernel does all arithmetic; here its queries,
 * accumulators and row addresses are laid out.
 */
#include <math.h>
#include <string.h>

#include "features.h"
#include "result.h"
#include "task.h"

_Static_assert(MLA_STREAM_BLOCK + MLA_STREAM_BEHIND <= MLA_KEY_ROWS, "room for the rows that are fetched ahead");

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
static void find_parts(const mla_task_state *t, int32_t g, const mla_key_rows *rows, mla_stream_block *block)
{
    const mla_shape *shape = t->run->shape;
    const mla_segment *segment = &t->run->problem->segment[g];
    block->n_k_part = 1;
    block->k[0] = (mla_stream_part){rows->k, shape->d_nope, 0};
    if (mla_tensor_present(&segment->k_rope)) {
        block->n_k_part = 2;
        block->k[1] = (mla_stream_part){rows->rope, shape->d_rope, round_step(t->run->kernels, shape->d_nope)};
    }
    block->n_v_part = 1;
    if (mla_tensor_present(&segment->v)) {
        block->v[0] = (mla_stream_part){rows->v, shape->d_v, 0};
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

/* Where the next column of one row goes inside a panelled accumulator. */
typedef struct column_cursor {
    float *panel; /* the row's first column in it */
    int64_t at;   /* within the panel */
} column_cursor;

static void put_columns(column_cursor *to, int64_t col_panel, const float *from, int64_t n)
{
    for (int64_t some; n > 0; from += some, n -= some) {
        some = col_panel - to->at < n ? col_panel - to->at : n;
        memcpy(to->panel + to->at, from, (size_t)some * sizeof *from);
        to->at += some;
        if (to->at == col_panel) {
            *to = (column_cursor){to->panel + MLA_ROW_PANEL * col_panel, 0};
        }
    }
}

void mla_stream_end(mla_task_state *t, int32_t g, const mla_panel_result *result)
{
    const mla_cpu_kernels *kernels = t->run->kernels;
    mla_stream_order order = kernels->stream_order[mla_format_of(t->run->problem->segment[g].k.dtype)];
    mla_stream_block block;
    find_parts(t, g, t->rows[0], &block); /* for columns and places */
    int64_t cp = kernels->col_panel, step = kernels->stream_step, stride = mla_stream_stride(kernels, t->run->shape);
    for (int64_t r = 0; r < t->n_row; r++) {
        column_cursor to = {result->o + r * cp, 0}; /* the parts' columns follow each other in o */
        for (int32_t i = 0; i < block.n_v_part; i++) {
            const float *from = t->stream_o + r * stride + block.v[i].at;
            for (int64_t c = 0; c < block.v[i].n_col; c += step) {
                float piece[WIDEST_STEP];
                int64_t n = block.v[i].n_col - c < step ? block.v[i].n_col - c : step;
                in_order(order, step, from + c, piece);
                put_columns(&to, cp, piece, n);
            }
        }
        /* the rest of the last panel is merged along, so these must be numbers */
        for (const float zero = 0; to.at != 0;) {
            put_columns(&to, cp, &zero, 1);
        }
    }
}

/* Behind a block's addresses the next block's, then the block's last one again. */
static void continue_rows(const void **row, int64_t n_row, const void *const *next, int64_t n_next)
{
    n_next = n_next < MLA_STREAM_BEHIND ? n_next : MLA_STREAM_BEHIND;
    memcpy(row + n_row, next, (size_t)n_next * sizeof *row);
    for (int64_t i = n_next; i < MLA_STREAM_BEHIND; i++) {
        row[n_row + i] = row[n_row - 1];
    }
}

void mla_stream_continue(const mla_task_state *t, int32_t g, mla_key_rows *rows, const mla_key_rows *next)
{
    const mla_segment *segment = &t->run->problem->segment[g];
    continue_rows(rows->k, rows->n_key, next->k, next->n_key);
    if (mla_tensor_present(&segment->k_rope)) {
        continue_rows(rows->rope, rows->n_key, next->rope, next->n_key);
    }
    if (mla_tensor_present(&segment->v)) {
        continue_rows(rows->v, rows->n_key, next->v, next->n_key);
    }
}

void mla_stream_attend(mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                       const mla_panel_result *result)
{
    const mla_segment *segment = &t->run->problem->segment[g];
    bool list = t->run->shape->segment[g].has_list, masked = mla_tensor_present(&segment->mask);
    bool partial = mla_task_place_ranges(t, rows, list);
    (void)next; /* mla_stream_continue() */
    float addend[MLA_STREAM_BLOCK][MLA_STREAM_ROWS];
    for (int64_t n = 0; (partial || masked) && n < rows->n_key; n++) {
        for (int64_t i = 0; i < MLA_STREAM_ROWS; i++) {
            bool seen = i < t->n_row && n >= t->block_begin[i] && n < t->block_end[i];
            addend[n][i] = !seen ? -INFINITY : masked ? mla_task_mask_at(t, &segment->mask, rows, i, n) : 0.0f;
        }
    }
    mla_stream_block block; /* field by field: processors clear a whole one slowly */
    block.fetch_again = mla_cpu_forgets_fetches();
    block.odd = !list && rows->position[0] % 2 != 0;
    block.n_key = rows->n_key;
    block.n_row = (int32_t)t->n_row;
    block.stride = mla_stream_stride(t->run->kernels, t->run->shape);
    block.q = t->stream_q;
    block.o = t->stream_o;
    block.scale = t->scale;
    block.addend = partial || masked ? &addend[0][0] : NULL;
    block.state = result->state;
    find_parts(t, g, rows, &block);
    t->run->kernels->stream[mla_format_of(segment->k.dtype)](&block);
}
