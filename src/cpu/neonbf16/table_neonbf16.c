/*
 * table_neonbf16.c - NEON with products of bf16 pairs. Data only: nothing here runs.
 */
#include "cpu/neon/tables_neon.h"
#include "tables_neonbf16.h"

const mla_cpu_kernels mla_kernels_neonbf16 = {
    .isa = "neonbf16",
    MLA_NEON_TABLE,
    .bf16 = {.qpairs = mla_qpairs_bf16_neonbf16,
             .vpairs = mla_vpairs_bf16_neonbf16,
             .ppairs = mla_ppairs_bf16_neonbf16,
             .qk = mla_qk_bf16_neonbf16,
             .pv = mla_pv_bf16_neonbf16},
};
