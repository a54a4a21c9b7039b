/*
 * task.h - the state of one worker while it computes one item, shared by the ways of doing so: by panels (panel.c), tile
 * by tile where probabilities are rounded (panel_rounded.c), through bf16 units (panel_bf16.c), and by streaming
 * (stream.c).
 */
#ifndef MLA_CPU_TASK_H
#define MLA_CPU_TASK_H

#include "rows.h"
#include "tile_loop.h"

typedef struct mla_task {
    const mla_run_context *run;
    const mla_work_item *item;
    int64_t worker;
    int64_t n_row, n_panel;
    bool stream;                      /* few rows: keys are used where they lie */
    struct mla_fixed_state *fixed;    /* panels in fixed point; NULL: not asked for or not offered */
    bool nope_apart;                  /* qk_descale is for the nope part alone: scores are summed in two parts */
    float *q;                         /* panels: [row panel][d_k][16] */
    float *k_block, *v_block;         /* panels: [col panel][key][col_panel] */
    float *s;                         /* panels: [row panel][key][16], of one block or of one tile */
    float *tile_sum;                  /* p of int8: sums of one tile, before they are scaled */
    float *mask;                      /* panels: [key][16] of one row panel */
    float *stream_q, *stream_o;       /* stream: [row][column], in the order of the format */
    bool bf16;                        /* many rows, in that arithmetic */
    uint16_t *q_pairs, *v_pairs;      /* bf16: operands, see kernels.h */
    uint16_t *p_pairs;                /* bf16: [row panel][p_stride] */
    uint16_t *k_copy;                 /* bf16: key tiles that cannot be used where they lie */
    const void *no_row;               /* bf16: a row of zeros, as long as any */
    float *o_copy;                    /* bf16: accumulators of a panel whose rows are kept apart */
    mla_key_rows *rows[2];            /* the block, or the blocks of a tile, at hand and the next */
    double packed_descale;            /* descale of the segment that the item's queries are packed for; NaN: none yet */
    float scale[MLA_TASK_ROWS];       /* what row's scale in that segment keeps beside its power of two, base-2 units */
    float nope_factor[MLA_TASK_ROWS]; /* with nope_apart */
    int64_t begin[MLA_TASK_ROWS];     /* visible range of each row in the segment at hand, index space */
    int64_t end[MLA_TASK_ROWS];
    int32_t block_begin[MLA_TASK_ROWS]; /* the same, as places in the block at hand */
    int32_t block_end[MLA_TASK_ROWS];
} mla_task_state;

/* Base-2 logarithm of e, for scores that are exponentiated in base 2. */
#define MLA_LOG2_E 1.44269504088896340736

mla_format mla_format_of(mla_dtype dtype);

/* Element i of an optional f32 [n] tensor, 1 when it is absent. */
float mla_factor_at(const mla_tensor *t, int64_t i);

/* Token (within its sequence) and query head of the task's row i. */
static inline int64_t mla_task_token(const mla_task_state *t, int64_t i)
{
    return (t->item->row_begin + i) / t->run->shape->group;
}

static inline int64_t mla_task_head(const mla_task_state *t, int64_t i)
{
    return t->item->kv_head * t->run->shape->group + (t->item->row_begin + i) % t->run->shape->group;
}

/* Rows of the whole sequence per kv head, not of the item: the ways differ in bits, and bits may not depend on the plan. */
static inline int64_t mla_task_sequence_rows(const mla_task_state *t)
{
    return mla_query_slots(t->run->problem, t->run->shape, t->item->seq) * t->run->shape->group;
}

/* Rows of panel `panel` in use, 1..16. */
int32_t mla_task_panel_rows(const mla_task_state *t, int64_t panel);

/*
 * Splits the scale of row i, the descale of the segment included and, unless nope_apart, qk_descale, into a power of two,
 * returned, and the rest, left in scale[i]. The power of two goes into q, where it is exact and keeps q.k far from overflow; the rest waits for the
 * finished score: one rounding in all.
 */
float mla_task_split_scale(mla_task_state *t, int64_t i, double descale);

/* Addresses of q and, when it is a tensor of its own (else NULL), q_rope of row i. */
void mla_task_query(const mla_task_state *t, int64_t i, const void **q, const void **q_rope);

/* Visible ranges of all rows in segment g; their union in *begin, *end (empty: begin > end). */
void mla_task_find_ranges(mla_task_state *t, int32_t g, int64_t *begin, int64_t *end);

/* Where these ranges lie among the keys of a block; returns whether some row does not see all of it. */
bool mla_task_place_ranges(mla_task_state *t, const mla_key_rows *rows, bool list);

/* Does row i see key n of the block? After mla_task_place_ranges(). */
bool mla_task_sees(const mla_task_state *t, int32_t g, const mla_key_rows *rows, int64_t i, int64_t n);

/* Additive mask of row i at the block's key n, base-2 units; 0 where the row does not see the key. */
float mla_task_mask_at(const mla_task_state *t, const mla_tensor *mask, const mla_key_rows *rows, int64_t i, int64_t n);

/* ---- the ways ---------------------------------------------------------------------------------------------------- */

/* Reads the task's queries for segment g, unless they are there already. */
void mla_task_pack(mla_task_state *t, int32_t g);
/* The same for a segment of this descale. */
void mla_panel_pack(mla_task_state *t, double descale);
void mla_bf16_pack(mla_task_state *t, double descale);
void mla_stream_pack(mla_task_state *t, double descale);

/* Adds one block of keys of segment g to result[]; `next` is the block after it, for prefetching (n_key 0: none). */
void mla_panel_attend(mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                      const mla_panel_result *result);
void mla_bf16_attend(mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                     const mla_panel_result *result);
void mla_stream_attend(mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                       const mla_panel_result *result);

/* Probabilities that are rounded, tile by tile: a whole item, with its result in result[0]; one pass over a chunk item,
 * first the scores, then, when the scores of all chunks of the task are there, its partial result. */
bool mla_rounded_whole(mla_task_state *t, mla_panel_result result[2][MLA_TASK_PANELS]); /* were there any chunks? */
void mla_rounded_chunk_scores(mla_task_state *t);
void mla_rounded_chunk_values(mla_task_state *t, const mla_panel_result *result);

/* Columns of a packed query: those of nope and of rope, each rounded up to whole steps. */
int64_t mla_bf16_columns(const mla_shape *shape);

/* Can and should the task be streamed? */
bool mla_stream_serves(const mla_task_state *t);

/* Floats from one row to the next in stream_q and stream_o; 0 at a level that cannot stream. */
int64_t mla_stream_stride(const mla_cpu_kernels *kernels, const mla_shape *shape);

/* Stream only, before a block is attended to: addresses of the rows after it, which the kernel fetches, behind its own. */
void mla_stream_continue(const mla_task_state *t, int32_t g, mla_key_rows *rows, const mla_key_rows *next);

/* Stream only, around a chunk of segment g: empties the accumulators; moves them into the result. */
void mla_stream_begin(mla_task_state *t);
void mla_stream_end(mla_task_state *t, int32_t g, const mla_panel_result *result);

#endif
