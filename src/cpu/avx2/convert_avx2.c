/*
 * convert_avx2.c - storage formats in and out: load, pack, store.
 */
#include <immintrin.h>

#include "cpu/scalar/convert.h"
#include "tables_avx2.h"

enum { COL_PANEL = MLA_AVX2_COL_PANEL, ROWS = MLA_ROW_PANEL };

static inline __m256 load8_f32(const void *src, int64_t c)
{
    return _mm256_loadu_ps((const float *)src + c);
}

static inline __m256 load8_f16(const void *src, int64_t c)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)src + c)));
}

static inline __m256 load8_bf16(const void *src, int64_t c)
{
    __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)src + c));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static inline float load1_f32(const void *src, int64_t c)
{
    return ((const float *)src)[c];
}

static inline float load1_f16(const void *src, int64_t c)
{
    return mla_f32_from_f16(((const uint16_t *)src)[c]);
}

static inline float load1_bf16(const void *src, int64_t c)
{
    return mla_f32_from_bf16(((const uint16_t *)src)[c]);
}

/* Whole panels from a panel boundary on; what does not fit (an odd start, a tail) one element at a time. */
#define LOAD_BODY(LOAD8, LOAD1)                                                                    \
    for (int64_t n = 0; n < n_key; n++) {                                                          \
        const void *src = row[n];                                                                  \
        int64_t c = 0;                                                                             \
        if (col % COL_PANEL == 0) {                                                                \
            float *dst = block + col / COL_PANEL * panel_stride + n * COL_PANEL;                   \
            for (; c + COL_PANEL <= n_col; c += COL_PANEL, dst += panel_stride) {                  \
                _mm256_storeu_ps(dst, LOAD8(src, c));                                              \
                _mm256_storeu_ps(dst + 8, LOAD8(src, c + 8));                                      \
                _mm256_storeu_ps(dst + 16, LOAD8(src, c + 16));                                    \
            }                                                                                      \
            for (; c + 8 <= n_col; c += 8, dst += 8) {                                             \
                _mm256_storeu_ps(dst, LOAD8(src, c));                                              \
            }                                                                                      \
        }                                                                                          \
        for (; c < n_col; c++) {                                                                   \
            int64_t at = col + c;                                                                  \
            block[at / COL_PANEL * panel_stride + n * COL_PANEL + at % COL_PANEL] = LOAD1(src, c); \
        }                                                                                          \
    }

void mla_load_f32_avx2(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                       int64_t panel_stride)
{
    LOAD_BODY(load8_f32, load1_f32)
}

void mla_load_f16_avx2(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                       int64_t panel_stride)
{
    LOAD_BODY(load8_f16, load1_f16)
}

void mla_load_bf16_avx2(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                        int64_t panel_stride)
{
    LOAD_BODY(load8_bf16, load1_bf16)
}

#define PACK_BODY(LOAD8, LOAD1)                                                       \
    int64_t c = 0;                                                                    \
    for (; c + 8 <= n_col; c += 8) {                                                  \
        float part[8];                                                                \
        _mm256_storeu_ps(part, _mm256_mul_ps(LOAD8(src, c), _mm256_set1_ps(factor))); \
        for (int i = 0; i < 8; i++) {                                                 \
            q[(c + i) * ROWS] = part[i];                                              \
        }                                                                             \
    }                                                                                 \
    for (; c < n_col; c++) {                                                          \
        q[c * ROWS] = LOAD1(src, c) * factor;                                         \
    }

void mla_pack_f32_avx2(const void *src, int64_t n_col, float factor, float *q)
{
    PACK_BODY(load8_f32, load1_f32)
}

void mla_pack_f16_avx2(const void *src, int64_t n_col, float factor, float *q)
{
    PACK_BODY(load8_f16, load1_f16)
}

void mla_pack_bf16_avx2(const void *src, int64_t n_col, float factor, float *q)
{
    PACK_BODY(load8_bf16, load1_bf16)
}

/* Column c of a row inside a panelled accumulator. */
static inline const float *column(const float *o, int64_t c)
{
    return o + c / COL_PANEL * ROWS * COL_PANEL + c % COL_PANEL;
}

void mla_store_f32_avx2(const float *o, int64_t d_v, float factor, void *dst)
{
    int64_t c = 0;
    for (; c + 8 <= d_v; c += 8) {
        _mm256_storeu_ps((float *)dst + c, _mm256_mul_ps(_mm256_loadu_ps(column(o, c)), _mm256_set1_ps(factor)));
    }
    for (; c < d_v; c++) {
        ((float *)dst)[c] = *column(o, c) * factor;
    }
}

void mla_store_f16_avx2(const float *o, int64_t d_v, float factor, void *dst)
{
    int64_t c = 0;
    for (; c + 8 <= d_v; c += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(column(o, c)), _mm256_set1_ps(factor));
        _mm_storeu_si128((__m128i *)((uint16_t *)dst + c), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    for (; c < d_v; c++) {
        ((uint16_t *)dst)[c] = mla_f16_from_f32(*column(o, c) * factor);
    }
}

void mla_store_bf16_avx2(const float *o, int64_t d_v, float factor, void *dst)
{
    const __m256i bias = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1), quiet = _mm256_set1_epi32(0x400000);
    int64_t c = 0;
    for (; c + 8 <= d_v; c += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(column(o, c)), _mm256_set1_ps(factor));
        __m256i bits = _mm256_castps_si256(x);
        __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
        __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, bias), even);
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, quiet), nan);
        rounded = _mm256_srli_epi32(rounded, 16);
        __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
        _mm_storeu_si128((__m128i *)((uint16_t *)dst + c), packed);
    }
    for (; c < d_v; c++) {
        ((uint16_t *)dst)[c] = mla_bf16_from_f32(*column(o, c) * factor);
    }
}
