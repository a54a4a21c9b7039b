/*
 * qk_avx2.c - scores of a row panel against a key block.
 *
 * A tile is 6 keys by 16 rows: 12 accumulators, 2 vectors of q, 1 broadcast key element, 15 registers in all. The
 * vectors run over rows, so a score tile comes out as [key][16], ready for softmax and pv, with no transposition and no
 * sums across lanes. Panels of 8 rows or fewer use 12 keys by 8 rows. Accumulators are separate variables because
 * compilers keep arrays of vectors in memory.
 *
 * The tile in which nearly all time is spent is assembly. 12 multiply-adds come with 8 loads, and a core shares its
 * instruction slots with whoever runs on its other hardware thread: four columns a round, the shortest encodings and no
 * instruction more made it 5 to 15 % faster than compilers' code from the same intrinsics (docs/performance.md).
 */
#include <immintrin.h>

#include "qk_tile_avx2.h"
#include "tables_avx2.h"

enum { COL_PANEL = MLA_AVX2_COL_PANEL, ROWS = MLA_ROW_PANEL };

/* One column: 2 vectors of q against N keys, whose elements lie COL_PANEL floats apart. */
#define STEP16(i)                                            \
    {                                                        \
        __m256 x = _mm256_broadcast_ss(k + (i) * COL_PANEL); \
        a##i = _mm256_fmadd_ps(q0, x, a##i);                 \
        b##i = _mm256_fmadd_ps(q1, x, b##i);                 \
    }
#define STEP8(i) a##i = _mm256_fmadd_ps(q0, _mm256_broadcast_ss(k + (i) * COL_PANEL), a##i);
#define ZERO16(i) __m256 a##i = _mm256_setzero_ps(), b##i = _mm256_setzero_ps();
#define ZERO8(i) __m256 a##i = _mm256_setzero_ps();
/* What is there already is added last: two short sums lose less than one long one. */
#define ADD16(i)                                                 \
    a##i = _mm256_add_ps(a##i, _mm256_loadu_ps(s + (i) * ROWS)); \
    b##i = _mm256_add_ps(b##i, _mm256_loadu_ps(s + (i) * ROWS + 8));
#define ADD8(i) a##i = _mm256_add_ps(a##i, _mm256_loadu_ps(s + (i) * ROWS));
#define SAVE16(i)                           \
    _mm256_storeu_ps(s + (i) * ROWS, a##i); \
    _mm256_storeu_ps(s + (i) * ROWS + 8, b##i);
#define SAVE8(i) _mm256_storeu_ps(s + (i) * ROWS, a##i);

#define KEYS1(M) M(0)
#define KEYS2(M) M(0) M(1)
#define KEYS3(M) M(0) M(1) M(2)
#define KEYS4(M) KEYS3(M) M(3)
#define KEYS5(M) KEYS4(M) M(4)
#define KEYS6(M) KEYS5(M) M(5)
#define KEYS12(M) KEYS6(M) M(6) M(7) M(8) M(9) M(10) M(11)

/* Sum over n_col columns, panel by panel. Instantiated below for each tile size, under a name of its own. */
#define TILE_BODY(KEYS, ZERO, STEP, ADD, SAVE, Q1)                                      \
    KEYS(ZERO)                                                                          \
    while (n_col > 0) {                                                                 \
        const float *k = block, *end = block + (n_col < COL_PANEL ? n_col : COL_PANEL); \
        for (; k != end; k++) {                                                         \
            __m256 q0 = _mm256_loadu_ps(q);                                             \
            Q1 KEYS(STEP) q += ROWS;                                                    \
        }                                                                               \
        block += panel_stride;                                                          \
        n_col -= COL_PANEL;                                                             \
    }                                                                                   \
    if (accumulate) {                                                                   \
        KEYS(ADD)                                                                       \
    }                                                                                   \
    KEYS(SAVE)
#define TILE_ARGUMENTS                                                                                          \
    const float *restrict q, const float *restrict block, int64_t panel_stride, int64_t n_col, bool accumulate, \
        float *restrict s
#define Q1_VECTOR __m256 q1 = _mm256_loadu_ps(q + 8);

/* An instruction is a line. clang-format would join them. */
/* clang-format off */

/* The same sums in the same order as TILE_BODY. */
static void tile_6x16(TILE_ARGUMENTS)
{
    const float *low = block + COL_PANEL, *high = block + 4 * COL_PANEL; /* keys 0..2, keys 3..5 */
    int64_t round, column, next_panel = (panel_stride - COL_PANEL) * 4;  /* bytes */
    q += 2 * ROWS;
    __asm__ volatile(
        ASM_ALL(ASM_ZERO)
        "1:\n\t" /* a column panel */
        "mov $24, %k[column]\n\t"
        "cmp %[column], %[n_col]\n\t"
        "cmovl %[n_col], %[column]\n\t"
        "mov %k[column], %k[round]\n\t"
        "shr $2, %k[round]\n\t"
        "jz 3f\n\t"
        ".p2align 5\n\t"
        "2:\n\t" /* four columns */
        ASM_COLUMN(0)
        ASM_COLUMN(1)
        ASM_COLUMN(2)
        ASM_COLUMN(3)
        "add $256, %[q]\n\t"
        "add $16, %[low]\n\t"
        "add $16, %[high]\n\t"
        "dec %k[round]\n\t"
        "jnz 2b\n\t"
        "3:\n\t"
        "mov %k[column], %k[round]\n\t"
        "and $3, %k[round]\n\t"
        "jz 5f\n\t"
        "4:\n\t" /* one column */
        ASM_COLUMN(0)
        "add $64, %[q]\n\t"
        "add $4, %[low]\n\t"
        "add $4, %[high]\n\t"
        "dec %k[round]\n\t"
        "jnz 4b\n\t"
        "5:\n\t"
        "add %[next_panel], %[low]\n\t"
        "add %[next_panel], %[high]\n\t"
        "sub %[column], %[n_col]\n\t"
        "jg 1b\n\t"
        "test %k[accumulate], %k[accumulate]\n\t"
        "jz 6f\n\t"
        ASM_ALL(ASM_ADD)
        "6:\n\t"
        ASM_ALL(ASM_SAVE)
        "vzeroupper"
        : [q] "+r"(q), [low] "+r"(low), [high] "+r"(high), [n_col] "+r"(n_col), [round] "=&r"(round),
          [column] "=&r"(column)
        : [next_panel] "r"(next_panel), [s] "r"(s), [accumulate] "r"((int)accumulate)
        : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
          "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"); /* the last: vzeroupper */
}

/* clang-format on */

static void tile_5x16(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS5, ZERO16, STEP16, ADD16, SAVE16, Q1_VECTOR)
}
static void tile_4x16(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS4, ZERO16, STEP16, ADD16, SAVE16, Q1_VECTOR)
}
static void tile_3x16(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS3, ZERO16, STEP16, ADD16, SAVE16, Q1_VECTOR)
}
static void tile_2x16(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS2, ZERO16, STEP16, ADD16, SAVE16, Q1_VECTOR)
}
static void tile_1x16(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS1, ZERO16, STEP16, ADD16, SAVE16, Q1_VECTOR)
}
static void tile_12x8(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS12, ZERO8, STEP8, ADD8, SAVE8, )
}
static void tile_4x8(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS4, ZERO8, STEP8, ADD8, SAVE8, )
}
static void tile_1x8(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS1, ZERO8, STEP8, ADD8, SAVE8, )
}

void mla_qk_f32_avx2(const float *q, const float *block, int64_t panel_stride, int64_t n_col, int64_t n_key,
                     int32_t n_row, bool accumulate, float *s, mla_prefetch *ahead)
{
    typedef void (*tile)(TILE_ARGUMENTS);
    static const tile rest16[6] = {NULL, tile_1x16, tile_2x16, tile_3x16, tile_4x16, tile_5x16};
    int64_t n = 0;
    if (n_row > 8) {
        for (; n + 6 <= n_key; n += 6) {
            tile_6x16(q, block + n * COL_PANEL, panel_stride, n_col, accumulate, s + n * ROWS);
            mla_prefetch_step(ahead);
        }
        if (n < n_key) {
            rest16[n_key - n](q, block + n * COL_PANEL, panel_stride, n_col, accumulate, s + n * ROWS);
        }
        return;
    }
    for (; n + 12 <= n_key; n += 12) {
        tile_12x8(q, block + n * COL_PANEL, panel_stride, n_col, accumulate, s + n * ROWS);
        mla_prefetch_step(ahead);
    }
    for (; n + 4 <= n_key; n += 4) {
        tile_4x8(q, block + n * COL_PANEL, panel_stride, n_col, accumulate, s + n * ROWS);
    }
    for (; n < n_key; n++) {
        tile_1x8(q, block + n * COL_PANEL, panel_stride, n_col, accumulate, s + n * ROWS);
    }
}
