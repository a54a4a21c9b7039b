/*
 * rows.h - where the keys of a block lie: pages, lists and strides end here, below are plain row addresses.
 */
#ifndef MLA_CPU_ROWS_H
#define MLA_CPU_ROWS_H

#include "core/shape.h"
#include "kernels.h"

/* Addresses of the rows of one key block, and the positions they came from. */
typedef struct mla_key_rows {
    int64_t n_key;
    const void *k[MLA_KEY_BLOCK];
    const void *rope[MLA_KEY_BLOCK]; /* when k_rope is a tensor of its own */
    const void *v[MLA_KEY_BLOCK];    /* when v is */
    int64_t
        position[MLA_KEY_BLOCK]; /* in the sequence, as masks are indexed; with a PHYSICAL list: place in the list */
} mla_key_rows;

/*
 * Finds the rows of [begin, end) in index space, at most MLA_KEY_BLOCK of them, for kv_head of sequence seq in segment
 * g. With a list, token says whose list; entries that name no visible key are left out, so fewer rows may come back. In
 * host memory the checker has already refused page ids out of range for ranges; list entries are checked here.
 */
void mla_key_rows_find(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t seq, int64_t token,
                       int64_t kv_head, int64_t begin, int64_t end, mla_key_rows *rows);

#endif
