/*
 * table_amx.c - AVX-512 with tiles of bf16. Data only: nothing here runs.
 */
#include "cpu/avx2/tables_avx2.h"
#include "cpu/avx512/tables_avx512.h"
#include "cpu/avx512bf16/tables_avx512bf16.h"
#include "cpu/features.h"
#include "tables_amx.h"

const mla_cpu_kernels mla_kernels_amx = {
    .isa = "amx",
    MLA_AVX512_TABLE,
    .bf16 = {.qpairs = mla_qpairs_bf16_avx512bf16,
             .vpairs = mla_vpairs_bf16_avx512bf16,
             .ppairs = mla_ppairs_bf16_avx512bf16,
             .qk = mla_qk_bf16_amx,
             .pv = mla_pv_bf16_amx,
             .vpairs_pv = mla_vpairs_pv_bf16_amx,
             .faster = true,
             .permitted = mla_cpu_tiles_granted,
             .enter = mla_enter_amx,
             .leave = mla_leave_amx},
};
