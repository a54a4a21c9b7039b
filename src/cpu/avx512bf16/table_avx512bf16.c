/*
 * table_avx512bf16.c - AVX-512 with products of bf16 pairs. Data only: nothing here runs.
 */
#include "cpu/avx2/tables_avx2.h"
#include "cpu/avx512/tables_avx512.h"
#include "tables_avx512bf16.h"

const mla_cpu_kernels mla_kernels_avx512bf16 = {
    .isa = "avx512bf16",
    MLA_AVX512_TABLE,
    .bf16 = {.qpairs = mla_qpairs_bf16_avx512bf16,
             .vpairs = mla_vpairs_bf16_avx512bf16,
             .ppairs = mla_ppairs_bf16_avx512bf16,
             .qk = mla_qk_bf16_avx512bf16,
             .pv = mla_pv_bf16_avx512bf16},
};
