/*
 * rival.h - the best attention that can be composed from a BLAS: what a good engineer would write without this library.
 *
 * Per block of keys: rows to fp32, sgemm for the scores, a vector softmax that rescales only when the maximum has grown
 * by more than 2^8, sgemm for the values. Keys are shared out over the threads, one single-threaded BLAS each (a BLAS
 * that threads each small product itself is slower), and partial results merged. Block length is tuned per shape.
 * Arithmetic and accumulation are fp32, as ours: the same class of accuracy, and every use checks the results against
 * each other. Beside ours in bf16 a third one multiplies bf16 matrices, with fp32 in between.
 *
 * OpenBLAS and oneDNN are opened at run time, when they are installed; the build needs neither.
 */
#ifndef MLA_BENCH_RIVAL_H
#define MLA_BENCH_RIVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench_pool.h"

/* The last one is for machines with units that multiply bf16: keys as they are, probabilities rounded to bf16. */
typedef enum rival_blas { RIVAL_OPENBLAS, RIVAL_ONEDNN, RIVAL_ONEDNN_BF16 } rival_blas;

typedef struct rival rival;

/*
 * Opens a BLAS, its instruction set limited to `isa` ("avx2", ...), or to what it chooses itself when `isa` is NULL.
 * The limit is a matter of environment variables that a BLAS reads once, so all opens of a process must agree. NULL
 * with a sentence when it is not installed or the machine lacks AVX2, which the code around the BLAS needs.
 */
rival *rival_open(rival_blas blas, const char *isa, char *why, size_t why_size);
void rival_close(rival *r); /* NULL is fine; the BLAS itself stays loaded */

const char *rival_name(const rival *r);   /* "OpenBLAS" */
bool rival_rounds(const rival *r);        /* are probabilities rounded to bf16? */
const char *rival_detail(const rival *r); /* "0.3.21, Haswell kernels" */

/* One decode step, over the same memory as ours: bf16 or fp16, one kv head. */
typedef struct rival_task {
    int64_t n_seq, n_q, n_head, d_k, d_v, page_size, max_page;
    bool causal, f16;
    float scale;
    const uint16_t *q;         /* [n_seq][n_q][n_head][d_k] */
    const uint16_t *cache;     /* [page][slot][d_k] */
    const int32_t *page_table; /* [n_seq][max_page] */
    const int32_t *length;     /* [n_seq], >= 1 */
    float *o;                  /* [n_seq][n_q][n_head][d_v] */
} rival_task;

/* Memory for tasks of this shape on this pool, and the block length that is fastest for them. false: no memory. */
bool rival_prepare(rival *r, bench_pool *pool, const rival_task *task);
int64_t rival_block(const rival *r);

void rival_run(rival *r, bench_pool *pool, const rival_task *task);

/* ---- the loops, built with AVX2, FMA and F16C -------------------------------------------------------------------- */

/* n elements of fp16 or bf16 to fp32, times a factor. */
void rival_widen_avx2(const uint16_t *from, int64_t n, bool f16, float factor, float *to);

/*
 * One row of scores in powers of two, n of them: turns them into probabilities against the running maximum *m, adds
 * them to *l, and brings o [d_v] to a new maximum when that has grown by more than 8.
 */
void rival_softmax_avx2(float *score, int64_t n, float *m, float *l, float *o, int64_t d_v);

/* o += factor * from, or o = factor * from */
void rival_add_avx2(float *o, const float *from, int64_t n, float factor, bool first);

#endif
