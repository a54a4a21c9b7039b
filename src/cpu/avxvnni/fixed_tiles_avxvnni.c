/*
 * fixed_tiles_avxvnni.c - the tiles of fixed point with AVX-VNNI: product of pairs and addition are one instruction, in
 * its VEX form, since a processor may have it without AVX-512.
 */
#define MULTIPLY_ADD(a, b, sum, scratch) "%{vex%} vpdpwssd " a ", " b ", %%ymm" sum "\n\t"

#include "cpu/avx2/fixed_tiles.h"
#include "tables_avxvnni.h"

void mla_fixed_qk_i16_avxvnni(const int16_t *q, const int16_t *k, int64_t k_stride, int64_t n_pair, int64_t n_key,
                              const float *unit, float *s, mla_prefetch *ahead)
{
    fixed_qk(q, k, k_stride, n_pair, n_key, unit, s, ahead);
}

void mla_fixed_pv_i16_avxvnni(const int16_t *p, const int16_t *v, int64_t n_pair, int32_t n_row, int32_t n_col,
                              const float *weight, const float *fold, float *o, mla_prefetch *ahead)
{
    fixed_pv(p, v, n_pair, n_row, n_col, weight, fold, o, ahead);
}
