/*
 * table_neon.c - the NEON level. Data only: nothing here runs.
 */
#include "tables_neon.h"

const mla_cpu_kernels mla_kernels_neon = {
    .isa = "neon",
    MLA_NEON_TABLE,
};
