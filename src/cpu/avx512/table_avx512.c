/*
 * table_avx512.c - the AVX-512 level: kernels and the sizes they were made for. Data only: nothing here runs.
 */
#include "cpu/avx2/tables_avx2.h"
#include "tables_avx512.h"

const mla_cpu_kernels mla_kernels_avx512 = {
    .isa = "avx512",
    MLA_AVX512_TABLE,
};
