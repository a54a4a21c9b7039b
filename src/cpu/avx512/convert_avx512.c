/*
 * convert_avx512.c - storage formats in and out: load and store. Masked loads and stores end exactly where a row does.
 */
#include <immintrin.h>

#include "cpu/avx2/hif8_avx2.h"
#include "tables_avx512.h"

enum { ALL = 0xffff };
enum { COL_PANEL = MLA_AVX512_COL_PANEL, ROWS = MLA_ROW_PANEL };

static inline __mmask16 lanes_left(int64_t n)
{
    return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

static inline __m512 load16_f32(const void *src, int64_t c, __mmask16 lanes)
{
    return lanes == ALL ? _mm512_loadu_ps((const float *)src + c)
                        : _mm512_maskz_loadu_ps(lanes, (const float *)src + c);
}

static inline __m256i load16_raw(const void *src, int64_t c, __mmask16 lanes)
{
    const uint16_t *from = (const uint16_t *)src + c;
    return lanes == ALL ? _mm256_loadu_si256((const __m256i *)from) : _mm256_maskz_loadu_epi16(lanes, from);
}

static inline __m512 load16_f16(const void *src, int64_t c, __mmask16 lanes)
{
    return _mm512_cvtph_ps(load16_raw(src, c, lanes));
}

static inline __m512 load16_bf16(const void *src, int64_t c, __mmask16 lanes)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load16_raw(src, c, lanes)), 16));
}

static inline __m128i load16_bytes(const void *src, int64_t c, __mmask16 lanes)
{
    const uint8_t *from = (const uint8_t *)src + c;
    return lanes == ALL ? _mm_loadu_si128((const __m128i *)from) : _mm_maskz_loadu_epi8(lanes, from);
}

static inline __m512 load16_i8(const void *src, int64_t c, __mmask16 lanes)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16_bytes(src, c, lanes)));
}

static inline __m512 load16_hif8(const void *src, int64_t c, __mmask16 lanes)
{
    __m256i low, high; /* the first eight codes of each half come out in low */
    __m256i codes = _mm256_permute4x64_epi64(_mm256_zextsi128_si256(load16_bytes(src, c, lanes)), 0xd8);
    hif8_to_bf16_avx2(codes, &low, &high);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16));
}

/* Whole panels from a panel boundary on; what does not fit (an odd start, a tail) in pieces that end at multiples of
 * 16. A masked store costs several plain ones, so whole panels go without. */
#define LOAD_BODY(LOAD16)                                                                          \
    for (int64_t n = 0; n < n_key; n++) {                                                          \
        int64_t c = 0;                                                                             \
        float *dst = block + col / COL_PANEL * panel_stride + n * COL_PANEL;                       \
        for (; col % COL_PANEL == 0 && c + COL_PANEL <= n_col; c += COL_PANEL) {                   \
            _mm512_storeu_ps(dst, LOAD16(row[n], c, ALL));                                         \
            _mm512_storeu_ps(dst + 16, LOAD16(row[n], c + 16, ALL));                               \
            _mm512_storeu_ps(dst + 32, LOAD16(row[n], c + 32, ALL));                               \
            dst += panel_stride;                                                                   \
        }                                                                                          \
        while (c < n_col) {                                                                        \
            int64_t at = col + c, room = 16 - at % 16, take = n_col - c < room ? n_col - c : room; \
            __mmask16 lanes = lanes_left(take);                                                    \
            dst = block + at / COL_PANEL * panel_stride + n * COL_PANEL + at % COL_PANEL;          \
            _mm512_mask_storeu_ps(dst, lanes, LOAD16(row[n], c, lanes));                           \
            c += take;                                                                             \
        }                                                                                          \
    }

void mla_load_f32_avx512(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                         int64_t panel_stride)
{
    LOAD_BODY(load16_f32)
}

void mla_load_f16_avx512(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                         int64_t panel_stride)
{
    LOAD_BODY(load16_f16)
}

void mla_load_bf16_avx512(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                          int64_t panel_stride)
{
    LOAD_BODY(load16_bf16)
}

void mla_load_hif8_avx512(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                          int64_t panel_stride)
{
    LOAD_BODY(load16_hif8)
}

void mla_load_i8_avx512(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                        int64_t panel_stride)
{
    LOAD_BODY(load16_i8)
}

/* Columns [c, c + 16) of a row inside a panelled accumulator. */
static inline __m512 result16(const float *o, int64_t c, float factor)
{
    return _mm512_mul_ps(_mm512_loadu_ps(o + c / COL_PANEL * ROWS * COL_PANEL + c % COL_PANEL), _mm512_set1_ps(factor));
}

void mla_store_f32_avx512(const float *o, int64_t d_v, float factor, void *dst)
{
    for (int64_t c = 0; c < d_v; c += 16) {
        _mm512_mask_storeu_ps((float *)dst + c, lanes_left(d_v - c), result16(o, c, factor));
    }
}

void mla_store_f16_avx512(const float *o, int64_t d_v, float factor, void *dst)
{
    for (int64_t c = 0; c < d_v; c += 16) {
        __m256i half = _mm512_cvtps_ph(result16(o, c, factor), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_mask_storeu_epi16((uint16_t *)dst + c, lanes_left(d_v - c), half);
    }
}

void mla_store_bf16_avx512(const float *o, int64_t d_v, float factor, void *dst)
{
    const __m512i bias = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1), quiet = _mm512_set1_epi32(0x400000);
    for (int64_t c = 0; c < d_v; c += 16) {
        __m512 x = result16(o, c, factor);
        __m512i bits = _mm512_castps_si512(x), even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
        __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, bias), even);
        __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        rounded = _mm512_mask_or_epi32(rounded, nan, bits, quiet);
        __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
        _mm256_mask_storeu_epi16((uint16_t *)dst + c, lanes_left(d_v - c), half);
    }
}
