/*
 * tables_neonbf16.h - the kernels of the level neonbf16 by name. Contracts: cpu/kernels.h.
 */
#ifndef MLA_CPU_TABLES_NEONBF16_H
#define MLA_CPU_TABLES_NEONBF16_H

#include "cpu/kernels.h"

void mla_qpairs_bf16_neonbf16(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, uint16_t *q);
void mla_vpairs_bf16_neonbf16(const void *const *row, int64_t n_key, int64_t n_col, uint16_t *v, int64_t v_stride);
void mla_ppairs_bf16_neonbf16(const float *from, int64_t n_key, int32_t n_part, uint16_t *p);
void mla_qk_bf16_neonbf16(const uint16_t *q, int64_t q_stride, const mla_key_tile *tile, int64_t n_tile, int64_t n_col,
                          int64_t n_panel, bool accumulate, float *s, int64_t s_stride, mla_prefetch *ahead);
void mla_pv_bf16_neonbf16(const uint16_t *p, int64_t p_stride, int32_t n_part, const uint16_t *v, int64_t v_stride,
                          int64_t n_key, int64_t n_panel, int64_t n_col, float *const *o, mla_prefetch *ahead);

#endif
