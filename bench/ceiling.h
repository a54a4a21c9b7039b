/*
 * ceiling.h - what this machine can do at best, measured next to whatever is compared with it: multiply-adds and reads.
 */
#ifndef MLA_BENCH_CEILING_H
#define MLA_BENCH_CEILING_H

#include <stddef.h>
#include <stdint.h>

#include "bench_pool.h"

/* GFLOP/s of independent fp32 multiply-adds in registers with the vectors of an ISA level ("avx2", "avx512", ...),
 * on all threads of the pool, measured for about `seconds`. */
double ceiling_flops(bench_pool *pool, const char *isa, double seconds);

/* What ceiling_flops() measures for a level: "256-bit FMA". */
const char *ceiling_name(const char *isa);

/* GB/s of reading `bytes` from `data` once, front to back, each thread a part of its own. */
double ceiling_read(bench_pool *pool, const void *data, size_t bytes);

/* ---- the loops; built with the flags their names say, called after a look at the machine ------------------------- */

/* Runs `rounds` rounds of independent multiply-adds; returns the floating point operations done. */
double ceiling_fma_avx2(int64_t rounds);
double ceiling_fma_avx512(int64_t rounds);
double ceiling_fma_neon(int64_t rounds);

/* Reads bytes, a multiple of 512, from an address aligned to 32. */
void ceiling_read_avx2(const void *data, size_t bytes);
void ceiling_read_neon(const void *data, size_t bytes);

#endif
