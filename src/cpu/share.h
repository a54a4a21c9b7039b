/*
 * share.h - the chunks of a whole item, taken from both ends: from the front by the worker that has the item, from the back
 * by workers that have nothing left to do.
 *
 * Processors do not run at one speed (neighbours on a core, heat, kinds of cores), so that equal shares end at different
 * times. A row's result is the fold of its chunks in order, whoever computes them; so a worker that helps leaves its chunk's
 * partial result in memory of its own, and the item's owner folds those when it has come that far. No bit moves.
 */
#ifndef MLA_CPU_SHARE_H
#define MLA_CPU_SHARE_H

#include <stdatomic.h>

#include "core/plan.h"

#define MLA_SPARES 2 /* partial results that a helper can have waiting to be folded */

/* One for each worker, side by side in an array; workers are named by their index. */
typedef struct mla_share {
    _Alignas(64) atomic_uint_fast64_t left; /* chunks that nobody has taken: first | end << 32 */
    const mla_work_item *item;              /* of those chunks */
    _Alignas(64)
        atomic_uint_fast64_t spare[MLA_SPARES]; /* 0: free; else (owner + 1) << 32 | chunk, there to be folded */
} mla_share;

/* Before the workers begin. */
void mla_share_init(mla_share *share, int64_t n_worker);

/* The owner begins an item, and has taken its first chunk already. */
void mla_share_open(mla_share *own, const mla_work_item *item, int64_t n_chunk);

/* Does the owner get its next chunk? If not, that and all behind it are computed by others. */
bool mla_share_next(mla_share *own, int64_t chunk);

/* Waits until another worker has computed a chunk of the owner's item; where its partial result is: worker * MLA_SPARES + spare.
 * mla_share_folded() gives it back. */
int64_t mla_share_wait(const mla_share *share, int64_t n_worker, int64_t owner, int64_t chunk);
void mla_share_folded(mla_share *share, int64_t place);

/* The last chunk of what a worker has open; -1: there is none. The item stays what it is until the chunk is handed in. */
int64_t mla_share_take(mla_share *other);
void mla_share_hand_in(mla_share *own, int64_t spare, int64_t owner, int64_t chunk);

/* The worker's own spare that is free; -1: none is. */
int64_t mla_share_spare(const mla_share *own);

#endif
