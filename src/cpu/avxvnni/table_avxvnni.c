/*
 * table_avxvnni.c - AVX2 with the products of AVX-VNNI: they serve fixed point, all else is AVX2's. Data only: nothing
 * here runs.
 */
#include "cpu/avx2/tables_avx2.h"
#include "tables_avxvnni.h"

static const mla_fixed_kernels fixed = {MLA_AVX2_FIXED, .qk = mla_fixed_qk_i16_avxvnni, .pv = mla_fixed_pv_i16_avxvnni};

const mla_cpu_kernels mla_kernels_avxvnni = {.isa = "avxvnni", MLA_AVX2_TABLE, .fixed = &fixed};
