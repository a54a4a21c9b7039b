/*
 * qk_avx512bf16.c - scores by products of pairs: 8 keys by 2 panels of 16 rows, 16 accumulators. A pair of a key's columns
 * is broadcast from where it lies.
 */
#include <immintrin.h>
#include <string.h>

#include "tables_avx512bf16.h"

enum { ROWS = MLA_ROW_PANEL, STEP = MLA_BF16_STEP, KEYS = 8 };

#define EACH(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
#define PAIR(i) pair_at(k + (i) * stride + 4 * c)

/* A pair of numbers, in all lanes. Keys are aligned to one. */
static inline __m512bh pair_at(const char *at)
{
    int32_t pair;
    memcpy(&pair, at, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

static inline void tile_8x2(const uint16_t *q, int64_t q_stride, const char *k, int64_t stride, int64_t n_col,
                            bool accumulate, float *s, int64_t s_stride)
{
    const int64_t n_pair = n_col / 2;
#define ZERO(i) __m512 a##i = _mm512_setzero_ps(), b##i = a##i;
#define PRODUCT(i)                            \
    {                                         \
        __m512bh x = PAIR(i);                 \
        a##i = _mm512_dpbf16_ps(a##i, x, q0); \
        b##i = _mm512_dpbf16_ps(b##i, x, q1); \
    }
#define ADD(i)                                                   \
    a##i = _mm512_add_ps(a##i, _mm512_loadu_ps(s + (i) * ROWS)); \
    b##i = _mm512_add_ps(b##i, _mm512_loadu_ps(s + s_stride + (i) * ROWS));
#define SAVE(i)                             \
    _mm512_storeu_ps(s + (i) * ROWS, a##i); \
    _mm512_storeu_ps(s + s_stride + (i) * ROWS, b##i);
    EACH(ZERO)
    for (int64_t c = 0; c < n_pair; c++) {
        __m512bh q0 = (__m512bh)_mm512_loadu_si512(q + c * 2 * ROWS);
        __m512bh q1 = (__m512bh)_mm512_loadu_si512(q + q_stride + c * 2 * ROWS);
        EACH(PRODUCT)
    }
    if (accumulate) {
        EACH(ADD)
    }
    EACH(SAVE)
#undef ZERO
#undef PRODUCT
#undef ADD
#undef SAVE
}

static inline void tile_8x1(const uint16_t *q, const char *k, int64_t stride, int64_t n_col, bool accumulate, float *s)
{
    const int64_t n_pair = n_col / 2;
#define ZERO(i) __m512 a##i = _mm512_setzero_ps();
#define PRODUCT(i) a##i = _mm512_dpbf16_ps(a##i, PAIR(i), q0);
#define ADD(i) a##i = _mm512_add_ps(a##i, _mm512_loadu_ps(s + (i) * ROWS));
#define SAVE(i) _mm512_storeu_ps(s + (i) * ROWS, a##i);
    EACH(ZERO)
    for (int64_t c = 0; c < n_pair; c++) {
        __m512bh q0 = (__m512bh)_mm512_loadu_si512(q + c * 2 * ROWS);
        EACH(PRODUCT)
    }
    if (accumulate) {
        EACH(ADD)
    }
    EACH(SAVE)
#undef ZERO
#undef PRODUCT
#undef ADD
#undef SAVE
}

void mla_qk_bf16_avx512bf16(const uint16_t *q, int64_t q_stride, const mla_key_tile *tile, int64_t n_tile,
                            int64_t n_col, int64_t n_panel, bool accumulate, float *s, int64_t s_stride,
                            mla_prefetch *ahead)
{
    for (int64_t panel = 0; panel < n_panel; panel += 2) {
        const uint16_t *from = q + panel * q_stride;
        for (int64_t i = 0; i < 2 * n_tile; i++) {
            const char *k = (const char *)tile[i / 2].row + i % 2 * KEYS * tile[i / 2].stride;
            float *to = s + panel * s_stride + i * KEYS * ROWS;
            if (panel + 1 < n_panel) {
                tile_8x2(from, q_stride, k, tile[i / 2].stride, n_col, accumulate, to, s_stride);
            } else {
                tile_8x1(from, k, tile[i / 2].stride, n_col, accumulate, to);
            }
            mla_prefetch_step(ahead);
        }
    }
}
