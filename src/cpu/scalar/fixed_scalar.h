/*
 * fixed_scalar.h - what the files of the scalar level share.
 */
#ifndef MLA_CPU_FIXED_SCALAR_H
#define MLA_CPU_FIXED_SCALAR_H

#include "cpu/kernels_fixed.h"

#define MLA_SCALAR_COL_PANEL 16

extern const mla_fixed_kernels mla_fixed_kernels_scalar;

#endif
