/*
 * qk_avx512.c - scores of a row panel against a key block.
 *
 * A tile is 24 keys by 16 rows: 24 accumulators, 1 vector of q, key elements broadcast from memory by the
 * multiplication itself. The vector runs over rows, so a score tile comes out as [key][16].
 */
#include <immintrin.h>

#include "tables_avx512.h"

enum { COL_PANEL = MLA_AVX512_COL_PANEL, ROWS = MLA_ROW_PANEL };

#define ZERO(i) __m512 a##i = _mm512_setzero_ps();
/* What is there already is added last: two short sums lose less than one long one. */
#define ADD(i) a##i = _mm512_add_ps(a##i, _mm512_loadu_ps(s + (i) * ROWS));
#define STEP(i) a##i = _mm512_fmadd_ps(x, _mm512_set1_ps(k[(i) * COL_PANEL]), a##i);
#define SAVE(i) _mm512_storeu_ps(s + (i) * ROWS, a##i);

#define KEYS1(M) M(0)
#define KEYS6(M) M(0) M(1) M(2) M(3) M(4) M(5)
#define KEYS12(M) KEYS6(M) M(6) M(7) M(8) M(9) M(10) M(11)
#define KEYS24(M) KEYS12(M) M(12) M(13) M(14) M(15) M(16) M(17) M(18) M(19) M(20) M(21) M(22) M(23)

/* Sum over n_col columns, panel by panel. */
#define TILE_BODY(KEYS)                                                                 \
    KEYS(ZERO)                                                                          \
    while (n_col > 0) {                                                                 \
        const float *k = block, *end = block + (n_col < COL_PANEL ? n_col : COL_PANEL); \
        for (; k != end; k++, q += ROWS) {                                              \
            __m512 x = _mm512_loadu_ps(q);                                              \
            KEYS(STEP)                                                                  \
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

static void tile_24x16(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS24)
}

static void tile_12x16(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS12)
}

static void tile_6x16(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS6)
}

static void tile_1x16(TILE_ARGUMENTS)
{
    TILE_BODY(KEYS1)
}

void mla_qk_f32_avx512(const float *q, const float *block, int64_t panel_stride, int64_t n_col, int64_t n_key,
                       int32_t n_row, bool accumulate, float *s, mla_prefetch *ahead)
{
    (void)n_row; /* one vector holds all rows of a panel, however few are in use */
    int64_t n = 0;
    for (; n + 24 <= n_key; n += 24) {
        tile_24x16(q, block + n * COL_PANEL, panel_stride, n_col, accumulate, s + n * ROWS);
        for (int i = 0; i < 4; i++) { /* as much arithmetic as four steps of the other kernels */
            mla_prefetch_step(ahead);
        }
    }
    for (; n + 12 <= n_key; n += 12) {
        tile_12x16(q, block + n * COL_PANEL, panel_stride, n_col, accumulate, s + n * ROWS);
    }
    for (; n + 6 <= n_key; n += 6) {
        tile_6x16(q, block + n * COL_PANEL, panel_stride, n_col, accumulate, s + n * ROWS);
    }
    for (; n < n_key; n++) {
        tile_1x16(q, block + n * COL_PANEL, panel_stride, n_col, accumulate, s + n * ROWS);
    }
}
