/*
 * tile_loop.h - one worker's scratch, and what it does with one item of work.
 */
#ifndef MLA_CPU_TILE_LOOP_H
#define MLA_CPU_TILE_LOOP_H

#include "core/plan.h"
#include "kernels.h"
#include "share.h"

#define MLA_TASK_ROWS 128 /* rows of a task: enough to amortise loading a key, few enough for the second-level cache */
#define MLA_TASK_PANELS (MLA_TASK_ROWS / MLA_ROW_PANEL)

/* Partial results of one row panel. In a slot of the workspace they lie one behind the other: state, then o. */
typedef struct mla_panel_result {
    mla_row_state *state;
    float *o;      /* [col panel of d_v][16][col_panel] */
    int32_t n_row; /* rows in use, 1..16 */
} mla_panel_result;

/*
 * Scratch of one worker, carved from the workspace:
 *
 *     +------+---+---------+---------+---+------+------+--------+----------+-------+----------------+----------------+
 *     | task | q | k block | v block | s | mask | rows | stream | tile sum | fixed | accumulators 0 | accumulators 1 |
 *     +------+---+---------+---------+---+------+------+--------+----------+-------+----------------+----------------+
 *
 * v block only with values of their own, mask only with an additive mask, tile sum only for probabilities of int8,
 * fixed only in fixed point.
 * Workers start on pages of their own.
 *
 * A slot holds the partial result of one row panel, and with rounded probabilities behind it what the first pass leaves
 * for the second: the largest score of each tile of the chunk, [tile][16], and all scores, [key][16].
 */
typedef struct mla_layout {
    bool bf16;            /* arithmetic in bf16: q, k and v blocks hold what panel_bf16.c puts there */
    int64_t key_block;    /* most keys of a block */
    int64_t tile_blocks;  /* blocks of a tile of rounded probabilities, else 1 */
    int64_t n_col_panel;  /* of d_k */
    int64_t n_v_panel;    /* of d_v */
    int64_t rope_col;     /* column of a key block where a k_rope of its own begins */
    bool v_apart;         /* values have a block of their own even where they are columns of k */
    int64_t panel_stride; /* floats from one column panel of a block to the next */
    int64_t s_stride;     /* floats from one row panel of s to the next */
    int64_t v_stride;     /* bf16: numbers from one group of 16 columns to the next */
    int64_t p_stride;     /* bf16: numbers from one row panel of p to the next */
    int32_t p_parts;      /* bf16: numbers that make up a probability */
    size_t task, q, k_block, v_block, s, mask, row, stream, tile_sum, fixed, acc[2]; /* byte offsets */
    size_t p_pairs, o_copy, no_row, no_row_bytes;                                    /* bf16 */
    size_t o_bytes;                                                                  /* o of one row panel */
    size_t slot_peaks, slot_scores;                                                  /* byte offsets in a slot */
    bool has_fixed;
    size_t worker_bytes;
    size_t slot_bytes;
} mla_layout;

/* arithmetic: what the plan has chosen. split_keys: chunk length. */
mla_layout mla_layout_make(const mla_cpu_kernels *kernels, const mla_problem *problem, const mla_shape *shape,
                           mla_arithmetic arithmetic, int64_t split_keys);

/* Is qk_descale for a part of the columns only, so that scores are summed in two parts? */
bool mla_nope_apart(const mla_problem *problem, const mla_shape *shape);

/* Everything constant over a run. */
typedef struct mla_run_context {
    const mla_plan *plan;
    const mla_problem *problem;
    const mla_shape *shape;
    const mla_cpu_kernels *kernels;
    mla_layout layout;
    char *scratch;    /* [n_worker][worker_bytes] */
    char *slots;      /* [n_slot][slot_bytes] */
    mla_share *share; /* [n_worker] */
} mla_run_context;

/* Before a worker's first item. Its scratch then remembers from item to item whose queries are packed. */
void mla_tile_begin(const mla_run_context *run, int64_t worker);

/* A worker computes one work item; of a chunk item of rounded probabilities, the scores. `next` is the item that it goes on
 * with, for prefetching; NULL: not known yet. */
void mla_tile_item(const mla_run_context *run, const mla_work_item *item, const mla_work_item *next, int64_t worker);

/* A worker without an item of its own computes a chunk of another's whole item. False: there is none for it. */
bool mla_tile_help(const mla_run_context *run, int64_t worker);

/* The second pass over a chunk item of rounded probabilities. */
void mla_tile_second_pass(const mla_run_context *run, const mla_work_item *item, int64_t worker);

/* Folds the slots of one combine item and writes its rows: of their columns the part number `part` of n_part, at most
 * layout.n_v_panel. */
void mla_tile_combine(const mla_run_context *run, const mla_combine_item *item, int64_t part, int64_t n_part);

#endif
