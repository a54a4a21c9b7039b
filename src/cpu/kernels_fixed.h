/*
 * kernels_fixed.h - the contracts of the fixed-point kernels: 16-bit integers that multiply exactly and are summed
 * exactly in 32 bits.
 *
 * Each row of q and each key is scaled by a factor of its own to integers whose Euclidean norm is MLA_FIXED_NORM at
 * most, so that by Cauchy and Schwarz no score, nor any part of one, leaves 32 bits. Before that, columns of unequal
 * size are made less unequal: key column c is divided by fold[c], a power of two, and column c of q and of o multiplied
 * by it. Probabilities are scaled for each row and block so that their products with the values cannot leave 32 bits
 * either. The layouts, innermost last:
 *
 *     q      [row panel][column pair][16][2]           pairs of columns side by side; an odd last one pairs with 0
 *     k      [key][column]                             rows a multiple of 2 integers apart
 *     v      [col panel][key pair][col_panel][2]       the same integers, pairs of keys side by side; an odd last key
 *                                                      pairs with 0
 *     p      [row panel][key pair][16][2]
 *
 * s and o are fp32 and lie as kernels.h says. Sums of integers are exact, so their order does not matter.
 */
#ifndef MLA_CPU_KERNELS_FIXED_H
#define MLA_CPU_KERNELS_FIXED_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels.h"

/* Rounding adds at most sqrt(d) / 2 to a norm, and (46000 + 340)^2 < 2^31: enough for d up to 460,000. */
#define MLA_FIXED_NORM 46000.0f
#define MLA_FIXED_LARGEST 32700.0f /* of any integer, with room for the rounding of factors */
/* Of the sum over the keys of a block of p * largest |v|: half a unit on each of 96 keys, times 32767, still fits. */
#define MLA_FIXED_SUM 2.1e9f
#define MLA_FIXED_TILE 6 /* keys are scored in groups of this many; k, unit and s have room for a whole last group */

/* A key in fp32: y[c] = x[c] unfold[c], x in the kernel's format; *square += the sum of y[c]^2, *largest = the largest
 * |y[c]| or what it was; NaN shows in square. unfold NULL: all 1. x may be y. */
typedef void (*mla_fixed_norm_kernel)(const void *x, const float *unfold, int64_t n_col, float *y, float *square,
                                      float *largest);

/* A key on its way to integers: y[c] factor to the nearest, ties to even, within 16 bits. */
typedef struct mla_fixed_key {
    const float *y;
    float factor;
    int16_t *k; /* where its row of k begins */
} mla_fixed_key;

/* Two keys of n_col columns to their rows of k and, columns [0, n_value) of them, to one key pair of v; odd NULL: zeros.
 * Columns of the last panel of v beyond n_value are not written. */
typedef void (*mla_fixed_keys_kernel)(const mla_fixed_key *even, const mla_fixed_key *odd, int64_t n_col,
                                      int64_t n_value, int16_t *v, int64_t panel_stride);

/* A row panel of fp32 queries, [n_col][16], times fold to integers of q; unit[r]: what one of row r's integers is
 * worth. Of a row of zeros unit is 0; of a row whose norm is not finite or out of MLA_FIXED_SQUARE's range, NaN, and
 * its integers are 0. */
#define MLA_FIXED_SQUARE_MIN 0x1p-80f
#define MLA_FIXED_SQUARE_MAX 0x1p80f
typedef void (*mla_fixed_query_kernel)(const float *q, const float *fold, int64_t n_col, int16_t *to, float *unit);

/* The factor that makes integers of numbers of this norm and size, and whether there is one. */
static inline bool mla_fixed_factor(float square, float largest, float *factor)
{
    if (!(square >= MLA_FIXED_SQUARE_MIN && square <= MLA_FIXED_SQUARE_MAX)) {
        *factor = 0;
        return square == 0 && largest == 0;
    }
    float by_norm = MLA_FIXED_NORM / __builtin_sqrtf(square), by_size = MLA_FIXED_LARGEST / largest;
    *factor = by_norm < by_size ? by_norm : by_size;
    return true;
}

/* s[key][r] = unit[key] * (sum over n_pair column pairs of q k), for all rows. */
typedef void (*mla_fixed_qk_kernel)(const int16_t *q, const int16_t *k, int64_t k_stride, int64_t n_pair, int64_t n_key,
                                    const float *unit, float *s, mla_prefetch *ahead);

/*
 * Probabilities p [n_key][16], each times unit[key], to integers of p, row by row with the largest factor that keeps
 * them within MLA_FIXED_LARGEST and the sum over keys of (p largest[key]), in their units, within MLA_FIXED_SUM.
 * weight[r]: what one of row r's integers is worth, 0 where all are 0. An odd last key gets a partner of 0.
 */
typedef void (*mla_fixed_p_kernel)(const float *p, int64_t n_key, const float *unit, const float *largest, int16_t *to,
                                   float *weight);

/* The factor on numbers of which `top` is the largest and `sum` what MLA_FIXED_SUM limits. Numbers this small leave no
 * trace beside those of other blocks. */
static inline float mla_fixed_p_factor(float top, float sum)
{
    float by_size = MLA_FIXED_LARGEST / top, by_sum = MLA_FIXED_SUM / sum;
    return !(top >= 0x1p-100f) ? 0 : by_size < by_sum ? by_size : by_sum;
}

/* o[r][c] += weight[r] * fold[c] * (sum over n_pair key pairs of p v), for r < n_row and c < n_col at least, one column
 * panel; fold has col_panel elements. */
typedef void (*mla_fixed_pv_kernel)(const int16_t *p, const int16_t *v, int64_t n_pair, int32_t n_row, int32_t n_col,
                                    const float *weight, const float *fold, float *o, mla_prefetch *ahead);

struct mla_fixed_kernels {
    mla_fixed_norm_kernel norm[MLA_FORMAT_COUNT]; /* NULL: keys become fp32 by load, and are measured by F32's */
    mla_fixed_keys_kernel keys;
    mla_fixed_query_kernel query;
    mla_fixed_qk_kernel qk;
    mla_fixed_p_kernel p;
    mla_fixed_pv_kernel pv;
};

#endif
