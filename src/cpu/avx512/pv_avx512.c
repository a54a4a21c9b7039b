/*
 * pv_avx512.c - probabilities times values for one column panel, and rescaling of accumulators.
 *
 * A tile is 8 rows by 48 columns: 24 accumulators that stay in registers over the whole key block, 3 vectors of v, 1
 * broadcast probability. Where fewer columns of the last panel are in use, 8 rows by 32 or by 16.
 */
#include <immintrin.h>

#include "tables_avx512.h"

enum { COL_PANEL = MLA_AVX512_COL_PANEL, ROWS = MLA_ROW_PANEL };

/* The block is summed from zero and added to o last: two short sums lose less than one long one. */
#define ZERO1(r) __m512 x##r = _mm512_setzero_ps();
#define ZERO2(r) ZERO1(r) __m512 y##r = _mm512_setzero_ps();
#define ZERO3(r) ZERO2(r) __m512 z##r = _mm512_setzero_ps();
#define FMA1(r) x##r = _mm512_fmadd_ps(w, v0, x##r);
#define FMA2(r) FMA1(r) y##r = _mm512_fmadd_ps(w, v1, y##r);
#define FMA3(r) FMA2(r) z##r = _mm512_fmadd_ps(w, v2, z##r);
#define STEP1(r)                         \
    {                                    \
        __m512 w = _mm512_set1_ps(p[r]); \
        FMA1(r)                          \
    }
#define STEP2(r)                         \
    {                                    \
        __m512 w = _mm512_set1_ps(p[r]); \
        FMA2(r)                          \
    }
#define STEP3(r)                         \
    {                                    \
        __m512 w = _mm512_set1_ps(p[r]); \
        FMA3(r)                          \
    }
#define ADD(at, x) _mm512_storeu_ps((at), _mm512_add_ps(_mm512_loadu_ps(at), (x)))
#define ADD1(r) ADD(o + (r) * COL_PANEL, x##r);
#define ADD2(r) ADD1(r) ADD(o + (r) * COL_PANEL + 16, y##r);
#define ADD3(r) ADD2(r) ADD(o + (r) * COL_PANEL + 32, z##r);
#define VALUES1 __m512 v0 = _mm512_loadu_ps(v);
#define VALUES2 VALUES1 __m512 v1 = _mm512_loadu_ps(v + 16);
#define VALUES3 VALUES2 __m512 v2 = _mm512_loadu_ps(v + 32);
#define ROWS1(M) M(0)
#define ROWS4(M) M(0) M(1) M(2) M(3)
#define ROWS8(M) ROWS4(M) M(4) M(5) M(6) M(7)

#define TILE_BODY(EACH_ROW, ZERO, VALUES, STEP, ADD)                                      \
    EACH_ROW(ZERO)                                                                        \
    for (const float *end = v + n_key * COL_PANEL; v != end; v += COL_PANEL, p += ROWS) { \
        VALUES                                                                            \
        EACH_ROW(STEP)                                                                    \
    }                                                                                     \
    EACH_ROW(ADD)
#define TILE_ARGUMENTS const float *restrict p, const float *restrict v, int64_t n_key, float *restrict o

static void tile_8x48(TILE_ARGUMENTS)
{
    TILE_BODY(ROWS8, ZERO3, VALUES3, STEP3, ADD3)
}

static void tile_4x48(TILE_ARGUMENTS)
{
    TILE_BODY(ROWS4, ZERO3, VALUES3, STEP3, ADD3)
}

static void tile_1x48(TILE_ARGUMENTS)
{
    TILE_BODY(ROWS1, ZERO3, VALUES3, STEP3, ADD3)
}

static void tile_8x32(TILE_ARGUMENTS)
{
    TILE_BODY(ROWS8, ZERO2, VALUES2, STEP2, ADD2)
}

static void tile_8x16(TILE_ARGUMENTS)
{
    TILE_BODY(ROWS8, ZERO1, VALUES1, STEP1, ADD1)
}

void mla_pv_f32_avx512(const float *p, const float *v, int64_t n_key, int32_t n_row, int32_t n_col, float *o,
                       mla_prefetch *ahead)
{
    int32_t r = 0;
    while (r < n_row) {
        int32_t left = n_row - r, rows = 8;
        if (n_col <= 16) {
            tile_8x16(p + r, v, n_key, o + r * COL_PANEL);
        } else if (n_col <= 32) {
            tile_8x32(p + r, v, n_key, o + r * COL_PANEL);
        } else if (left > 4) {
            tile_8x48(p + r, v, n_key, o + r * COL_PANEL);
        } else if (left > 1) {
            tile_4x48(p + r, v, n_key, o + r * COL_PANEL);
            rows = 4;
        } else {
            tile_1x48(p + r, v, n_key, o + r * COL_PANEL);
            rows = 1;
        }
        for (int i = 0; i < rows / 2; i++) {
            mla_prefetch_step(ahead);
        }
        r += rows;
    }
}

void mla_merge_f32_avx512(float *o, const float *x, const float *a, const float *b, int64_t n_panel, int32_t n_row)
{
    for (int64_t panel = 0; panel < n_panel; panel++) {
        for (int32_t r = 0; r < n_row; r++) {
            int64_t at = (panel * ROWS + r) * COL_PANEL;
            __m512 scale = _mm512_set1_ps(a[r]);
            for (int64_t c = at; c < at + COL_PANEL; c += 16) {
                __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(o + c), scale);
                if (x) {
                    sum = _mm512_fmadd_ps(_mm512_loadu_ps(x + c), _mm512_set1_ps(b[r]), sum);
                }
                _mm512_storeu_ps(o + c, sum);
            }
        }
    }
}
