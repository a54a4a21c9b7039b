/*
 * panel_bf16.c - the way of many rows through units that multiply bf16: keys are used where they lie, values are paired
 * once per block and used by all row panels.
 *
 * Order within a block as in panel.c. What differs: places. A block begins at a multiple of its length in index space, and
 * a key's place is counted from there even when the first keys are not wanted, for which keys share a step is part of a
 * row's bits. Places without a key have p = 0 and values of 0.
 */
#include <math.h>
#include <string.h>

#include "panel.h"

enum { ROWS = MLA_ROW_PANEL, STEP = MLA_BF16_STEP, TILE_KEYS = 16, MOST_TILES = MLA_KEY_BLOCK_BF16 / TILE_KEYS };

static int64_t whole(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

int64_t mla_bf16_columns(const mla_shape *shape)
{
    return whole(shape->d_nope, STEP) + whole(shape->d_rope, STEP);
}

static void pack_part(const mla_task_state *t, const void *const *row, const float *factor, int32_t n_row,
                      int64_t n_col, uint16_t *q)
{
    if (n_col > 0) {
        t->run->kernels->bf16.qpairs(row, factor, n_row, n_col, q);
    }
}

void mla_bf16_pack(mla_task_state *t, double descale)
{
    const mla_shape *shape = t->run->shape;
    memset(t->scale, 0, sizeof t->scale);
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        const void *nope[ROWS], *rope[ROWS];
        float factor[ROWS];
        int32_t n_row = mla_task_panel_rows(t, panel);
        for (int32_t r = 0; r < n_row; r++) {
            factor[r] = mla_task_split_scale(t, panel * ROWS + r, descale);
            mla_task_query(t, panel * ROWS + r, &nope[r], &rope[r]);
        }
        uint16_t *to = t->q_pairs + panel * ROWS * mla_bf16_columns(shape);
        pack_part(t, nope, factor, n_row, shape->d_nope, to);
        pack_part(t, rope, factor, n_row, shape->d_rope, to + ROWS * whole(shape->d_nope, STEP));
    }
}

/* The rows of a block by place, with a row of zeros where there is none. */
static void place_rows(const mla_task_state *t, const void *const *row, const mla_key_rows *rows, int64_t n_place,
                       const void **placed)
{
    for (int64_t n = 0; n < n_place; n++) {
        bool wanted = n >= rows->lead && n < rows->lead + rows->n_key;
        placed[n] = wanted ? row[n - rows->lead] : t->no_row;
    }
}

/*
 * Scores of the columns of one tensor. Tiles are taken where the keys lie if their rows are there, equally far apart and
 * made of whole steps; else from a copy.
 */
static void part_scores(const mla_task_state *t, const void *const *row, const mla_key_rows *rows, int64_t n_col,
                        int64_t col, mla_prefetch *ahead)
{
    const mla_cpu_kernels *kernels = t->run->kernels;
    int64_t n_tile = (rows->lead + rows->n_key + TILE_KEYS - 1) / TILE_KEYS, width = whole(n_col, STEP);
    int64_t q_stride = ROWS * mla_bf16_columns(t->run->shape);
    const void *placed[MLA_KEY_BLOCK_BF16];
    mla_key_tile tile[MOST_TILES];
    place_rows(t, row, rows, n_tile * TILE_KEYS, placed);
    for (int64_t i = 0; i < n_tile; i++) {
        const void *const *from = placed + i * TILE_KEYS;
        int64_t first = i * TILE_KEYS, stride = (const char *)from[1] - (const char *)from[0];
        bool lies_well = n_col == width && first >= rows->lead && first + TILE_KEYS <= rows->lead + rows->n_key;
        for (int64_t n = 2; lies_well && n < TILE_KEYS; n++) {
            lies_well = (const char *)from[n] - (const char *)from[n - 1] == stride;
        }
        tile[i] = (mla_key_tile){from[0], stride};
        if (!lies_well) {
            uint16_t *copy = t->k_copy + (first * mla_bf16_columns(t->run->shape) + TILE_KEYS * col);
            for (int64_t n = 0; n < TILE_KEYS; n++) {
                memcpy(copy + n * width, from[n], (size_t)n_col * sizeof *copy);
                memset(copy + n * width + n_col, 0, (size_t)(width - n_col) * sizeof *copy);
            }
            tile[i] = (mla_key_tile){copy, width * (int64_t)sizeof *copy};
        }
    }
    kernels->bf16.qk(t->q_pairs + ROWS * col, q_stride, tile, n_tile, width, t->n_panel, col > 0, t->s,
                     t->run->layout.s_stride, ahead);
}

static void scores(const mla_task_state *t, const mla_key_rows *rows, mla_prefetch *ahead)
{
    const mla_shape *shape = t->run->shape;
    part_scores(t, rows->k, rows, shape->d_nope, 0, ahead);
    if (shape->d_rope > 0) {
        part_scores(t, rows->rope, rows, shape->d_rope, whole(shape->d_nope, STEP), ahead);
    }
}

static bool all_finite(const uint16_t *v, int64_t n)
{
    uint16_t worst = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits = v[i] & 0x7f80u;
        worst = bits > worst ? bits : worst;
    }
    return worst != 0x7f80u;
}

/* As mla_panel_apart(), of values where they lie. */
static bool must_be_apart(const mla_task_state *t, int32_t g, const void *const *value, const mla_key_rows *rows,
                          bool partial)
{
    bool masked = mla_tensor_present(&t->run->problem->segment[g].mask);
    if (!partial && !masked) {
        return false;
    }
    int64_t begin, end;
    mla_panel_seen_by_all(t, masked, rows->n_key, &begin, &end);
    for (int64_t n = 0; n < rows->n_key; n++) {
        if ((n < begin || n >= end) && !all_finite(value[n], t->run->shape->d_v)) {
            return true;
        }
    }
    return false;
}

/* Softmax of all panels, and their probabilities as operands. */
static void probabilities(mla_task_state *t, int32_t g, const mla_key_rows *rows, bool partial, int64_t n_place,
                          const mla_panel_result *result)
{
    const mla_cpu_kernels *kernels = t->run->kernels;
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        float *s = t->s + panel * t->run->layout.s_stride;
        int64_t behind = rows->lead + rows->n_key;
        mla_panel_softmax(t, g, rows, partial, panel, s + rows->lead * ROWS, &result[panel]);
        memset(s, 0, (size_t)(rows->lead * ROWS) * sizeof *s);
        memset(s + behind * ROWS, 0, (size_t)((n_place - behind) * ROWS) * sizeof *s);
        kernels->bf16.ppairs(s, n_place, t->run->layout.p_parts, t->p_pairs + panel * t->run->layout.p_stride);
    }
}

/* Values of all panels where rows must be kept apart: each token's rows go over values in which those hidden from the
 * token are 0, into a copy of the accumulators, from which only these rows are taken back. */
static void values_apart(const mla_task_state *t, int32_t g, const void *const *value, const mla_key_rows *rows,
                         int64_t n_place, const mla_panel_result *result, mla_prefetch *ahead)
{
    const mla_layout *layout = &t->run->layout;
    const mla_bf16_kernels *kernels = &t->run->kernels->bf16;
    int64_t cp = t->run->kernels->col_panel, d_v = t->run->shape->d_v;
    for (int64_t i = 0, next; i < t->n_row; i = next) {
        int64_t panel = i / ROWS;
        for (next = i + 1; next < t->n_row && next % ROWS != 0 && mla_task_token(t, next) == mla_task_token(t, i);) {
            next++;
        }
        const void *seen[MLA_KEY_BLOCK_BF16], *placed[MLA_KEY_BLOCK_BF16];
        for (int64_t n = 0; n < rows->n_key; n++) {
            seen[n] = mla_task_sees(t, g, rows, i, n) ? value[n] : t->no_row;
        }
        place_rows(t, seen, rows, n_place, placed);
        kernels->vpairs(placed, n_place, d_v, t->v_pairs, layout->v_stride);
        memcpy(t->o_copy, result[panel].o, layout->o_bytes);
        kernels->pv(t->p_pairs + panel * layout->p_stride, layout->p_stride, layout->p_parts, t->v_pairs,
                    layout->v_stride, n_place, 1, d_v, &t->o_copy, ahead);
        for (int64_t p = 0; p < layout->n_v_panel; p++) {
            int64_t at = (p * ROWS + i % ROWS) * cp;
            memcpy(result[panel].o + at, t->o_copy + at, (size_t)((next - i) * cp) * sizeof(float));
        }
    }
}

/* So that the next block's lines are spread over all the arithmetic of this one. */
static mla_prefetch prefetch(const mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next)
{
    mla_prefetch ahead = mla_panel_prefetch(t, g, next, MLA_LOAD_KEYS | MLA_LOAD_VALUES);
    int64_t two_panels = (t->n_panel + 1) / 2, two_tiles = (rows->n_key + 2 * TILE_KEYS - 1) / (2 * TILE_KEYS);
    int64_t steps = two_panels * two_tiles * (mla_bf16_columns(t->run->shape) + t->run->shape->d_v) / STEP + 1;
    ahead.lines_per_step = ahead.n_row * ((ahead.row_bytes + 63) / 64) / steps + 1;
    return ahead;
}

void mla_bf16_attend(mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                     const mla_panel_result *result)
{
    const mla_layout *layout = &t->run->layout;
    const mla_bf16_kernels *kernels = &t->run->kernels->bf16;
    const void *const *value = mla_tensor_present(&t->run->problem->segment[g].v) ? rows->v : rows->k;
    int64_t n_place = whole(rows->lead + rows->n_key, STEP);
    mla_prefetch ahead = prefetch(t, g, rows, next);
    bool partial = mla_task_place_ranges(t, rows, t->run->shape->segment[g].has_list);
    bool apart = must_be_apart(t, g, value, rows, partial);
    bool as_they_lie = !apart && kernels->vpairs_pv && t->run->shape->d_v % STEP == 0;
    const void *placed[MLA_KEY_BLOCK_BF16];
    if (!apart) {
        place_rows(t, value, rows, n_place, placed);
    }
    if (!apart && !as_they_lie) {
        kernels->vpairs(placed, n_place, t->run->shape->d_v, t->v_pairs, layout->v_stride);
    }
    scores(t, rows, &ahead);
    probabilities(t, g, rows, partial, n_place, result);
    if (apart) {
        values_apart(t, g, value, rows, n_place, result, &ahead);
        return;
    }
    float *o[MLA_TASK_PANELS];
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        o[panel] = result[panel].o;
    }
    if (as_they_lie) {
        kernels->vpairs_pv(t->p_pairs, layout->p_stride, layout->p_parts, placed, n_place, t->n_panel,
                           t->run->shape->d_v, o, t->v_pairs, &ahead);
        return;
    }
    kernels->pv(t->p_pairs, layout->p_stride, layout->p_parts, t->v_pairs, layout->v_stride, n_place, t->n_panel,
                t->run->shape->d_v, o, &ahead);
}
