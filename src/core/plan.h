/*
 * plan.h - who computes what.
 *
 * A *task* is a block of rows of one (sequence, kv head) pair. A *row* is one (query token, query head): row
 * r = token_in_seq * group + head_in_group. All rows of a task read the same keys, so a key is loaded once for all of
 * them.
 *
 * Keys are counted in index space: positions of the sequence for a range, places in the list for a list. Index space is
 * cut at every multiple of `split_keys`, counted from 0, into *chunks*. A row's result is defined as the fold, in
 * order, of its chunks' partial results; so its bits depend on the row's own visible keys alone, never on threads,
 * batch mates, pages, or on who computes a chunk. An item is therefore either
 *
 *     whole    all chunks of a task, folded by the worker itself, result written directly (slot -1), or
 *     a chunk  one chunk of one segment, left in a slot; a combine item folds the slots in chunk order. It has all rows of
 *              the task or some row panels of them: a task's last chunks may be shared out by rows too.
 *
 * Large batches get whole items only and need no slots; a few long sequences are cut into chunks to feed all workers.
 *
 * Probabilities that are rounded depend on the keys before them, through the running maximum. Chunks are then counted
 * from the first key that a row sees (geometry.from_first_key), a list's after it has lost what names no visible key, and
 * chunk items are run in two passes: first the scores of all chunks, then, each from the largest score of the chunks
 * before it, their partial results. The fold is the same.
 */
#ifndef MLA_CORE_PLAN_H
#define MLA_CORE_PLAN_H

#include "backend.h"

typedef struct mla_work_item {
    int64_t seq;
    int64_t row_begin, row_end; /* rows of this (seq, kv_head) */
    int32_t kv_head;
    int32_t segment;          /* -1: whole */
    int64_t kv_begin, kv_end; /* index space, a single chunk; 0, 0 when whole */
    int64_t slot;             /* first panel slot this item writes, one per row panel; -1: writes the output */
    int64_t task_slot;        /* slot of the task's first chunk */
    int64_t cost;             /* for ordering */
} mla_work_item;

typedef struct mla_combine_item {
    int64_t seq;
    int64_t row_begin, row_end; /* one row panel */
    int32_t kv_head;
    int64_t slot_begin; /* slots slot_begin + i * slot_stride, i in [0, slot_count), in fold order */
    int64_t slot_stride;
    int64_t slot_count;
} mla_combine_item;

/* What a backend asks of the planner. */
typedef struct mla_plan_geometry {
    int64_t split_keys;  /* chunk length, a multiple of the backend's key block */
    int64_t row_panel;   /* rows that share a slot */
    size_t slot_bytes;   /* of one */
    int64_t max_rows;    /* rows of a task, a multiple of row_panel */
    int64_t key_cost;    /* what bringing a key into the kernels' form costs, in rows that meet it */
    bool from_first_key; /* chunks are counted from the first visible key, which the rows of a task share */
} mla_plan_geometry;

struct mla_plan {
    const mla_backend_ops *backend;
    const void *kernels;  /* the backend's kernel table, fixed when the plan is built; CUDA: the variant */
    const void *device;   /* CUDA: the GPU */
    bool batch_invariant; /* CUDA: asked for; on CPUs it holds anyway */
    void *function[4];    /* CUDA: what the variant launches */
    int64_t number[8];    /* CUDA: the variant's own */
    const char *isa;
    mla_arithmetic arithmetic; /* what is computed in: not AUTO */
    mla_executor executor;
    bool host_executor; /* executor was lent by the caller */
    int32_t n_worker;
    mla_plan_geometry geometry;
    int64_t n_item, n_combine, n_slot;
    mla_work_item *item;
    mla_combine_item *combine;
    size_t worker_bytes; /* scratch of one worker */
    size_t workspace_bytes;
    uint64_t fingerprint;
};

/* Fills item[] and combine[] for plan->n_worker workers; plan->geometry must be set, and the problem have query tokens. */
mla_status mla_plan_fill(const mla_problem *problem, const mla_shape *shape, mla_plan *plan);

/* What a worker should at least have to do. Only tests write it, so that small problems are shared out too. */
extern int64_t mla_plan_worker_cost;

/* Hash of everything that plan contents depend on: sizes, how inputs are stored, rules, and the values of lengths and
 * begins. */
uint64_t mla_plan_fingerprint(const mla_problem *problem, const mla_shape *shape);

/* Visible range of one row in segment g: [*begin, *end) in index space. */
void mla_index_range(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t seq, int64_t token,
                     int64_t *begin, int64_t *end);

#endif
