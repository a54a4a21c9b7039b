/*
 * paged_case.h - a synthetic decode step over a paged cache, shaped like the ones that inference engines issue. Used by
 * `demo` and `bench`; the random problems of `check` are meaner (random_case.h).
 */
#ifndef MLA_CLI_PAGED_CASE_H
#define MLA_CLI_PAGED_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "mla/mla.h"

/* 1/sqrt(192) * (0.1 ln 40 + 1)^2: DeepSeek-V3's scale, for rows of 128 + 64 and YaRN by 40 */
#define DEEPSEEK_V3_SCALE 0.13523378f
/* of absorbed query elements: scores then spread by 2 to 3 units at d = 576 and V3's scale */
#define PAGED_QUERY_SPREAD 0.7f

typedef struct paged_shape {
    int64_t n_seq, n_q, n_head, d_k, d_v, page_size;
    int64_t n_key; /* per request; ragged: about that many, between 3/4 and 5/4 of it */
    bool ragged, causal;
    mla_dtype dtype;
} paged_shape;

typedef struct paged_case {
    paged_shape shape;
    int64_t n_page;   /* of one copy of the cache */
    int64_t max_page; /* columns of the page table */
    int64_t n_copy;   /* of the cache, so that repeated calls find their keys in memory and not in a cache of the CPU */
    size_t copy_bytes;
    void *q;     /* [n_seq][n_q][n_head][d_k] */
    char *cache; /* [copy][page][slot][d_k] */
    int32_t *page_table, *length;
    void *o;      /* [n_seq][n_q][n_head][d_v], room for fp32 */
    float *lse;   /* [n_seq][n_q][n_head] */
    double pairs; /* query-key pairs that see each other */
    double keys;  /* in all requests */
} paged_case;

/* Bytes that paged_case_make() will ask for. */
double paged_case_bytes(const paged_shape *shape, int64_t n_copy);

/* Fills everything with data like a trained model's: normalised latent rows, scores a few units apart, permuted
 * pages. The same seed gives the same case. false: no memory. */
bool paged_case_make(const paged_shape *shape, int64_t n_copy, uint64_t seed, paged_case *c);
void paged_case_release(paged_case *c);

/* The problem over one copy of the cache; o in o_dtype. */
mla_problem paged_case_problem(const paged_case *c, int64_t copy, mla_dtype o_dtype);

/* The same with only every `stride`-th head: small enough for the oracle, and views into the same memory. */
mla_problem paged_case_sample(const mla_problem *problem, int64_t stride);

/* As everybody counts them: 2 (d_k + d_v) per head and pair; the unique key rows. */
double paged_case_flops(const paged_case *c);
double paged_case_key_bytes(const paged_case *c);

#endif
