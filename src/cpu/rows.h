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
    int64_t lead; /* places of the block before the first of them, whose keys are not wanted */
    /* of pieces (core/shape.h): the first one */
    const void *k[MLA_KEY_ROWS];
    const void *rope[MLA_KEY_ROWS]; /* when k_rope is a tensor of its own */
    const void *v[MLA_KEY_ROWS];    /* when v is */
    int64_t position[MLA_KEY_ROWS]; /* in the sequence, as masks are indexed; of a PHYSICAL list: place in it */
} mla_key_rows;

/*
 * Finds the rows of [begin, end) in index space, at most MLA_KEY_ROWS of them, for kv_head of sequence seq in segment
 * g. With a list, token says whose list; entries that name no visible key are left out, so fewer rows may come back. In
 * host memory the checker has already refused page ids out of range for ranges; list entries are checked here.
 */
void mla_key_rows_find(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t seq, int64_t token,
                       int64_t kv_head, int64_t begin, int64_t end, mla_key_rows *rows);

/* What is left of a token's keys in a segment, [at, end) in index space, when they are taken a number at a time. */
typedef struct mla_key_cursor {
    int64_t at, end;
} mla_key_cursor;

/* Takes the next n keys, or those that are left: list entries that name no visible key do not count. rows may be NULL:
 * they are only passed over. */
void mla_key_rows_take(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t seq, int64_t token,
                       int64_t kv_head, mla_key_cursor *cursor, int64_t n, mla_key_rows *rows);

#endif
