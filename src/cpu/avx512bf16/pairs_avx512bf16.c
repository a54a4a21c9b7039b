/*
 * pairs_avx512bf16.c - operands of the bf16 units: queries, probabilities and values in tiles of pairs.
 */
#include <immintrin.h>
#include <string.h>

#include "interleave.h"
#include "tables_avx512bf16.h"

enum { ROWS = MLA_ROW_PANEL, STEP = MLA_BF16_STEP, TILE = MLA_BF16_TILE };

/* 16 rows of 16 pairs become 16 columns of them. */
static inline void transpose_pairs(__m512i x[16])
{
    __m512i y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int i = 0; i < 4; i++) { /* x[4 b + i]: of rows 4 b ..: columns i, 4 + i, 8 + i, 12 + i, one per 128 bits */
        __m512i even_low = _mm512_shuffle_i32x4(x[i], x[4 + i], 0x88),
                odd_low = _mm512_shuffle_i32x4(x[i], x[4 + i], 0xdd);
        __m512i even_high = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0x88),
                odd_high = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0xdd);
        y[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        y[8 + i] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
        y[4 + i] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        y[12 + i] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
    memcpy(x, y, sizeof y);
}

static inline __mmask32 lanes_left(int64_t n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1;
}

/* 32 numbers times a power of two, which is exact but for numbers that leave the range. */
static inline __m512i scaled(__m512i x, __m512 factor)
{
    __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)));
    __m512i low = _mm512_srli_epi32(_mm512_castps_si512(_mm512_mul_ps(even, factor)), 16);
    __m512i high = _mm512_castps_si512(_mm512_mul_ps(odd, factor));
    return _mm512_mask_blend_epi16(0xaaaaaaaau, low, high);
}

void mla_qpairs_bf16_avx512bf16(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, uint16_t *q)
{
    for (int64_t c = 0; c < n_col; c += STEP, q += TILE) {
        __mmask32 lanes = lanes_left(n_col - c);
        __m512i x[ROWS];
        for (int32_t r = 0; r < ROWS; r++) {
            x[r] = r < n_row ? scaled(_mm512_maskz_loadu_epi16(lanes, (const uint16_t *)row[r] + c),
                                      _mm512_set1_ps(factor[r]))
                             : _mm512_setzero_si512();
        }
        transpose_pairs(x);
        for (int32_t i = 0; i < ROWS; i++) {
            _mm512_storeu_si512(q + (int64_t)i * STEP, x[i]);
        }
    }
}

/* What rounding x to the bf16 numbers in the upper or the lower half of `rounded` has left. */
static inline __m512 left_over(__m512 x, __m512i rounded)
{
    return _mm512_sub_ps(x, _mm512_castsi512_ps(rounded));
}

void mla_ppairs_bf16_avx512bf16(const float *from, int64_t n_key, int32_t n_part, uint16_t *p)
{
    /* lane r of a vector: the pair of row r */
    const __m512i pair = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                          21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    for (int64_t n = 0; n < n_key; n += STEP, from += STEP * ROWS) {
        __m512i part[2][ROWS];
        for (int i = 0; i < 16; i++) {
            __m512 even = _mm512_loadu_ps(from + (ptrdiff_t)2 * i * ROWS),
                   odd = _mm512_loadu_ps(from + (2 * i + 1) * ROWS);
            __m512i both = _mm512_permutexvar_epi16(pair, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
            part[0][i] = both;
            if (n_part > 1) {
                even = left_over(even, _mm512_slli_epi32(both, 16));
                odd = left_over(odd, _mm512_and_si512(both, upper));
                part[1][i] = _mm512_permutexvar_epi16(pair, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
            }
        }
        for (int32_t which = 0; which < n_part; which++, p += TILE) {
            transpose_pairs(part[which]);
            for (int i = 0; i < ROWS; i++) {
                _mm512_storeu_si512(p + (ptrdiff_t)i * STEP, part[which][i]);
            }
        }
    }
}

void mla_vpairs_bf16_avx512bf16(const void *const *row, int64_t n_key, int64_t n_col, uint16_t *v, int64_t v_stride)
{
    const mla_pair_order order = mla_pair_order_make();
    /* keys innermost: a step's rows, two lines of each, are read one after the other and two tiles written front to back */
    for (int64_t n = 0; n < n_key; n += STEP, v += TILE) {
        uint16_t *to = v;
        for (int64_t c = 0; c < n_col; c += STEP, to += 2 * v_stride) {
            __mmask32 lanes = lanes_left(n_col - c);
            bool both = n_col - c > 16;
            for (int64_t i = 0; i < STEP; i += 2) {
                const uint16_t *a = (const uint16_t *)row[n + i] + c, *b = (const uint16_t *)row[n + i + 1] + c;
                __m512i x = _mm512_maskz_loadu_epi16(lanes, a), y = _mm512_maskz_loadu_epi16(lanes, b);
                _mm512_storeu_si512(to + i * 16, _mm512_permutex2var_epi16(x, order.first, y));
                if (both) {
                    _mm512_storeu_si512(to + v_stride + i * 16, _mm512_permutex2var_epi16(x, order.second, y));
                }
            }
        }
    }
}
