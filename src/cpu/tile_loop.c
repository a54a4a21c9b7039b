/*
 * tile_loop.c - what a worker does with an item: walk its chunks block by block, fold them, write the rows.
 */
#include "tile_loop.h"

#include <math.h>
#include <string.h>

#include "arithmetic.h"
#include "fixed.h"
#include "result.h"
#include "task.h"

static size_t align_up(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

bool mla_nope_apart(const mla_problem *problem, const mla_shape *shape)
{
    return shape->d_rope > 0 && mla_tensor_present(&problem->qk_descale);
}

/* What arithmetic in bf16 has instead of q and blocks in fp32, from `at` on; returns where it ends. */
static size_t place_bf16(mla_layout *layout, const mla_shape *shape, size_t at)
{
    const size_t number = sizeof(uint16_t);
    layout->v_stride = layout->key_block * 16;
    layout->p_stride = layout->s_stride * layout->p_parts;
    layout->no_row_bytes = (size_t)(shape->d_k > shape->d_v ? shape->d_k : shape->d_v) * number;
    layout->q = at;
    at = align_up(at + (size_t)(MLA_TASK_PANELS * MLA_ROW_PANEL * mla_bf16_columns(shape)) * number);
    layout->v_block = at;
    at = align_up(at + (size_t)((shape->d_v + 15) / 16 * layout->v_stride) * number);
    layout->p_pairs = at;
    at = align_up(at + (size_t)(MLA_TASK_PANELS * layout->p_stride) * number);
    layout->k_block = at;
    at = align_up(at + (size_t)(layout->key_block * mla_bf16_columns(shape)) * number);
    layout->o_copy = at;
    at = align_up(at + layout->o_bytes);
    layout->no_row = at;
    return align_up(at + layout->no_row_bytes);
}

mla_layout mla_layout_make(const mla_cpu_kernels *kernels, const mla_problem *problem, const mla_shape *shape,
                           mla_arithmetic arithmetic, int64_t split_keys)
{
    mla_layout layout = {.bf16 = mla_arithmetic_is_bf16(arithmetic),
                         .p_parts = arithmetic == MLA_ARITHMETIC_BF16X2 ? 2 : 1};
    int64_t cp = kernels->col_panel, tile = problem->p_tile; /* 0: nothing is rounded */
    bool own_v = false, mask = false, nope_apart = mla_nope_apart(problem, shape);
    for (int32_t g = 0; g < shape->n_segment; g++) {
        own_v = own_v || mla_tensor_present(&problem->segment[g].v);
        mask = mask || mla_tensor_present(&problem->segment[g].mask);
    }
    layout.key_block = tile == 0 ? MLA_KEY_BLOCK : tile < MLA_KEY_BLOCK_MAX ? tile : MLA_KEY_BLOCK_MAX;
    layout.key_block = layout.bf16 ? MLA_KEY_BLOCK_BF16 : layout.key_block;
    layout.tile_blocks = tile > 0 ? (tile + layout.key_block - 1) / layout.key_block : 1;
    /* a sum of its own starts at a column panel; values that reach into it are then not the block's first columns */
    layout.rope_col = nope_apart ? (shape->d_nope + cp - 1) / cp * cp : shape->d_nope;
    layout.v_apart = nope_apart && shape->d_v > shape->d_nope;
    own_v = own_v || layout.v_apart;
    layout.n_col_panel = (layout.rope_col + shape->d_k - shape->d_nope + cp - 1) / cp;
    layout.n_v_panel = (shape->d_v + cp - 1) / cp;
    /* one line more than the block needs: panels a power of two apart would fight for the same cache sets */
    layout.panel_stride = layout.key_block * cp + 16;
    layout.s_stride = (tile > 0 ? tile : layout.key_block) * MLA_ROW_PANEL;
    layout.o_bytes = (size_t)(layout.n_v_panel * MLA_ROW_PANEL * cp) * sizeof(float);

    size_t at = 0;
    layout.task = at;
    at = align_up(at + sizeof(mla_task_state));
    if (layout.bf16) {
        at = place_bf16(&layout, shape, at);
    } else {
        layout.q = at;
        at = align_up(at + (size_t)(MLA_TASK_PANELS * shape->d_k * MLA_ROW_PANEL) * sizeof(float));
        layout.k_block = at;
        at = align_up(at + (size_t)(layout.n_col_panel * layout.panel_stride) * sizeof(float));
        layout.v_block = at;
        at = align_up(at + (own_v ? (size_t)(layout.n_v_panel * layout.panel_stride) * sizeof(float) : 0));
    }
    layout.s = at;
    at = align_up(at + (size_t)(MLA_TASK_PANELS * layout.s_stride) * sizeof(float));
    layout.mask = at;
    at = align_up(at + (mask ? (size_t)(layout.key_block * MLA_ROW_PANEL) * sizeof(float) : 0));
    layout.row = at;
    at = align_up(at + 2 * (size_t)layout.tile_blocks * sizeof(mla_key_rows));
    layout.stream = at;
    at = align_up(at + 2 * (size_t)(MLA_STREAM_ROWS * mla_stream_stride(kernels, shape)) * sizeof(float));
    layout.tile_sum = at;
    at = align_up(at + (problem->p_rounding == MLA_P_ROUND_INT8 ? MLA_TASK_PANELS * layout.o_bytes : 0));
    layout.has_fixed = arithmetic == MLA_ARITHMETIC_INT16;
    layout.fixed = at;
    at = align_up(at + (layout.has_fixed ? mla_fixed_bytes(kernels, shape, layout.key_block, layout.o_bytes) : 0));
    for (int i = 0; i < 2; i++) {
        layout.acc[i] = at;
        at = align_up(at + MLA_TASK_PANELS * (sizeof(mla_row_state) + layout.o_bytes));
    }
    layout.worker_bytes = at;
    at = sizeof(mla_row_state) + layout.o_bytes;
    if (tile > 0) {
        layout.slot_peaks = at;
        at += (size_t)(split_keys / tile * MLA_ROW_PANEL) * sizeof(float);
        layout.slot_scores = at;
        at += (size_t)(split_keys * MLA_ROW_PANEL) * sizeof(float);
    }
    layout.slot_bytes = (at + 63) / 64 * 64;
    return layout;
}

/* ---- one item ------------------------------------------------------------------------------------------------------- */

/* The partial result of the chunk [begin, end) of segment g, which lies within one multiple of split_keys. Keys up to
 * `ahead` come next and may be fetched already. */
static void attend_chunk(mla_task_state *t, int32_t g, int64_t begin, int64_t end, int64_t ahead,
                         const mla_panel_result *result)
{
    const mla_run_context *run = t->run;
    int64_t token = mla_task_token(t, 0);
    mla_task_pack(t, g);
    int64_t block = t->bf16 ? MLA_KEY_BLOCK_BF16 : t->stream ? MLA_STREAM_BLOCK : MLA_KEY_BLOCK;
    if (t->stream) {
        mla_result_clear_state(result);
        mla_stream_begin(t);
    }
    for (int64_t panel = 0; !t->stream && panel < t->n_panel; panel++) {
        mla_result_clear(run->kernels, &result[panel], run->layout.n_v_panel);
    }
    bool fixed = t->fixed != NULL && !t->stream && mla_fixed_begin(t, g, begin);
    void (*attend)(mla_task_state *, int32_t, const mla_key_rows *, const mla_key_rows *, const mla_panel_result *) =
        t->stream ? mla_stream_attend
        : t->bf16 ? mla_bf16_attend
        : fixed   ? mla_fixed_attend
                  : mla_panel_attend;
    /* rows are found one block ahead, so that their lines can be fetched meanwhile */
    int64_t at = begin - begin % block;
    mla_key_rows *now = t->rows[0], *next = t->rows[1];
    now->n_key = 0;
    bool pending = false;
    for (; at < end || pending; at += block) {
        next->n_key = 0;
        int64_t limit = at < end ? end : ahead;
        if (at < limit) {
            int64_t from = at > begin ? at : begin, to = at + block < limit ? at + block : limit;
            next->lead = from - at;
            mla_key_rows_find(run->problem, run->shape, g, t->item->seq, token, t->item->kv_head, from, to, next);
        }
        if (now->n_key > 0) {
            if (t->stream) {
                mla_stream_continue(t, g, now, next);
            }
            attend(t, g, now, next, result);
        }
        pending = at < end;
        mla_key_rows *swap = now;
        now = next;
        next = swap;
    }
    if (t->stream) {
        mla_stream_end(t, g, result);
    }
    mla_result_descale(run, g, result, t->n_panel);
}

static void panel_results(const mla_task_state *t, char *memory, size_t stride, mla_panel_result *result)
{
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        result[panel] = mla_result_at(memory + (size_t)panel * stride, mla_task_panel_rows(t, panel));
    }
}

static char *scratch_of(const mla_run_context *run, int64_t worker)
{
    return run->scratch + (size_t)worker * run->layout.worker_bytes;
}

static mla_task_state *task_in(const mla_run_context *run, char *scratch)
{
    return (mla_task_state *)(scratch + run->layout.task);
}

void mla_tile_begin(const mla_run_context *run, int64_t worker)
{
    char *scratch = scratch_of(run, worker);
    const mla_layout *layout = &run->layout;
    mla_key_rows *rows = (mla_key_rows *)(scratch + layout->row);
    memset(scratch + layout->no_row, 0, layout->no_row_bytes);
    *task_in(run, scratch) = (mla_task_state){
        .run = run,
        .worker = worker,
        .nope_apart = mla_nope_apart(run->problem, run->shape),
        .packed_descale = NAN,
        .q = (float *)(scratch + layout->q),
        .k_block = (float *)(scratch + layout->k_block),
        .v_block = (float *)(scratch + layout->v_block),
        .q_pairs = (uint16_t *)(scratch + layout->q),
        .v_pairs = (uint16_t *)(scratch + layout->v_block),
        .p_pairs = (uint16_t *)(scratch + layout->p_pairs),
        .k_copy = (uint16_t *)(scratch + layout->k_block),
        .o_copy = (float *)(scratch + layout->o_copy),
        .no_row = scratch + layout->no_row,
        .s = (float *)(scratch + layout->s),
        .mask = (float *)(scratch + layout->mask),
        .tile_sum = (float *)(scratch + layout->tile_sum),
        .rows = {rows, rows + layout->tile_blocks},
        .stream_q = (float *)(scratch + layout->stream),
        .stream_o = (float *)(scratch + layout->stream) + MLA_STREAM_ROWS * mla_stream_stride(run->kernels, run->shape),
    };
    if (layout->has_fixed) {
        mla_fixed_place(run->kernels, run->shape, layout->key_block, layout->o_bytes, scratch + layout->fixed);
        task_in(run, scratch)->fixed = (mla_fixed_state *)(scratch + layout->fixed);
    }
}

/* Queries of the item before stay packed where they are this one's too: the next chunk of the same rows, mostly. */
static mla_task_state *task_of(const mla_run_context *run, const mla_work_item *item, int64_t worker)
{
    mla_task_state *t = task_in(run, scratch_of(run, worker));
    const mla_work_item *before = t->item;
    if (before == NULL || before->seq != item->seq || before->kv_head != item->kv_head ||
        before->row_begin != item->row_begin || before->row_end != item->row_end) {
        t->packed_descale = NAN;
    }
    t->item = item;
    t->n_row = item->row_end - item->row_begin;
    t->n_panel = (t->n_row + MLA_ROW_PANEL - 1) / MLA_ROW_PANEL;
    t->stream = mla_stream_serves(t);
    if (t->fixed) {
        t->fixed->served = mla_task_sequence_rows(t) >= MLA_FIXED_ROWS;
    }
    t->bf16 = run->layout.bf16 && !t->stream;
    return t;
}

void mla_tile_second_pass(const mla_run_context *run, const mla_work_item *item, int64_t worker)
{
    mla_task_state *t = task_of(run, item, worker);
    mla_panel_result result[MLA_TASK_PANELS];
    panel_results(t, run->slots + (size_t)item->slot * run->layout.slot_bytes, run->layout.slot_bytes, result);
    mla_rounded_chunk_values(t, result);
}

/* Partial results in a worker's accumulators i; a helper's spare i is the same memory. */
static void accumulators(const mla_task_state *t, int64_t worker, int64_t i, mla_panel_result *result)
{
    const mla_layout *layout = &t->run->layout;
    panel_results(t, scratch_of(t->run, worker) + layout->acc[i], sizeof(mla_row_state) + layout->o_bytes, result);
}

/* How many chunks a whole item has; of chunk number `chunk`, if there is one, the partial result. */
static int64_t attend_numbered(mla_task_state *t, int64_t chunk, const mla_panel_result *result)
{
    int64_t n_chunk = 0, split = t->run->plan->geometry.split_keys;
    for (int32_t g = 0; g < t->run->shape->n_segment; g++) {
        int64_t begin, end;
        mla_task_find_ranges(t, g, &begin, &end);
        int64_t origin = begin - begin % split, here = begin < end ? (end - origin + split - 1) / split : 0;
        if (chunk >= n_chunk && chunk < n_chunk + here) {
            int64_t at = origin + (chunk - n_chunk) * split;
            attend_chunk(t, g, at > begin ? at : begin, at + split < end ? at + split : end, end, result);
        }
        n_chunk += here;
    }
    return n_chunk;
}

static void fold(const mla_task_state *t, const mla_panel_result *into, const mla_panel_result *from)
{
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        mla_result_fold(t->run->kernels, &into[panel], &from[panel], t->run->layout.n_v_panel);
    }
}

/* All chunks of a whole item into result[0]; returns whether there were any. */
static bool attend_whole(mla_task_state *t, mla_panel_result result[2][MLA_TASK_PANELS])
{
    const mla_run_context *run = t->run;
    mla_share *own = &run->share[t->worker];
    int64_t chunk = 1, n_chunk = attend_numbered(t, -1, NULL);
    if (n_chunk == 0) {
        return false;
    }
    mla_share_open(own, t->item, n_chunk);
    attend_numbered(t, 0, result[0]);
    for (; mla_share_next(own, chunk); chunk++) {
        attend_numbered(t, chunk, result[1]);
        fold(t, result[0], result[1]);
    }
    for (; chunk < n_chunk; chunk++) {
        int64_t place = mla_share_wait(run->share, run->plan->n_worker, t->worker, chunk);
        accumulators(t, place / MLA_SPARES, place % MLA_SPARES, result[1]);
        fold(t, result[0], result[1]);
        mla_share_folded(run->share, place);
    }
    return true;
}

/* End of the keys that the worker goes on with when it comes to the item `next`; 0: others than those behind this item's. */
static int64_t goes_on_to(const mla_work_item *item, const mla_work_item *next)
{
    bool same = next && next->seq == item->seq && next->kv_head == item->kv_head &&
                next->row_begin == item->row_begin && next->row_end == item->row_end &&
                next->segment == item->segment && next->kv_begin == item->kv_end;
    return same ? next->kv_end : 0;
}

static void compute_item(mla_task_state *t, const mla_work_item *next)
{
    const mla_run_context *run = t->run;
    const mla_work_item *item = t->item;
    const mla_layout *layout = &run->layout;
    bool rounded = run->problem->p_rounding != MLA_P_ROUND_NONE;
    if (rounded && item->slot >= 0) {
        mla_rounded_chunk_scores(t);
        return;
    }
    mla_panel_result result[2][MLA_TASK_PANELS];
    if (item->slot >= 0) {
        int64_t begin, end;
        panel_results(t, run->slots + (size_t)item->slot * layout->slot_bytes, layout->slot_bytes, result[0]);
        mla_task_find_ranges(t, item->segment, &begin, &end);
        attend_chunk(t, item->segment, item->kv_begin > begin ? item->kv_begin : begin,
                     item->kv_end < end ? item->kv_end : end, goes_on_to(item, next), result[0]);
        return;
    }
    for (int i = 0; i < 2; i++) {
        accumulators(t, t->worker, i, result[i]);
    }
    if (!(rounded ? mla_rounded_whole : attend_whole)(t, result)) {
        for (int64_t panel = 0; panel < t->n_panel; panel++) {
            mla_result_clear(run->kernels, &result[0][panel], layout->n_v_panel);
        }
    }
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        mla_result_write(run, item->seq, item->kv_head, item->row_begin + panel * MLA_ROW_PANEL, &result[0][panel]);
    }
}

static void enter(const mla_task_state *t)
{
    if (t->bf16 && t->run->kernels->bf16.enter) {
        t->run->kernels->bf16.enter();
    }
}

static void leave(const mla_task_state *t)
{
    if (t->bf16 && t->run->kernels->bf16.leave) {
        t->run->kernels->bf16.leave();
    }
}

void mla_tile_item(const mla_run_context *run, const mla_work_item *item, const mla_work_item *next, int64_t worker)
{
    mla_task_state *t = task_of(run, item, worker);
    enter(t);
    compute_item(t, next);
    leave(t);
}

bool mla_tile_help(const mla_run_context *run, int64_t worker)
{
    int64_t n_worker = run->plan->n_worker, spare = mla_share_spare(&run->share[worker]);
    for (int64_t i = 1; spare >= 0 && i < n_worker; i++) {
        int64_t owner = (worker + i) % n_worker, chunk = mla_share_take(&run->share[owner]);
        if (chunk >= 0) {
            mla_task_state *t = task_of(run, run->share[owner].item, worker);
            mla_panel_result result[MLA_TASK_PANELS];
            accumulators(t, worker, spare, result);
            enter(t);
            attend_numbered(t, chunk, result);
            leave(t);
            mla_share_hand_in(&run->share[worker], spare, owner, chunk);
            return true;
        }
    }
    return false;
}

void mla_tile_combine(const mla_run_context *run, const mla_combine_item *item, int64_t part, int64_t n_part)
{
    size_t bytes = run->layout.slot_bytes;
    int32_t n_row = (int32_t)(item->row_end - item->row_begin);
    int64_t begin = run->layout.n_v_panel * part / n_part, end = run->layout.n_v_panel * (part + 1) / n_part;
    int64_t first = begin * MLA_ROW_PANEL * run->kernels->col_panel;
    mla_panel_result sum = mla_result_at(run->slots + (size_t)item->slot_begin * bytes, n_row);
    mla_row_state state = *sum.state; /* every part folds the rows' states, and needs those of the first slot */
    sum.state = &state;
    sum.o += first;
    for (int64_t i = 1; i < item->slot_count; i++) {
        size_t at = (size_t)(item->slot_begin + i * item->slot_stride) * bytes;
        mla_panel_result from = mla_result_at(run->slots + at, n_row);
        from.o += first;
        mla_result_fold(run->kernels, &sum, &from, end - begin);
    }
    mla_result_write_columns(run, item->seq, item->kv_head, item->row_begin, &sum, begin, end);
}
