/*
 * direct_avx2.c - scores and values straight from stored bf16 rows, for a single row panel: converting a block took a sixth
 * of its time.
 *
 * A bf16 number is the upper half of its fp32 twin: a 32-bit load that ends with the number, and a mask, make it one. The
 * load begins with the number before; at the start of a row, where nothing may be read, a shift takes the mask's place.
 * Sums run in the order of qk_avx2.c and pv_avx2.c, so the bits are the same.
 *
 * Each tile fetches a row of the next block, spread over its rounds: several lines at once would wait for places in the queue
 * to memory, and this block's loads behind them.
 */
#include <immintrin.h>
#include <string.h>

#include "next_row_avx2.h"
#include "tables_avx2.h"

enum { COL_PANEL = MLA_AVX2_COL_PANEL, ROWS = MLA_ROW_PANEL, TILE_KEYS = 6, STEP = 16 };

/* An instruction is a line. clang-format would join them. */
/* clang-format off */

#define ASM_ALL(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)
#define ASM_ZERO(i) "vxorps %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n\t"
#define ASM_MASK /* ymm15: the upper half of each lane */  \
    "vpcmpeqd %%ymm15, %%ymm15, %%ymm15\n\t"               \
    "vpslld $16, %%ymm15, %%ymm15\n\t"

/* ---- scores: 6 keys by 16 rows ------------------------------------------------------------------------------------ */

#define ASM_ADD(i) "vaddps 32*" #i "(%[s]), %%ymm" #i ", %%ymm" #i "\n\t"
#define ASM_SAVE(i) "vmovups %%ymm" #i ", 32*" #i "(%[s])\n\t"

#define ASM_NUMBER(u, key)                                             \
    "vbroadcastss 2*" #u "-2(%[" #key "], %[at]), %%ymm14\n\t"         \
    "vandps %%ymm15, %%ymm14, %%ymm14\n\t"
#define ASM_FIRST_NUMBER(u, key)                                       \
    "vbroadcastss (%[" #key "], %[at]), %%ymm14\n\t"                   \
    "vpslld $16, %%ymm14, %%ymm14\n\t"
#define ASM_KEY(NUMBER, u, key, a, b)          \
    NUMBER(u, key)                             \
    "vfmadd231ps %%ymm12, %%ymm14, %%ymm" #a "\n\t" \
    "vfmadd231ps %%ymm13, %%ymm14, %%ymm" #b "\n\t"
#define ASM_COLUMN(NUMBER, u)                  \
    "vmovups 64*" #u "-128(%[q]), %%ymm12\n\t" \
    "vmovups 64*" #u "-96(%[q]), %%ymm13\n\t"  \
    ASM_KEY(NUMBER, u, k0, 0, 1)               \
    ASM_KEY(NUMBER, u, k1, 2, 3)               \
    ASM_KEY(NUMBER, u, k2, 4, 5)               \
    ASM_KEY(NUMBER, u, k3, 6, 7)               \
    ASM_KEY(NUMBER, u, k4, 8, 9)               \
    ASM_KEY(NUMBER, u, k5, 10, 11)

/* The sums of tile_6x16() in qk_avx2.c. */
static void scores_6x16(const float *q, const void *const *row, int64_t col, int64_t n_col, bool accumulate, float *s,
                        next_row next)
{
    const char *k0 = row[0], *k1 = row[1], *k2 = row[2], *k3 = row[3], *k4 = row[4], *k5 = row[5];
    int64_t at = col * 2;
    int32_t add = accumulate;
    q += 2 * ROWS;
    __asm__ volatile(
        ASM_MASK
        ASM_ALL(ASM_ZERO)
        "test %[at], %[at]\n\t"
        "jnz 1f\n\t"
        ASM_COLUMN(ASM_FIRST_NUMBER, 0)
        "add $64, %[q]\n\t"
        "add $2, %[at]\n\t"
        "dec %[n_col]\n\t"
        "1:\n\t"
        "sub $4, %[n_col]\n\t"
        "jl 3f\n\t"
        ".p2align 5\n\t"
        "2:\n\t" /* four columns */
        ASM_COLUMN(ASM_NUMBER, 0)
        ASM_COLUMN(ASM_NUMBER, 1)
        ASM_COLUMN(ASM_NUMBER, 2)
        ASM_COLUMN(ASM_NUMBER, 3)
        ASM_FETCH
        "add $256, %[q]\n\t"
        "add $8, %[at]\n\t"
        "sub $4, %[n_col]\n\t"
        "jge 2b\n\t"
        "3:\n\t"
        "add $4, %[n_col]\n\t"
        "jz 5f\n\t"
        "4:\n\t" /* one column */
        ASM_COLUMN(ASM_NUMBER, 0)
        "add $64, %[q]\n\t"
        "add $2, %[at]\n\t"
        "dec %[n_col]\n\t"
        "jnz 4b\n\t"
        "5:\n\t"
        "cmpl $0, %[add]\n\t"
        "jz 6f\n\t"
        ASM_ALL(ASM_ADD)
        "6:\n\t"
        ASM_ALL(ASM_SAVE)
        "vzeroupper"
        : [q] "+r"(q), [at] "+r"(at), [n_col] "+r"(n_col), [next] "+r"(next.at)
        : [k0] "r"(k0), [k1] "r"(k1), [k2] "r"(k2), [k3] "r"(k3), [k4] "r"(k4), [k5] "r"(k5), [s] "r"(s),
          [step] "r"(next.step), [add] "m"(add)
        : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
          "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

/* ---- values: up to 6 rows by 16 columns ---------------------------------------------------------------------------- */

/* One key: the step's even columns in ymm12, its odd ones in ymm13. */
#define ASM_ROW(u, r, x, y)                                  \
    "vbroadcastss 64*" #u "+4*" #r "(%[p]), %%ymm14\n\t"     \
    "vfmadd231ps %%ymm12, %%ymm14, %%ymm" #x "\n\t"          \
    "vfmadd231ps %%ymm13, %%ymm14, %%ymm" #y "\n\t"
#define ASM_STEP(u)                          \
    "mov 8*" #u "(%[row]), %[k]\n\t"         \
    "add %[at], %[k]\n\t"                    \
    "vandps -2(%[k]), %%ymm15, %%ymm12\n\t"  \
    "vandps (%[k]), %%ymm15, %%ymm13\n\t"
#define ASM_FIRST_STEP(u)                    \
    "mov 8*" #u "(%[row]), %[k]\n\t"         \
    "add %[at], %[k]\n\t"                    \
    "vmovdqu (%[k]), %%ymm12\n\t"            \
    "vandps %%ymm12, %%ymm15, %%ymm13\n\t"   \
    "vpslld $16, %%ymm12, %%ymm12\n\t"
#define ASM_ROWS4(u) ASM_ROW(u, 0, 0, 1) ASM_ROW(u, 1, 2, 3) ASM_ROW(u, 2, 4, 5) ASM_ROW(u, 3, 6, 7)
#define ASM_ROWS5(u) ASM_ROWS4(u) ASM_ROW(u, 4, 8, 9)
#define ASM_ROWS6(u) ASM_ROWS5(u) ASM_ROW(u, 5, 10, 11)

/* Columns back in order, and added to o: low and high are the places of columns 0..7 and 8..15 of the first row. */
#define ASM_JOIN(r, x, y)                                        \
    "vunpcklps %%ymm" #y ", %%ymm" #x ", %%ymm12\n\t"            \
    "vunpckhps %%ymm" #y ", %%ymm" #x ", %%ymm13\n\t"            \
    "vperm2f128 $0x20, %%ymm13, %%ymm12, %%ymm14\n\t"            \
    "vperm2f128 $0x31, %%ymm13, %%ymm12, %%ymm12\n\t"            \
    "vaddps 96*" #r "(%[low]), %%ymm14, %%ymm14\n\t"             \
    "vaddps 96*" #r "(%[high]), %%ymm12, %%ymm12\n\t"            \
    "vmovups %%ymm14, 96*" #r "(%[low])\n\t"                     \
    "vmovups %%ymm12, 96*" #r "(%[high])\n\t"
#define ASM_JOIN4 ASM_JOIN(0, 0, 1) ASM_JOIN(1, 2, 3) ASM_JOIN(2, 4, 5) ASM_JOIN(3, 6, 7)
#define ASM_JOIN5 ASM_JOIN4 ASM_JOIN(4, 8, 9)
#define ASM_JOIN6 ASM_JOIN5 ASM_JOIN(5, 10, 11)

/* Two keys a round, then the odd one. */
#define VALUES_TILE(KEY_STEP, KEY_ROWS, JOIN)                                                                        \
    {                                                                                                                \
        const char *k;                                                                                               \
        __asm__ volatile(                                                                                            \
            ASM_MASK                                                                                                 \
            ASM_ALL(ASM_ZERO)                                                                                        \
            "sub $2, %[n_key]\n\t"                                                                                   \
            "jl 2f\n\t"                                                                                              \
            ".p2align 5\n\t"                                                                                         \
            "1:\n\t"                                                                                                 \
            KEY_STEP(0) KEY_ROWS(0)                                                                                  \
            KEY_STEP(1) KEY_ROWS(1)                                                                                  \
            ASM_FETCH                                                                                                \
            "add $128, %[p]\n\t"                                                                                     \
            "add $16, %[row]\n\t"                                                                                    \
            "sub $2, %[n_key]\n\t"                                                                                   \
            "jge 1b\n\t"                                                                                             \
            "2:\n\t"                                                                                                 \
            "test $1, %[n_key]\n\t"                                                                                  \
            "jz 3f\n\t"                                                                                              \
            KEY_STEP(0) KEY_ROWS(0)                                                                                  \
            "3:\n\t"                                                                                                 \
            JOIN                                                                                                     \
            "vzeroupper"                                                                                             \
            : [p] "+r"(p), [row] "+r"(row), [n_key] "+r"(n_key), [next] "+r"(next.at), [k] "=&r"(k)                 \
            : [at] "r"(at), [low] "r"(low), [high] "r"(high), [step] "r"(next.step)                                  \
            : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",        \
              "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                                 \
    }
#define VALUES_ARGUMENTS \
    const float *p, const void *const *row, int64_t n_key, int64_t at, float *low, float *high, next_row next

/* clang-format on */

static void values_4(VALUES_ARGUMENTS)
{
    VALUES_TILE(ASM_STEP, ASM_ROWS4, ASM_JOIN4)
}
static void values_5(VALUES_ARGUMENTS)
{
    VALUES_TILE(ASM_STEP, ASM_ROWS5, ASM_JOIN5)
}
static void values_6(VALUES_ARGUMENTS)
{
    VALUES_TILE(ASM_STEP, ASM_ROWS6, ASM_JOIN6)
}
static void first_values_4(VALUES_ARGUMENTS)
{
    VALUES_TILE(ASM_FIRST_STEP, ASM_ROWS4, ASM_JOIN4)
}
static void first_values_5(VALUES_ARGUMENTS)
{
    VALUES_TILE(ASM_FIRST_STEP, ASM_ROWS5, ASM_JOIN5)
}
static void first_values_6(VALUES_ARGUMENTS)
{
    VALUES_TILE(ASM_FIRST_STEP, ASM_ROWS6, ASM_JOIN6)
}

void mla_qk_rows_bf16_avx2(const float *q, const void *const *row, int64_t col, int64_t n_col, int64_t n_key,
                           bool accumulate, float *s, mla_prefetch *ahead)
{
    int64_t n = 0;
    for (; n + TILE_KEYS <= n_key; n += TILE_KEYS) {
        scores_6x16(q, row + n, col, n_col, accumulate, s + n * ROWS, take_row(ahead, n_col / 4, q));
    }
    if (n == n_key) {
        return;
    }
    /* the last key stands in for those that are missing */
    const void *some[TILE_KEYS];
    float part[TILE_KEYS * ROWS] = {0};
    size_t bytes = (size_t)((n_key - n) * ROWS) * sizeof *s;
    for (int64_t i = 0; i < TILE_KEYS; i++) {
        some[i] = row[n + i < n_key ? n + i : n_key - 1];
    }
    if (accumulate) {
        memcpy(part, s + n * ROWS, bytes);
    }
    scores_6x16(q, some, col, n_col, accumulate, part, take_row(ahead, n_col / 4, q));
    memcpy(s + n * ROWS, part, bytes);
}

void mla_pv_rows_bf16_avx2(const float *p, const void *const *row, int64_t n_key, int32_t n_row, int64_t n_col,
                           float *o, mla_prefetch *ahead)
{
    typedef void (*tile)(VALUES_ARGUMENTS);
    static const tile tiles[2][3] = {{first_values_4, first_values_5, first_values_6}, {values_4, values_5, values_6}};
    int32_t n_group = (n_row + 5) / 6;
    for (int64_t c = 0; c < n_col; c += STEP) {
        float *low = o + c / COL_PANEL * ROWS * COL_PANEL + c % COL_PANEL;
        float *high = c % COL_PANEL + STEP <= COL_PANEL ? low + 8 : o + (c / COL_PANEL + 1) * ROWS * COL_PANEL;
        int32_t r = 0;
        for (int32_t left = n_group; left > 0; left--) {
            int32_t rows = (n_row - r + left - 1) / left; /* as even as can be: 4 to 6 of 9 to 16 */
            tiles[c > 0][rows - 4](p + r, row, n_key, c * 2, low + r * COL_PANEL, high + r * COL_PANEL,
                                   take_row(ahead, n_key / 2, p));
            r += rows;
        }
    }
}
