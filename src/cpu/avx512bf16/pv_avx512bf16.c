/*
 * pv_avx512bf16.c - values by products of pairs: 8 rows by 3 groups of 16 columns, 24 accumulators that stay in registers
 * over the whole block.
 */
#include <immintrin.h>

#include "cpu/avx512/tables_avx512.h"
#include "tables_avx512bf16.h"

enum { COL_PANEL = MLA_AVX512_COL_PANEL, ROWS = MLA_ROW_PANEL, STEP = MLA_BF16_STEP, TILE = MLA_BF16_TILE };

#define EACH(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
#define PAIR(r) (__m512bh) _mm512_set1_epi32(((const int32_t *)(p + (ptrdiff_t)(r) * STEP))[i])
#define ADD(at, x) _mm512_storeu_ps((at), _mm512_add_ps(_mm512_loadu_ps(at), (x)))
#define ZERO1(r) __m512 x##r = _mm512_setzero_ps();
#define ZERO2(r) ZERO1(r) __m512 y##r = _mm512_setzero_ps();
#define ZERO3(r) ZERO2(r) __m512 z##r = _mm512_setzero_ps();
#define DOT1(r) x##r = _mm512_dpbf16_ps(x##r, w, v0);
#define DOT2(r) DOT1(r) y##r = _mm512_dpbf16_ps(y##r, w, v1);
#define DOT3(r) DOT2(r) z##r = _mm512_dpbf16_ps(z##r, w, v2);
#define STEP1(r)              \
    {                         \
        __m512bh w = PAIR(r); \
        DOT1(r)               \
    }
#define STEP2(r)              \
    {                         \
        __m512bh w = PAIR(r); \
        DOT2(r)               \
    }
#define STEP3(r)              \
    {                         \
        __m512bh w = PAIR(r); \
        DOT3(r)               \
    }
#define VALUES1 __m512bh v0 = (__m512bh)_mm512_loadu_si512(v + (ptrdiff_t)i * STEP);
#define VALUES2 VALUES1 __m512bh v1 = (__m512bh)_mm512_loadu_si512(v + v_stride + (ptrdiff_t)i * STEP);
#define VALUES3 VALUES2 __m512bh v2 = (__m512bh)_mm512_loadu_si512(v + 2 * v_stride + (ptrdiff_t)i * STEP);
#define ADD1(r) ADD(o + (r) * COL_PANEL, x##r);
#define ADD2(r) ADD1(r) ADD(o + (r) * COL_PANEL + 16, y##r);
#define ADD3(r) ADD2(r) ADD(o + (r) * COL_PANEL + 32, z##r);

#define TILE_BODY(ZERO, VALUES, STEP_OF, ADD_OF)                   \
    EACH(ZERO)                                                     \
    for (int64_t n = 0; n < n_key; n += STEP, v += TILE) {         \
        for (int32_t part = 0; part < n_part; part++, p += TILE) { \
            for (int i = 0; i < 16; i++) {                         \
                VALUES                                             \
                EACH(STEP_OF)                                      \
            }                                                      \
        }                                                          \
    }                                                              \
    EACH(ADD_OF)

static void tile_8x48(const uint16_t *p, int32_t n_part, const uint16_t *v, int64_t v_stride, int64_t n_key, float *o)
{
    TILE_BODY(ZERO3, VALUES3, STEP3, ADD3)
}

static void tile_8x32(const uint16_t *p, int32_t n_part, const uint16_t *v, int64_t v_stride, int64_t n_key, float *o)
{
    TILE_BODY(ZERO2, VALUES2, STEP2, ADD2)
}

static void tile_8x16(const uint16_t *p, int32_t n_part, const uint16_t *v, int64_t n_key, float *o)
{
    TILE_BODY(ZERO1, VALUES1, STEP1, ADD1)
}

void mla_pv_bf16_avx512bf16(const uint16_t *p, int64_t p_stride, int32_t n_part, const uint16_t *v, int64_t v_stride,
                            int64_t n_key, int64_t n_panel, int64_t n_col, float *const *o, mla_prefetch *ahead)
{
    for (int64_t c = 0; c < n_col; c += COL_PANEL, v += COL_PANEL / 16 * v_stride) {
        for (int64_t panel = 0; panel < n_panel; panel++) {
            for (int r = 0; r < ROWS; r += 8) {
                const uint16_t *from = p + panel * p_stride + (ptrdiff_t)r * STEP;
                float *to = o[panel] + c * ROWS + (ptrdiff_t)r * COL_PANEL;
                if (n_col - c > 32) {
                    tile_8x48(from, n_part, v, v_stride, n_key, to);
                } else if (n_col - c > 16) {
                    tile_8x32(from, n_part, v, v_stride, n_key, to);
                } else {
                    tile_8x16(from, n_part, v, n_key, to);
                }
                mla_prefetch_step(ahead);
            }
        }
    }
}
