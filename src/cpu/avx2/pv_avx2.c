/*
 * pv_avx2.c - probabilities times values for one column panel, and rescaling of accumulators.
 *
 * A tile is 4 rows by 24 columns: 12 accumulators that stay in registers over the whole key block, 3 vectors of v, 1
 * broadcast probability; in assembly, for the reasons given in qk_avx2.c. When few columns of the last panel are in use,
 * 8 rows by 8 columns. Where many lines of the next block are to be fetched, for few row panels have to do it all, a tile
 * fetches a row meanwhile; a few lines are fetched between tiles.
 */
#include <immintrin.h>

#include "next_row_avx2.h"
#include "tables_avx2.h"

enum { COL_PANEL = MLA_AVX2_COL_PANEL, ROWS = MLA_ROW_PANEL };

/* The block is summed from zero and added to o last: two short sums lose less than one long one. */
#define ZERO24(r) __m256 x##r = _mm256_setzero_ps(), y##r = _mm256_setzero_ps(), z##r = _mm256_setzero_ps();
#define STEP24(r)                                \
    {                                            \
        __m256 w = _mm256_broadcast_ss(p + (r)); \
        x##r = _mm256_fmadd_ps(w, v0, x##r);     \
        y##r = _mm256_fmadd_ps(w, v1, y##r);     \
        z##r = _mm256_fmadd_ps(w, v2, z##r);     \
    }
#define ADD(at, x) _mm256_storeu_ps((at), _mm256_add_ps(_mm256_loadu_ps(at), (x)))
#define ADD24(r)                        \
    ADD(o + (r) * COL_PANEL, x##r);     \
    ADD(o + (r) * COL_PANEL + 8, y##r); \
    ADD(o + (r) * COL_PANEL + 16, z##r);
#define ZERO8(r) __m256 x##r = _mm256_setzero_ps();
#define STEP8(r) x##r = _mm256_fmadd_ps(_mm256_broadcast_ss(p + (r)), v0, x##r);
#define ADD8(r) ADD(o + (r) * COL_PANEL, x##r);
#define ROWS4(M) M(0) M(1) M(2) M(3)
#define ROWS8(M) ROWS4(M) M(4) M(5) M(6) M(7)

/* An instruction is a line. clang-format would join them. */
/* clang-format off */

/* One key: three vectors of v against the probability of each of four rows. */
#define ASM_ROW(u, r, x, y, z)                               \
    "vbroadcastss 64*" #u "-128+4*" #r "(%[p]), %%ymm15\n\t" \
    "vfmadd231ps %%ymm12, %%ymm15, %%ymm" #x "\n\t"          \
    "vfmadd231ps %%ymm13, %%ymm15, %%ymm" #y "\n\t"          \
    "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #z "\n\t"
#define ASM_KEY(u)                             \
    "vmovups 96*" #u "-128(%[v]), %%ymm12\n\t" \
    "vmovups 96*" #u "-96(%[v]), %%ymm13\n\t"  \
    "vmovups 96*" #u "-64(%[v]), %%ymm14\n\t"  \
    ASM_ROW(u, 0, 0, 1, 2)                     \
    ASM_ROW(u, 1, 3, 4, 5)                     \
    ASM_ROW(u, 2, 6, 7, 8)                     \
    ASM_ROW(u, 3, 9, 10, 11)
#define ASM_ALL(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)
#define ASM_ZERO(i) "vxorps %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n\t"
#define ASM_ADD(i)                                         \
    "vaddps 32*" #i "(%[o]), %%ymm" #i ", %%ymm" #i "\n\t" \
    "vmovups %%ymm" #i ", 32*" #i "(%[o])\n\t"

/* The sums of ZERO24, STEP24 and ADD24 for four rows, in the same order. */
#define TILE_4X24(FETCH)                                                                                         \
    int64_t round;                                                                                               \
    p += 2 * ROWS;                                                                                               \
    v += 32;                                                                                                     \
    __asm__ volatile(                                                                                            \
        ASM_ALL(ASM_ZERO)                                                                                        \
        "mov %[n_key], %[round]\n\t"                                                                             \
        "shr $2, %[round]\n\t"                                                                                   \
        "jz 2f\n\t"                                                                                              \
        ".p2align 5\n\t"                                                                                         \
        "1:\n\t" /* four keys */                                                                                 \
        ASM_KEY(0)                                                                                               \
        ASM_KEY(1)                                                                                               \
        ASM_KEY(2)                                                                                               \
        ASM_KEY(3)                                                                                               \
        FETCH                                                                                                    \
        "add $256, %[p]\n\t"                                                                                     \
        "add $384, %[v]\n\t"                                                                                     \
        "dec %[round]\n\t"                                                                                       \
        "jnz 1b\n\t"                                                                                             \
        "2:\n\t"                                                                                                 \
        "and $3, %[n_key]\n\t"                                                                                   \
        "jz 4f\n\t"                                                                                              \
        "3:\n\t" /* one key */                                                                                   \
        ASM_KEY(0)                                                                                               \
        "add $64, %[p]\n\t"                                                                                      \
        "add $96, %[v]\n\t"                                                                                      \
        "dec %[n_key]\n\t"                                                                                       \
        "jnz 3b\n\t"                                                                                             \
        "4:\n\t"                                                                                                 \
        ASM_ALL(ASM_ADD)                                                                                         \
        "vzeroupper"                                                                                             \
        : [p] "+r"(p), [v] "+r"(v), [n_key] "+r"(n_key), [round] "=&r"(round), [next] "+r"(next.at)              \
        : [o] "r"(o), [step] "r"(next.step)                                                                      \
        : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
          "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");

#define TILE_4X24_ARGUMENTS \
    const float *restrict p, const float *restrict v, int64_t n_key, float *restrict o, next_row next

static void tile_4x24(TILE_4X24_ARGUMENTS)
{
    TILE_4X24()
}
static void tile_4x24_and_fetch(TILE_4X24_ARGUMENTS)
{
    TILE_4X24(ASM_FETCH)
}

/* clang-format on */

static void tile_1x24(const float *restrict p, const float *restrict v, int64_t n_key, float *restrict o)
{
    ZERO24(0)
    for (const float *end = v + n_key * COL_PANEL; v != end; v += COL_PANEL, p += ROWS) {
        __m256 v0 = _mm256_loadu_ps(v), v1 = _mm256_loadu_ps(v + 8), v2 = _mm256_loadu_ps(v + 16);
        STEP24(0)
    }
    ADD24(0)
}

static void tile_8x8(const float *restrict p, const float *restrict v, int64_t n_key, float *restrict o)
{
    ROWS8(ZERO8)
    for (const float *end = v + n_key * COL_PANEL; v != end; v += COL_PANEL, p += ROWS) {
        __m256 v0 = _mm256_loadu_ps(v);
        ROWS8(STEP8)
    }
    ROWS8(ADD8)
}

/* Is a row per tile, or half of one, what is to be fetched? Of a row with more lines than the tile has rounds some are left
 * out: they are fetched when the row is about to be converted. */
static bool fetches_whole_rows(const mla_prefetch *ahead, int64_t n_round)
{
    return ahead->n_piece == 1 && n_round > 0 && ahead->lines_per_step * 128 >= ahead->row_bytes;
}

void mla_pv_f32_avx2(const float *p, const float *v, int64_t n_key, int32_t n_row, int32_t n_col, float *o,
                     mla_prefetch *ahead)
{
    if (n_col <= 8) {
        for (int32_t r = 0; r < n_row; r += 8) {
            tile_8x8(p + r, v, n_key, o + r * COL_PANEL);
        }
        return;
    }
    int32_t r = 0;
    bool whole_rows = fetches_whole_rows(ahead, n_key / 4);
    for (; r + 2 <= n_row; r += 4) { /* three of four rows in use still beat one row at a time */
        if (whole_rows) {
            tile_4x24_and_fetch(p + r, v, n_key, o + r * COL_PANEL, take_row(ahead, n_key / 4, p));
        } else {
            tile_4x24(p + r, v, n_key, o + r * COL_PANEL, (next_row){0});
            mla_prefetch_step(ahead);
        }
    }
    if (r < n_row) {
        tile_1x24(p + r, v, n_key, o + r * COL_PANEL);
        mla_prefetch_step(ahead);
    }
}

void mla_merge_f32_avx2(float *o, const float *x, const float *a, const float *b, int64_t n_panel, int32_t n_row)
{
    for (int64_t panel = 0; panel < n_panel; panel++) {
        for (int32_t r = 0; r < n_row; r++) {
            int64_t at = (panel * ROWS + r) * COL_PANEL;
            __m256 scale = _mm256_broadcast_ss(a + r);
            for (int64_t c = at; c < at + COL_PANEL; c += 8) {
                __m256 sum = _mm256_mul_ps(_mm256_loadu_ps(o + c), scale);
                if (x) {
                    sum = _mm256_fmadd_ps(_mm256_loadu_ps(x + c), _mm256_broadcast_ss(b + r), sum);
                }
                _mm256_storeu_ps(o + c, sum);
            }
        }
    }
}
