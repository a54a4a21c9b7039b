/*
 * gpu_problem.h - a problem in host memory, run on the first GPU: its twin in device memory.
 */
#ifndef MLA_CLI_GPU_PROBLEM_H
#define MLA_CLI_GPU_PROBLEM_H

#include "mla/mla.h"

typedef struct gpu_problem gpu_problem;

/* Copies every tensor. On success *twin is to be released; else NULL. */
mla_status gpu_problem_make(const mla_problem *host, gpu_problem **twin);
const mla_problem *gpu_problem_of(const gpu_problem *twin);

/* Brings the outputs back to where the host's problem has them. */
mla_status gpu_problem_fetch(const gpu_problem *twin);
void gpu_problem_release(gpu_problem *twin); /* NULL is fine */

/* mla_attention() on the GPU: all of the above, and what it computes in. */
mla_status gpu_attention(const mla_problem *host, mla_arithmetic *arithmetic);

#endif
