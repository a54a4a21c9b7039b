/*
 * broken_attention.h - what the parts of the self-test's own attention share.
 */
#ifndef CHECKKERNEL_BROKEN_ATTENTION_H
#define CHECKKERNEL_BROKEN_ATTENTION_H

#include "broken.h"
#include "checkkernel.h"

#define CK_BROKEN_TILE 64

typedef struct ck_broken {
    const mla_problem *p;
    mla_shape shape;
    ck_bug bug;
    int64_t split;
    float *q, *k;        /* [d_k], eight spare */
    float *v;            /* [CK_BROKEN_TILE or p_tile][d_v] */
    float *part, *total; /* [d_v] */
} ck_broken;

typedef struct ck_broken_state {
    float m, l, max; /* of the keys alone */
    float *o;
    float joined; /* what o is to be divided by when the sink is part of it already; 0: it is not */
} ck_broken_state;

/* ---- numbers: broken_numbers.c ----------------------------------------------------------------------------------- */

float ck_broken_load(ck_bug bug, const mla_tensor *t, int64_t at);
void ck_broken_store(ck_bug bug, const mla_tensor *t, int64_t at, float value);
/* value rounded to f16 or bf16, and back */
float ck_broken_round_16bit(mla_dtype dtype, float value);
/* value >= 0 rounded to HiFloat8, and back */
float ck_broken_round_hif8(float value);

/* ---- keys and scores: broken_attention.c ------------------------------------------------------------------------- */

float ck_broken_factor(const mla_tensor *t, int64_t i);
/* Candidate keys: index space [*begin, *end). */
void ck_broken_candidates(const ck_broken *b, int32_t g, int64_t s, int64_t token, int64_t *begin, int64_t *end);
/* Page, slot and mask column of candidate j; false when it names no visible key. */
bool ck_broken_find_key(const ck_broken *b, int32_t g, int64_t s, int64_t token, int64_t j, int64_t *page,
                        int64_t *slot, int64_t *position);
float ck_broken_mask(const ck_broken *b, int32_t g, int64_t s, int64_t token, int64_t position);
/* Loads a key and scores it, scales and descales included, the mask not; its value goes to v [d_v] as it is stored. */
float ck_broken_score(ck_broken *b, int32_t g, int64_t page, int64_t slot, int64_t h, float *v);

/* ---- rounded probabilities: broken_rounded.c --------------------------------------------------------------------- */

/* All keys of one row; state->o is b->total. */
void ck_broken_rounded_row(ck_broken *b, int64_t s, int64_t token, int64_t h, ck_broken_state *state);

#endif
