/*
 * cuda_debug.h - MLA_DEBUG=1: a look at the numbers inside index tensors before each run.
 */
#ifndef MLA_CUDA_DEBUG_H
#define MLA_CUDA_DEBUG_H

#include "core/shape.h"

/* Does nothing unless the environment says MLA_DEBUG=1. Then it copies lengths, begins, page tables and lists to the
 * host, after all work of the stream, and waits for them; so it is not for a stream that is captured. OUT_OF_RANGE, with
 * the checker's sentence, for the first number that a problem in host memory would be refused for, and for a list entry
 * that no key of any length could have. */
mla_status mla_cuda_inspect(const mla_problem *problem, const mla_shape *shape, void *stream);

#endif
