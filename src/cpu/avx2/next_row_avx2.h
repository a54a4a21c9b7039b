/*
 * next_row_avx2.h - a row of the next block, fetched while a tile is computed, some bytes per round of its loop: several
 * lines at once would wait for places in the queue to memory, and the tile's own loads behind them.
 */
#ifndef MLA_CPU_NEXT_ROW_AVX2_H
#define MLA_CPU_NEXT_ROW_AVX2_H

#include "cpu/kernels.h"

typedef struct next_row {
    const char *at;
    int64_t step; /* bytes per round */
} next_row;

/* A row over n_round rounds; where nothing is left, `otherwise` again and again. */
static inline next_row take_row(mla_prefetch *ahead, int64_t n_round, const void *otherwise)
{
    const char *at = mla_prefetch_row(ahead);
    return at ? (next_row){at, ahead->row_bytes / (n_round > 0 ? n_round : 1) + 1} : (next_row){otherwise, 0};
}

/* clang-format off */

#define ASM_FETCH                 \
    "prefetcht1 (%[next])\n\t"    \
    "add %[step], %[next]\n\t"

/* clang-format on */

#endif
