/*
 * tables_avxvnni.h - the kernels with AVX-VNNI by name. Contracts: cpu/kernels_fixed.h.
 */
#ifndef MLA_CPU_TABLES_AVXVNNI_H
#define MLA_CPU_TABLES_AVXVNNI_H

#include "cpu/kernels_fixed.h"

void mla_fixed_qk_i16_avxvnni(const int16_t *q, const int16_t *k, int64_t k_stride, int64_t n_pair, int64_t n_key,
                              const float *unit, float *s, mla_prefetch *ahead);
void mla_fixed_pv_i16_avxvnni(const int16_t *p, const int16_t *v, int64_t n_pair, int32_t n_row, int32_t n_col,
                              const float *weight, const float *fold, float *o, mla_prefetch *ahead);

#endif
