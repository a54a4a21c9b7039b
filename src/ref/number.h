/*
 * number.h - the oracle's own reading and writing of stored numbers. Shares nothing with the kernels it judges.
 */
#ifndef MLA_REF_NUMBER_H
#define MLA_REF_NUMBER_H

#include <stdint.h>

#include "mla/mla_types.h"

/* row [n]: elements [index, index + n) of an array of f32, f16, bf16, hif8 or i8, exactly. */
void mla_ref_load_row(const void *data, mla_dtype dtype, int64_t index, int64_t n, double *row);
double mla_ref_load(const void *data, mla_dtype dtype, int64_t index);

/* Bits of `value` rounded once: to nearest even for f32, f16, bf16 and i8, which has no numbers beyond -128 .. 127; to
 * nearest, ties away from zero, for hif8. A NaN gives the quiet NaN of its sign, hif8's only one, and 0 in i8. */
uint32_t mla_ref_encode(mla_dtype dtype, double value);

/* The number that bits of these dtypes stand for, exactly. */
double mla_ref_decode(mla_dtype dtype, uint32_t bits);

/* Element `index` = encode(value). */
void mla_ref_store(void *data, mla_dtype dtype, int64_t index, double value);

#endif
