/*
 * tables_amx.h - the AMX kernels by name. Contracts: cpu/kernels.h.
 */
#ifndef MLA_CPU_TABLES_AMX_H
#define MLA_CPU_TABLES_AMX_H

#include "cpu/kernels.h"

void mla_enter_amx(void);
void mla_leave_amx(void);
void mla_qk_bf16_amx(const uint16_t *q, int64_t q_stride, const mla_key_tile *tile, int64_t n_tile, int64_t n_col,
                     int64_t n_panel, bool accumulate, float *s, int64_t s_stride, mla_prefetch *ahead);
void mla_pv_bf16_amx(const uint16_t *p, int64_t p_stride, int32_t n_part, const uint16_t *v, int64_t v_stride,
                     int64_t n_key, int64_t n_panel, int64_t n_col, float *const *o, mla_prefetch *ahead);
void mla_vpairs_pv_bf16_amx(const uint16_t *p, int64_t p_stride, int32_t n_part, const void *const *row, int64_t n_key,
                            int64_t n_panel, int64_t n_col, float *const *o, uint16_t *v, mla_prefetch *ahead);

#endif
