/*
 * rival_bf16.h - products of bf16 matrices through oneDNN, for the rival that computes as units for bf16 do: its function for
 * any size, and primitives that are made for one.
 */
#ifndef MLA_BENCH_RIVAL_BF16_H
#define MLA_BENCH_RIVAL_BF16_H

#include <stdbool.h>
#include <stdint.h>

/* c [m][n] = alpha a [m][k] b, or c += that; b is [n][k] when transposed, else [k][n]; c is fp32. */
typedef struct rival_bf16_shape {
    int64_t m, n, k, lda, ldb, ldc;
    float alpha;
    bool transposed, add;
} rival_bf16_shape;

typedef struct rival_bf16 rival_bf16;                 /* the library's functions */
typedef struct rival_bf16_product rival_bf16_product; /* of one shape, for one thread at a time */

/* From an opened libdnnl; NULL: its function for any size is missing. */
rival_bf16 *rival_bf16_open(void *library);
void rival_bf16_close(rival_bf16 *dnnl);

/* With its primitive, if the library's interface is that of oneDNN 2 (else, and without it, through the function). NULL: no
 * memory. */
rival_bf16_product *rival_bf16_make(const rival_bf16 *dnnl, const rival_bf16_shape *shape, bool primitive);
void rival_bf16_drop(rival_bf16_product *product); /* NULL is fine */

/* With n and k at most those of the shape; others than its own go through the function. */
void rival_bf16_multiply(rival_bf16_product *product, int64_t n, int64_t k, uint16_t *a, uint16_t *b, float *c);

/* ---- the loop, built with AVX-512 -------------------------------------------------------------------------------- */

/* As rival_softmax_avx2(), and the probabilities rounded to bf16. Whole vectors of 16 scores are touched. */
void rival_softmax_avx512(float *score, int64_t n, float *m, float *l, float *o, int64_t d_v, uint16_t *p);

#endif
