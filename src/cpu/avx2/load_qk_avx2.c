/*
 * load_qk_avx2.c - scores of a row panel against a key block that is converted meanwhile.
 *
 * Converting a block by itself takes 2 to 4 % of the time with 128 heads and a sixth with 16, nearly all of it waiting for
 * lines of the block to come from the second-level cache and to go back there. Multiply-adds of a score tile leave stores
 * and a third of the instruction slots unused, and wait for neither. So each tile converts the six keys of the next one, 24
 * columns of a key in a round of four columns, and fetches those MLA_LOAD_AHEAD further on, evenly: from the third-level
 * cache mostly, where the values' pass over the block before has brought them.
 */
#include <immintrin.h>

#include "qk_tile_avx2.h"
#include "tables_avx2.h"

enum { COL_PANEL = MLA_AVX2_COL_PANEL, ROWS = MLA_ROW_PANEL, TILE_KEYS = 6 };

/* An instruction is a line. clang-format would join them. */
/* clang-format off */

/* Eight numbers of the row at k, the i-th vector of a panel. */
#define ASM_CONVERT_F32(i)                           \
    "vmovups 32*" #i "(%[k], %[at]), %%ymm15\n\t"    \
    "vmovups %%ymm15, 32*" #i "(%[to])\n\t"
#define ASM_CONVERT_F16(i)                           \
    "vcvtph2ps 16*" #i "(%[k], %[at]), %%ymm15\n\t"  \
    "vmovups %%ymm15, 32*" #i "(%[to])\n\t"
/* A bf16 number is the upper half of its fp32 twin. A shuffle within lanes does not ask for the multipliers' ports. */
#define ASM_CONVERT_BF16(i)                               \
    "vbroadcasti128 16*" #i "(%[k], %[at]), %%ymm15\n\t"  \
    "vpshufb %[spread], %%ymm15, %%ymm15\n\t"             \
    "vmovups %%ymm15, 32*" #i "(%[to])\n\t"

static const uint8_t spread_avx2[32] __attribute__((aligned(32))) = {
    128, 128, 0, 1, 128, 128, 2,  3,  128, 128, 4,  5,  128, 128, 6,  7,
    128, 128, 8, 9, 128, 128, 10, 11, 128, 128, 12, 13, 128, 128, 14, 15,
};

/* tile_6x16() of qk_avx2.c over n_panel column panels and `rest` columns. The panels of the six keys at `row` are written
 * to `to`, panel_stride from there, and so on. */
#define TILE_ARGUMENTS                                                                                                \
    const float *q, const float *block, int64_t panel_stride, int64_t n_panel, int64_t rest, bool accumulate, float *s, \
        const void *const *row, float *to
#define ASM_FETCH "prefetcht1 (%[k], %[at])\n\t"
#define ASM_FETCH_2 "prefetcht1 (%[k], %[at])\n\tprefetcht1 48(%[k], %[at])\n\t"
#define TILE_BODY(CONVERT, FETCH, PANEL_BYTES)                                                                      \
    {                                                                                                        \
        const float *low = block + COL_PANEL, *high = block + 4 * COL_PANEL; /* keys 0..2, keys 3..5 */      \
        const char *k;                                                                                       \
        int64_t at = 0, round, next_panel = (panel_stride - COL_PANEL) * 4; /* bytes */                              \
        int32_t add = accumulate;                                                                            \
        q += 2 * ROWS;                                                                                       \
        __asm__ volatile(                                                                                    \
            ASM_ALL(ASM_ZERO)                                                                                \
            "1:\n\t" /* a column panel */                                                                    \
            "mov $6, %k[round]\n\t"                                                                          \
            ".p2align 5\n\t"                                                                                 \
            "2:\n\t" /* four columns, and a key to be converted */                                           \
            "mov 8*%c[ahead](%[row]), %[k]\n\t"                                                              \
            FETCH                                                                                            \
            "mov (%[row]), %[k]\n\t"                                                                         \
            ASM_COLUMN(0)                                                                                    \
            CONVERT(0)                                                                                       \
            ASM_COLUMN(1)                                                                                    \
            CONVERT(1)                                                                                       \
            ASM_COLUMN(2)                                                                                    \
            CONVERT(2)                                                                                       \
            ASM_COLUMN(3)                                                                                    \
            "add $8, %[row]\n\t"                                                                             \
            "add $96, %[to]\n\t"                                                                             \
            "add $256, %[q]\n\t"                                                                             \
            "add $16, %[low]\n\t"                                                                            \
            "add $16, %[high]\n\t"                                                                           \
            "dec %k[round]\n\t"                                                                              \
            "jnz 2b\n\t"                                                                                     \
            "sub $48, %[row]\n\t"                                                                            \
            "add $" #PANEL_BYTES ", %[at]\n\t"                                                               \
            "lea 96-6*96(%[to], %[next_panel]), %[to]\n\t"                                                   \
            "add %[next_panel], %[low]\n\t"                                                                  \
            "add %[next_panel], %[high]\n\t"                                                                 \
            "dec %[n_panel]\n\t"                                                                             \
            "jnz 1b\n\t"                                                                                     \
            "test %[rest], %[rest]\n\t"                                                                      \
            "jz 4f\n\t"                                                                                      \
            "3:\n\t" /* one column */                                                                        \
            ASM_COLUMN(0)                                                                                    \
            "add $64, %[q]\n\t"                                                                              \
            "add $4, %[low]\n\t"                                                                             \
            "add $4, %[high]\n\t"                                                                            \
            "dec %[rest]\n\t"                                                                                \
            "jnz 3b\n\t"                                                                                     \
            "4:\n\t"                                                                                         \
            "cmpl $0, %[add]\n\t"                                                                            \
            "jz 5f\n\t"                                                                                      \
            ASM_ALL(ASM_ADD)                                                                                 \
            "5:\n\t"                                                                                         \
            ASM_ALL(ASM_SAVE)                                                                                \
            "vzeroupper"                                                                                     \
            : [q] "+r"(q), [low] "+r"(low), [high] "+r"(high), [n_panel] "+r"(n_panel), [rest] "+r"(rest),   \
              [row] "+r"(row), [at] "+r"(at), [to] "+r"(to), [k] "=&r"(k), [round] "=&r"(round)              \
            : [next_panel] "r"(next_panel), [s] "r"(s), [add] "m"(add), [spread] "m"(spread_avx2),           \
              [ahead] "i"(MLA_LOAD_AHEAD)                                                                    \
            : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",        \
              "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                 \
    }

/* clang-format on */

typedef void (*tile)(TILE_ARGUMENTS);

static void tile_f32(TILE_ARGUMENTS)
{
    TILE_BODY(ASM_CONVERT_F32, ASM_FETCH_2, 96)
}
static void tile_f16(TILE_ARGUMENTS)
{
    TILE_BODY(ASM_CONVERT_F16, ASM_FETCH, 48)
}
static void tile_bf16(TILE_ARGUMENTS)
{
    TILE_BODY(ASM_CONVERT_BF16, ASM_FETCH, 48)
}

/* size: bytes of a number in a row. */
static void load_qk(tile convert, mla_load_kernel load, int64_t size, const float *q, const void *const *row,
                    int64_t n_key, int64_t n_col, int64_t col, int32_t n_row, bool accumulate, float *block,
                    int64_t panel_stride, float *s)
{
    int64_t n_panel = n_col / COL_PANEL, rest = n_col % COL_PANEL, n = 0, next = TILE_KEYS;
    float *panel = block + col / COL_PANEL * panel_stride;
    mla_prefetch nothing = {0};
    if (n_row <= 8 || n_key <= TILE_KEYS || n_panel == 0) {
        load(row, n_key, n_col, col, block, panel_stride);
    } else {
        const void *tail[MLA_KEY_BLOCK_MAX];
        for (int64_t i = 0; rest > 0 && i < n_key; i++) {
            tail[i] = (const char *)row[i] + (n_col - rest) * size;
        }
        load(tail, rest > 0 ? n_key : 0, rest, col + n_col - rest, block, panel_stride);
        load(row, TILE_KEYS, n_col - rest, col, block, panel_stride);
        for (; next + TILE_KEYS <= n_key; n = next, next += TILE_KEYS) {
            convert(q, panel + n * COL_PANEL, panel_stride, n_panel, rest, accumulate, s + n * ROWS, row + next,
                    panel + next * COL_PANEL);
        }
        load(row + next, n_key - next, n_col - rest, col, block + next * COL_PANEL, panel_stride);
    }
    mla_qk_f32_avx2(q, panel + n * COL_PANEL, panel_stride, n_col, n_key - n, n_row, accumulate, s + n * ROWS,
                    &nothing);
}

void mla_load_qk_f32_avx2(const float *q, const void *const *row, int64_t n_key, int64_t n_col, int64_t col,
                          int32_t n_row, bool accumulate, float *block, int64_t panel_stride, float *s)
{
    load_qk(tile_f32, mla_load_f32_avx2, 4, q, row, n_key, n_col, col, n_row, accumulate, block, panel_stride, s);
}

void mla_load_qk_f16_avx2(const float *q, const void *const *row, int64_t n_key, int64_t n_col, int64_t col,
                          int32_t n_row, bool accumulate, float *block, int64_t panel_stride, float *s)
{
    load_qk(tile_f16, mla_load_f16_avx2, 2, q, row, n_key, n_col, col, n_row, accumulate, block, panel_stride, s);
}

void mla_load_qk_bf16_avx2(const float *q, const void *const *row, int64_t n_key, int64_t n_col, int64_t col,
                           int32_t n_row, bool accumulate, float *block, int64_t panel_stride, float *s)
{
    load_qk(tile_bf16, mla_load_bf16_avx2, 2, q, row, n_key, n_col, col, n_row, accumulate, block, panel_stride, s);
}
