/*
 * strided.h - runs of the innermost dimension of a checked tensor of any strides, as plain numbers.
 */
#ifndef MLA_CPU_STRIDED_H
#define MLA_CPU_STRIDED_H

#include "core/tensor.h"

/* Numbers that helpers hold at once, and how many of them a loop takes in one step: compilers make vectors of a loop of
 * constant length. Buffers have MLA_RUN elements, so that the last step may go past the end of a run. */
#define MLA_RUN 256
#define MLA_RUN_STEP 8

/* Runs of a tensor: the product of all dims but the last. */
int64_t mla_run_count(const mla_tensor *t);

/* Where run `index` (row-major) begins, in elements. */
int64_t mla_run_begin(const mla_tensor *t, int64_t index);

/* x [n]: elements at, at + stride, ... of an f32, f16 or bf16 tensor, exactly; stride is the tensor's last. */
void mla_run_load(const mla_tensor *t, int64_t at, int64_t n, float *x);

/* Elements at, at + stride, ... = x [n], each rounded once, to nearest even. */
void mla_run_store(const mla_tensor *t, int64_t at, int64_t n, const double *x);

#endif
