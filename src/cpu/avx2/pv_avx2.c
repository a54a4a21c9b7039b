/*
 * pv_avx2.c - probabilities times values for one column panel, and rescaling of accumulators.
 *
 * A tile is 4 rows by 24 columns: 12 accumulators that stay in registers over the whole key block, 3 vectors of v, 1
 * broadcast probability. When few columns of the last panel are in use, 8 rows by 8 columns.
 */
#include <immintrin.h>

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

static void tile_4x24(const float *restrict p, const float *restrict v, int64_t n_key, float *restrict o)
{
    ROWS4(ZERO24)
    for (const float *end = v + n_key * COL_PANEL; v != end; v += COL_PANEL, p += ROWS) {
        __m256 v0 = _mm256_loadu_ps(v), v1 = _mm256_loadu_ps(v + 8), v2 = _mm256_loadu_ps(v + 16);
        ROWS4(STEP24)
    }
    ROWS4(ADD24)
}

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
    for (; r + 2 <= n_row; r += 4) { /* three of four rows in use still beat one row at a time */
        tile_4x24(p + r, v, n_key, o + r * COL_PANEL);
        mla_prefetch_step(ahead);
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
