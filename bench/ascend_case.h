/*
 * ascend_case.h - decode steps in the formats of Ascend's operators, as their doors lower them, over synthetic caches.
 *
 * Each has as many keys per request, and as wide, as a plain paged shape (paged_case.h), so that the two can be compared.
 */
#ifndef MLA_BENCH_ASCEND_CASE_H
#define MLA_BENCH_ASCEND_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "paged_case.h"

/* CANN's QuantSparseFlashMla: q and keys HiFloat8, probabilities rounded to it, blocks of 128 tokens, and of every
 * request a window of 128 tokens beside compressed keys. ATB's AtbMLA: rope apart, blocks of 128 tokens. */
typedef enum ascend_kind {
    ASCEND_NONE = 0,          /* not of Ascend */
    ASCEND_CSA,               /* the other keys: chosen by a list, out of four times as many */
    ASCEND_HCA,               /* the other keys: all that there are */
    ASCEND_ATB_ROPE_APART,    /* cache mode 1, bf16 */
    ASCEND_ATB_INT8_NZ_TILE1, /* cache mode 2: int8 in FRACTAL_NZ, int8 probabilities in tiles of one block */
    ASCEND_ATB_INT8_NZ_TILE4, /* ... of four blocks */
    ASCEND_ATB_NZ             /* cache mode 3: bf16 in FRACTAL_NZ */
} ascend_kind;

/* "cann csa", "atb cm1", ... */
const char *ascend_kind_name(ascend_kind kind);

/* The dtype of the keys without their rope part. */
mla_dtype ascend_kind_dtype(ascend_kind kind);

typedef struct ascend_case {
    ascend_kind kind;
    paged_shape shape; /* what it is equal to: n_seq, n_head, d_k, d_v and n_key count */
    mla_problem problem;
    void *wide_o; /* room for an o in fp32 */
    void *owned[32];
    int32_t n_owned;
    double key_bytes; /* of the keys that are visible */
} ascend_case;

/* Bytes that ascend_case_make() will ask for, about. */
double ascend_case_bytes(ascend_kind kind, const paged_shape *shape);

/* The same seed gives the same case; false, with a sentence in mla_last_error(): no memory, or the door refuses it. */
bool ascend_case_make(ascend_kind kind, const paged_shape *shape, uint64_t seed, ascend_case *c);
void ascend_case_release(ascend_case *c);

/* `problem`, which is c's but for its outputs, with only every `stride`-th head; factors per head are copied, and the
 * copies belong to c. */
mla_problem ascend_case_sample(ascend_case *c, const mla_problem *problem, int64_t stride);

#endif
