/*
 * panel_rounded.c - the way of probabilities that are rounded before they multiply the values.
 *
 * What a probability is rounded to depends on the running maximum at its tile, so keys are taken tile by tile: the scores
 * of a whole tile for all row panels, then, relative to the new maximum, its probabilities and values. A tile that is one
 * block is converted once for both; a longer one goes through its blocks upwards for the scores and back down for the
 * values, so that the last one serves both.
 *
 * Probabilities are relative to the larger of the running maximum and the sink's logit; so are the accumulators. The sum
 * of probabilities is relative to the maximum of the keys alone: a sink that dwarfs them must not make it vanish, for lse
 * may leave the sink out. The sink's share joins where every other sink's does, when the row is written.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "panel.h"
#include "result.h"

/* The scores of a tile and the largest one of each row: s [row panel][key][16], peak [row panel][16]. */
typedef struct tile_scores {
    float *s, *peak;
    int64_t s_stride, peak_stride; /* floats from one row panel to the next */
} tile_scores;

/* One tile after the other of a segment. */
typedef struct tile_walk {
    mla_task_state *t;
    int32_t g;
    mla_key_cursor cursor;
    mla_key_rows *now, *next; /* [tile_blocks]; the first block of no tile has no keys */
} tile_walk;

static void take_tile(tile_walk *walk, mla_key_rows *block)
{
    const mla_task_state *t = walk->t;
    const mla_layout *layout = &t->run->layout;
    int64_t left = t->run->problem->p_tile;
    for (int64_t b = 0; b < layout->tile_blocks; b++) {
        int64_t n = left < layout->key_block ? left : layout->key_block;
        mla_key_rows_take(t->run->problem, t->run->shape, walk->g, t->item->seq, mla_task_token(t, 0), t->item->kv_head,
                          &walk->cursor, n, &block[b]);
        left -= n;
    }
}

/* Begins at the segment's key number `skip`, counted from the first one that the task sees. False: it has none. */
static bool begin_walk(tile_walk *walk, mla_task_state *t, int32_t g, int64_t skip)
{
    int64_t begin, end;
    mla_task_find_ranges(t, g, &begin, &end);
    if (begin >= end) {
        return false;
    }
    *walk = (tile_walk){.t = t, .g = g, .cursor = {begin, end}, .now = t->rows[0], .next = t->rows[1]};
    mla_key_rows_take(t->run->problem, t->run->shape, g, t->item->seq, mla_task_token(t, 0), t->item->kv_head,
                      &walk->cursor, skip, NULL);
    take_tile(walk, walk->now);
    return walk->now[0].n_key > 0;
}

/* What comes after the tile at hand, for fetching ahead. */
static void look_ahead(tile_walk *walk, bool any)
{
    walk->next[0].n_key = 0;
    if (any) {
        take_tile(walk, walk->next);
    }
}

static void step(tile_walk *walk)
{
    mla_key_rows *swap = walk->now;
    walk->now = walk->next;
    walk->next = swap;
}

static int64_t blocks_of(const tile_walk *walk)
{
    int64_t n = 0;
    while (n < walk->t->run->layout.tile_blocks && walk->now[n].n_key > 0) {
        n++;
    }
    return n;
}

/* values: they follow at once, so they are converted along where that saves converting the block again. */
static void score_tile(tile_walk *walk, bool values, const tile_scores *out)
{
    mla_task_state *t = walk->t;
    const mla_cpu_kernels *kernels = t->run->kernels;
    int64_t n_block = blocks_of(walk), at = 0;
    for (int64_t i = 0; i < t->n_panel * MLA_ROW_PANEL; i++) {
        out->peak[i / MLA_ROW_PANEL * out->peak_stride + i % MLA_ROW_PANEL] = -INFINITY;
    }
    for (int64_t b = 0; b < n_block; b++) {
        const mla_key_rows *rows = &walk->now[b];
        bool last = b + 1 == n_block;
        mla_prefetch ahead = mla_panel_prefetch(t, walk->g, last ? walk->next : rows + 1, MLA_LOAD_KEYS);
        if (last && values) {
            ahead.n_row = 0; /* this block again; the next tile's lines are fetched beside its values */
        }
        mla_panel_load_block(t, walk->g, rows, last && values ? MLA_LOAD_KEYS | MLA_LOAD_VALUES : MLA_LOAD_KEYS);
        float *s = out->s + at * MLA_ROW_PANEL;
        mla_panel_scores(t, rows->n_key, s, out->s_stride, &ahead);
        bool partial = mla_task_place_ranges(t, rows, t->run->shape->segment[walk->g].has_list);
        for (int64_t panel = 0; panel < t->n_panel; panel++) {
            int64_t first = panel * MLA_ROW_PANEL;
            kernels->peak(s + panel * out->s_stride, rows->n_key, t->scale + first,
                          partial ? t->block_begin + first : NULL, partial ? t->block_end + first : NULL,
                          mla_panel_mask(t, walk->g, rows, panel), out->peak + panel * out->peak_stride);
        }
        at += rows->n_key;
    }
}

static mla_round_kernel round_kernel(const mla_run_context *run)
{
    switch (run->problem->p_rounding) {
    case MLA_P_ROUND_INT8: return run->kernels->round[MLA_FORMAT_I8];
    case MLA_P_ROUND_HIF8: return run->kernels->round[MLA_FORMAT_HIF8];
    default: return run->kernels->round[mla_format_of(run->problem->q.dtype)];
    }
}

/* 2^(old - now); 1 where there is nothing to rescale. */
static float shrink(float old, float now)
{
    return now == old || old == -INFINITY ? 1.0f : exp2f(old - now);
}

/* The step of the running maximum: rescale[r], for the accumulators; unit[r], what an integer probability counts. Returns
 * whether anything is to be rescaled. */
static bool raise_maximum(mla_row_state *state, const float *peak, float *base, float *rescale, float *unit)
{
    bool any = false;
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        float old = state->m[r], now = peak[r] > old ? peak[r] : old, old_base = mla_result_base(state, r);
        state->m[r] = now;
        state->max[r] = peak[r] > state->max[r] ? peak[r] : state->max[r];
        state->l[r] *= shrink(old, now);
        base[r] = mla_result_base(state, r);
        rescale[r] = shrink(old_base, base[r]);
        any = any || rescale[r] != 1;
        /* of a row that sees nothing of the tile all probabilities are 0, in any unit */
        unit[r] = peak[r] == -INFINITY ? 0.0f : exp2f(peak[r] - base[r]) * (1.0f / 127.0f);
        unit[r] = unit[r] > 0 ? unit[r] : 1.0f;
    }
    return any;
}

/* One row panel's scores of a tile become rounded probabilities, and join the sums. */
static void round_tile(const mla_run_context *run, float *s, int64_t n_key, mla_row_state *state, const float *base,
                       const float *unit)
{
    mla_round_kernel round = round_kernel(run);
    float sum[MLA_ROW_PANEL] = {0}, ignored[MLA_ROW_PANEL] = {0};
    bool sink_leads = false;
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        sink_leads = sink_leads || base[r] > state->m[r];
    }
    if (sink_leads) { /* the sums are not those of the probabilities: once more, relative to m, on a copy */
        float copy[MLA_KEY_BLOCK_MAX * MLA_ROW_PANEL];
        for (int64_t at = 0, n; at < n_key; at += n) {
            n = n_key - at < MLA_KEY_BLOCK_MAX ? n_key - at : MLA_KEY_BLOCK_MAX;
            memcpy(copy, s + at * MLA_ROW_PANEL, (size_t)(n * MLA_ROW_PANEL) * sizeof *copy);
            round(copy, n, state->m, unit, sum);
        }
    }
    round(s, n_key, base, unit, sink_leads ? ignored : sum);
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        state->l[r] += sum[r];
    }
}

/* loaded: the last block is in place. */
static void value_tile(tile_walk *walk, bool loaded, const tile_scores *in, const mla_panel_result *result)
{
    mla_task_state *t = walk->t;
    const mla_run_context *run = t->run;
    const mla_cpu_kernels *kernels = run->kernels;
    bool integers = run->problem->p_rounding == MLA_P_ROUND_INT8;
    int64_t cp = kernels->col_panel, n_block = blocks_of(walk), n_key = 0;
    float rescale[MLA_TASK_PANELS][MLA_ROW_PANEL], unit[MLA_TASK_PANELS][MLA_ROW_PANEL];
    for (int64_t b = 0; b < n_block; b++) {
        n_key += walk->now[b].n_key;
    }
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        mla_row_state *state = result[panel].state;
        float base[MLA_ROW_PANEL];
        bool any = raise_maximum(state, in->peak + panel * in->peak_stride, base, rescale[panel], unit[panel]);
        round_tile(run, in->s + panel * in->s_stride, n_key, state, base, unit[panel]);
        if (any && !integers) {
            kernels->merge(result[panel].o, NULL, rescale[panel], NULL, run->layout.n_v_panel, result[panel].n_row);
        }
    }
    for (int64_t b = n_block - 1; b >= 0; b--) {
        const mla_key_rows *rows = &walk->now[b];
        mla_prefetch ahead = mla_panel_prefetch(t, walk->g, b > 0 ? rows - 1 : walk->next, MLA_LOAD_VALUES);
        bool partial = mla_task_place_ranges(t, rows, run->shape->segment[walk->g].has_list);
        n_key -= rows->n_key;
        if (!loaded || b < n_block - 1) {
            mla_panel_load_block(t, walk->g, rows, MLA_LOAD_VALUES);
        }
        bool apart = mla_panel_apart(t, walk->g, rows, partial);
        for (int64_t c = 0; c < run->shape->d_v; c += cp) {
            for (int64_t panel = 0; panel < t->n_panel; panel++) {
                const float *p = in->s + panel * in->s_stride + n_key * MLA_ROW_PANEL;
                float *o = result[panel].o + c * MLA_ROW_PANEL;
                if (!integers) {
                    mla_panel_values(t, walk->g, rows, apart, panel, c, p, o, &ahead);
                    continue;
                }
                /* exact until the tile is complete; of a single block the sum stays in the first-level cache */
                int64_t place = panel * run->layout.n_v_panel * MLA_ROW_PANEL * cp + c * MLA_ROW_PANEL;
                float *sum = t->tile_sum + (n_block > 1 ? place : 0);
                if (b == n_block - 1) {
                    memset(sum, 0, (size_t)(MLA_ROW_PANEL * cp) * sizeof *sum);
                }
                mla_panel_values(t, walk->g, rows, apart, panel, c, p, sum, &ahead);
                if (b == 0) {
                    kernels->merge(o, sum, rescale[panel], unit[panel], 1, result[panel].n_row);
                }
            }
        }
    }
}

/* No key seen of this chunk; m: the largest scores of the chunks before it. */
static void begin_partial(const mla_task_state *t, const float *m, const mla_panel_result *result)
{
    const mla_tensor *sink = &t->run->problem->sink;
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        mla_row_state *state = result[panel].state;
        mla_result_clear(t->run->kernels, &result[panel], t->run->layout.n_v_panel);
        memcpy(state->m, m + panel * MLA_ROW_PANEL, sizeof state->m);
        for (int32_t r = 0; mla_tensor_present(sink) && r < result[panel].n_row; r++) {
            float logit = mla_factor_at(sink, mla_task_head(t, panel * MLA_ROW_PANEL + r));
            float scaled = logit * (float)MLA_LOG2_E;
            state->floor[r] = isinf(scaled) && !isinf(logit) ? copysignf(FLT_MAX, logit) : scaled; /* as of masks */
        }
    }
}

static void nothing_before(float *m)
{
    for (int64_t i = 0; i < MLA_TASK_ROWS; i++) {
        m[i] = -INFINITY;
    }
}

static int64_t tiles_of_chunk(const mla_run_context *run)
{
    return run->plan->geometry.split_keys / run->problem->p_tile;
}

bool mla_rounded_whole(mla_task_state *t, mla_panel_result result[2][MLA_TASK_PANELS])
{
    const mla_run_context *run = t->run;
    float m[MLA_TASK_ROWS], peak[MLA_TASK_ROWS];
    tile_scores scores = {t->s, peak, run->layout.s_stride, MLA_ROW_PANEL};
    int64_t n_chunk = 0;
    nothing_before(m);
    for (int32_t g = 0; g < run->shape->n_segment; g++) {
        tile_walk walk;
        if (!begin_walk(&walk, t, g, 0)) {
            continue;
        }
        mla_task_pack(t, g);
        const mla_panel_result *part = NULL;
        for (int64_t tile = 0; walk.now[0].n_key > 0; tile++, step(&walk)) {
            if (tile % tiles_of_chunk(run) == 0) {
                part = result[n_chunk > 0];
                begin_partial(t, m, part);
            }
            look_ahead(&walk, true);
            score_tile(&walk, true, &scores);
            value_tile(&walk, true, &scores, part);
            if ((tile + 1) % tiles_of_chunk(run) != 0 && walk.next[0].n_key > 0) {
                continue;
            }
            mla_result_descale(run, g, part, t->n_panel);
            for (int64_t panel = 0; panel < t->n_panel; panel++) {
                if (n_chunk > 0) {
                    mla_result_fold(run->kernels, &result[0][panel], &result[1][panel], run->layout.n_v_panel);
                }
                memcpy(m + panel * MLA_ROW_PANEL, part[panel].state->m, sizeof part[panel].state->m);
            }
            n_chunk++;
        }
    }
    return n_chunk > 0;
}

/* What the first pass leaves in the slots of a chunk for the second, for tile 0; the others' follow. */
static tile_scores slot_scores(const mla_run_context *run, int64_t slot)
{
    char *memory = run->slots + (size_t)slot * run->layout.slot_bytes;
    int64_t stride = (int64_t)(run->layout.slot_bytes / sizeof(float));
    return (tile_scores){(float *)(memory + run->layout.slot_scores), (float *)(memory + run->layout.slot_peaks),
                         stride, stride};
}

static int64_t chunk_skip(mla_task_state *t)
{
    int64_t begin, end;
    mla_task_find_ranges(t, t->item->segment, &begin, &end);
    return t->item->kv_begin - begin;
}

void mla_rounded_chunk_scores(mla_task_state *t)
{
    const mla_run_context *run = t->run;
    tile_scores scores = slot_scores(run, t->item->slot);
    int64_t n_tile = tiles_of_chunk(run);
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        for (int64_t i = 0; i < n_tile * MLA_ROW_PANEL; i++) {
            scores.peak[panel * scores.peak_stride + i] = -INFINITY;
        }
    }
    tile_walk walk;
    if (!begin_walk(&walk, t, t->item->segment, chunk_skip(t))) {
        return;
    }
    mla_task_pack(t, t->item->segment);
    for (int64_t tile = 0; tile < n_tile && walk.now[0].n_key > 0; tile++, step(&walk)) {
        look_ahead(&walk, tile + 1 < n_tile);
        score_tile(&walk, false, &scores);
        scores.s += run->problem->p_tile * MLA_ROW_PANEL;
        scores.peak += MLA_ROW_PANEL;
    }
}

void mla_rounded_chunk_values(mla_task_state *t, const mla_panel_result *result)
{
    const mla_run_context *run = t->run;
    int64_t n_tile = tiles_of_chunk(run);
    float m[MLA_TASK_ROWS];
    nothing_before(m);
    for (int64_t slot = t->item->task_slot; slot < t->item->slot; slot++) {
        float *before = m + (slot - t->item->task_slot) % t->n_panel * MLA_ROW_PANEL;
        const float *peak = slot_scores(run, slot).peak;
        for (int64_t i = 0; i < n_tile * MLA_ROW_PANEL; i++) {
            float *at = before + i % MLA_ROW_PANEL;
            *at = peak[i] > *at ? peak[i] : *at;
        }
    }
    begin_partial(t, m, result);
    tile_walk walk;
    if (!begin_walk(&walk, t, t->item->segment, chunk_skip(t))) {
        return;
    }
    tile_scores scores = slot_scores(run, t->item->slot);
    for (int64_t tile = 0; tile < n_tile && walk.now[0].n_key > 0; tile++, step(&walk)) {
        look_ahead(&walk, tile + 1 < n_tile);
        value_tile(&walk, false, &scores, result);
        scores.s += run->problem->p_tile * MLA_ROW_PANEL;
        scores.peak += MLA_ROW_PANEL;
    }
    mla_result_descale(run, t->item->segment, result, t->n_panel);
}
