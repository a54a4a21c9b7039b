/*
 * cases.h - the tools that the fault reports are retold with.
 */
#ifndef CHECKKERNEL_CASES_H
#define CHECKKERNEL_CASES_H

#include "checkkernel.h"

typedef struct case_shape {
    int64_t b, s_q, h_q, h_kv, page;
    bool causal;
    int64_t d_k, d_v; /* 0: 576, 512 */
    mla_dtype dtype;  /* 0: bf16, of q, cache and o */
} case_shape;

/* A paged call with q = 0, every column of token t equal to t, pages 0, 1, 2, ... in order, a table just wide enough
 * whose unused entries are -1, and NaN in all slots behind a sequence's end. length [b] */
mla_problem case_dense(const case_shape *shape, const int32_t *length);

void case_run(const mla_problem *p);
/* The subject refuses the problem with this status and leaves the outputs alone. */
void case_expect_refused(const mla_problem *p, mla_status expected);
/* All heads and columns of token i of sequence s hold o; lse within rounding. */
void case_expect(const mla_problem *p, int64_t s, int64_t i, double o, double lse);
/* ... hold the mean of the token numbers first, first + 1, ... first + n - 1, and ln n. n = 0: a row without keys. */
void case_expect_mean(const mla_problem *p, int64_t s, int64_t i, int64_t first, int64_t n);

/* A one-dimensional index tensor. */
mla_tensor case_i32(const char *name, int64_t n, const int32_t *value);
/* n elements from `at` on. */
void case_fill(const mla_tensor *t, int64_t at, int64_t n, double value);

extern const ck_test ck_case_value_tests[], ck_case_range_tests[], ck_case_large_tests[];

#endif
