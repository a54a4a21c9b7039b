/*
 * panel.h - the steps of the way by panels: a block of keys converted, scored by all row panels, and its values added up.
 */
#ifndef MLA_CPU_PANEL_H
#define MLA_CPU_PANEL_H

#include "task.h"

/* What of a block is converted. Keys bring those values along that are their own first columns. */
typedef enum mla_panel_load { MLA_LOAD_KEYS = 1, MLA_LOAD_VALUES = 2 } mla_panel_load;

void mla_panel_load_block(const mla_task_state *t, int32_t g, const mla_key_rows *rows, unsigned what);

/* A plan to fetch the rows of `next` a few lines per step, while the panels go through a block; `passes` of the two over
 * keys and values. */
mla_prefetch mla_panel_prefetch(const mla_task_state *t, int32_t g, const mla_key_rows *next, unsigned passes);

/* Raw scores of the block in all panels: s [row panel][key][16], panels s_stride floats apart. */
void mla_panel_scores(const mla_task_state *t, int64_t n_key, float *s, int64_t s_stride, mla_prefetch *ahead);

/* The block's additive mask for one row panel, [key][16] in base-2 units, or NULL. */
const float *mla_panel_mask(const mla_task_state *t, int32_t g, const mla_key_rows *rows, int64_t panel);

/* s of one panel, raw scores of the block, becomes probabilities; where the panel's maximum grew, o is rescaled. */
void mla_panel_softmax(mla_task_state *t, int32_t g, const mla_key_rows *rows, bool partial, int64_t panel, float *s,
                       const mla_panel_result *result);

/* The keys of the block that every row sees, [begin, end); with a mask any may be hidden from some row. */
void mla_panel_seen_by_all(const mla_task_state *t, bool masked, int64_t n_key, int64_t *begin, int64_t *end);

/* Must rows be kept apart, because a value that some row may not see is not finite? After mla_task_place_ranges(), which
 * returned `partial`. */
bool mla_panel_apart(const mla_task_state *t, int32_t g, const mla_key_rows *rows, bool partial);

/* o += p v for one row panel and the column panel that begins at column c. */
void mla_panel_values(const mla_task_state *t, int32_t g, const mla_key_rows *rows, bool apart, int64_t panel,
                      int64_t c, const float *p, float *o, mla_prefetch *ahead);

#endif
