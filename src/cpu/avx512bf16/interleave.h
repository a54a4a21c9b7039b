/*
 * interleave.h - 32 columns of two keys become two vectors of pairs.
 */
#ifndef MLA_CPU_INTERLEAVE_H
#define MLA_CPU_INTERLEAVE_H

#include <immintrin.h>

/* Columns 0 .. 15 of x and y in turn, and columns 16 .. 31 of them. */
typedef struct mla_pair_order {
    __m512i first, second;
} mla_pair_order;

static inline mla_pair_order mla_pair_order_make(void)
{
    const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                           37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    return (mla_pair_order){first, _mm512_add_epi16(first, _mm512_set1_epi16(16))};
}

#endif
