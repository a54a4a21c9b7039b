/*
 * table_avx2.c - the AVX2 level: kernels and the sizes they were made for. Data only: nothing here runs.
 */
#include "tables_avx2.h"

static const mla_fixed_kernels fixed = {MLA_AVX2_FIXED, .qk = mla_fixed_qk_i16_avx2, .pv = mla_fixed_pv_i16_avx2};

const mla_cpu_kernels mla_kernels_avx2 = {.isa = "avx2", MLA_AVX2_TABLE, .fixed = &fixed};
