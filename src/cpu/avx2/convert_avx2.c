/*
 * convert_avx2.c - storage formats in and out: load, pack, store.
 */
#include <immintrin.h>

#include "cpu/scalar/convert.h"
#include "cpu/scalar/hif8.h"
#include "hif8_avx2.h"
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

static inline __m256 load8_hif8(const void *src, int64_t c)
{
    return hif8_decode8_avx2((const uint8_t *)src + c);
}

static inline __m256 load8_i8(const void *src, int64_t c)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)((const int8_t *)src + c))));
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

static inline float load1_hif8(const void *src, int64_t c)
{
    return mla_f32_from_hif8(((const uint8_t *)src)[c]);
}

static inline float load1_i8(const void *src, int64_t c)
{
    return ((const int8_t *)src)[c];
}

/* Column `at` of key n. Eight columns from a multiple of 8 on lie side by side, for 8 divides a panel. */
static inline float *block_column(float *block, int64_t panel_stride, int64_t n, int64_t at)
{
    return block + at / COL_PANEL * panel_stride + n * COL_PANEL + at % COL_PANEL;
}

/* Few columns (pieces of layout NZ): what depends on the column is then worth more outside the loop over keys. */
enum { NARROW = 32 };

static inline bool is_narrow(int64_t n_col, int64_t col)
{
    return n_col <= NARROW && n_col % 8 == 0 && col % 8 == 0;
}

/* Whole panels from a panel boundary on; then vectors, which a multiple of 8 keeps inside a panel; what does not fit (an
 * odd start, a tail) one element at a time. Narrow pieces column by column, two vectors of all keys at a time. */
#define LOAD_BODY(LOAD8, LOAD1)                                                                 \
    for (int64_t c = 0; is_narrow(n_col, col) && c < n_col; c += 16) {                          \
        float *dst = block_column(block, panel_stride, 0, col + c);                             \
        float *more = c + 8 < n_col ? block_column(block, panel_stride, 0, col + c + 8) : NULL; \
        for (int64_t n = 0; more && n < n_key; n++) {                                           \
            _mm256_storeu_ps(dst + n * COL_PANEL, LOAD8(row[n], c));                            \
            _mm256_storeu_ps(more + n * COL_PANEL, LOAD8(row[n], c + 8));                       \
        }                                                                                       \
        for (int64_t n = 0; !more && n < n_key; n++) {                                          \
            _mm256_storeu_ps(dst + n * COL_PANEL, LOAD8(row[n], c));                            \
        }                                                                                       \
    }                                                                                           \
    for (int64_t n = 0; !is_narrow(n_col, col) && n < n_key; n++) {                             \
        const void *src = row[n];                                                               \
        int64_t c = 0;                                                                          \
        if (col % COL_PANEL == 0) {                                                             \
            float *dst = block + col / COL_PANEL * panel_stride + n * COL_PANEL;                \
            for (; c + COL_PANEL <= n_col; c += COL_PANEL, dst += panel_stride) {               \
                _mm256_storeu_ps(dst, LOAD8(src, c));                                           \
                _mm256_storeu_ps(dst + 8, LOAD8(src, c + 8));                                   \
                _mm256_storeu_ps(dst + 16, LOAD8(src, c + 16));                                 \
            }                                                                                   \
        }                                                                                       \
        for (; col % 8 == 0 && c + 8 <= n_col; c += 8) {                                        \
            _mm256_storeu_ps(block_column(block, panel_stride, n, col + c), LOAD8(src, c));     \
        }                                                                                       \
        for (; c < n_col; c++) {                                                                \
            *block_column(block, panel_stride, n, col + c) = LOAD1(src, c);                     \
        }                                                                                       \
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

void mla_load_i8_avx2(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                      int64_t panel_stride)
{
    LOAD_BODY(load8_i8, load1_i8)
}

/* Decoding 32 codes at once costs little more than 8. */
void mla_load_hif8_avx2(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                        int64_t panel_stride)
{
    if (is_narrow(n_col, col) && n_col == 32) {
        float *dst[4];
        for (int64_t i = 0; i < 4; i++) {
            dst[i] = block_column(block, panel_stride, 0, col + 8 * i);
        }
        for (int64_t n = 0; n < n_key; n++) {
            __m256 x[4];
            hif8_decode32_avx2(row[n], x);
            _mm256_storeu_ps(dst[0] + n * COL_PANEL, x[0]);
            _mm256_storeu_ps(dst[1] + n * COL_PANEL, x[1]);
            _mm256_storeu_ps(dst[2] + n * COL_PANEL, x[2]);
            _mm256_storeu_ps(dst[3] + n * COL_PANEL, x[3]);
        }
        return;
    }
    for (int64_t n = 0; n < n_key; n++) {
        const void *src = row[n];
        __m256 x[4];
        int64_t c = 0;
        for (; col % COL_PANEL == 0 && c + 4 * COL_PANEL <= n_col; c += 4 * COL_PANEL) {
            float *dst = block_column(block, panel_stride, n, col + c);
            const uint8_t *code = (const uint8_t *)src + c;
            hif8_decode32_avx2(code, x);
            _mm256_storeu_ps(dst, x[0]);
            _mm256_storeu_ps(dst + 8, x[1]);
            _mm256_storeu_ps(dst + 16, x[2]);
            _mm256_storeu_ps(dst + panel_stride, x[3]);
            hif8_decode32_avx2(code + 32, x);
            _mm256_storeu_ps(dst + panel_stride + 8, x[0]);
            _mm256_storeu_ps(dst + panel_stride + 16, x[1]);
            _mm256_storeu_ps(dst + 2 * panel_stride, x[2]);
            _mm256_storeu_ps(dst + 2 * panel_stride + 8, x[3]);
            hif8_decode32_avx2(code + 64, x);
            _mm256_storeu_ps(dst + 2 * panel_stride + 16, x[0]);
            _mm256_storeu_ps(dst + 3 * panel_stride, x[1]);
            _mm256_storeu_ps(dst + 3 * panel_stride + 8, x[2]);
            _mm256_storeu_ps(dst + 3 * panel_stride + 16, x[3]);
        }
        for (; col % 8 == 0 && c + 32 <= n_col; c += 32) {
            hif8_decode32_avx2((const uint8_t *)src + c, x);
            _mm256_storeu_ps(block_column(block, panel_stride, n, col + c), x[0]);
            _mm256_storeu_ps(block_column(block, panel_stride, n, col + c + 8), x[1]);
            _mm256_storeu_ps(block_column(block, panel_stride, n, col + c + 16), x[2]);
            _mm256_storeu_ps(block_column(block, panel_stride, n, col + c + 24), x[3]);
        }
        for (; col % 8 == 0 && c + 8 <= n_col; c += 8) {
            _mm256_storeu_ps(block_column(block, panel_stride, n, col + c), load8_hif8(src, c));
        }
        for (; c < n_col; c++) {
            *block_column(block, panel_stride, n, col + c) = load1_hif8(src, c);
        }
    }
}

/* Eight rows of eight numbers become eight columns, a panel apart. */
static inline void store_columns(const __m256 row[8], float *q)
{
    __m256 pair[8], four[8];
    for (int i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        four[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
        four[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
        four[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
        four[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(q + i * ROWS, _mm256_permute2f128_ps(four[i], four[i + 4], 0x20));
        _mm256_storeu_ps(q + (i + 4) * ROWS, _mm256_permute2f128_ps(four[i], four[i + 4], 0x31));
    }
}

#define PACK_BODY(LOAD8, LOAD1)                                                                                      \
    int64_t c = 0;                                                                                                   \
    for (; c + 8 <= n_col; c += 8) {                                                                                 \
        for (int32_t half = 0; half < ROWS; half += 8) {                                                             \
            __m256 x[8];                                                                                             \
            for (int32_t i = 0; i < 8; i++) {                                                                        \
                int32_t r = half + i;                                                                                \
                x[i] = r < n_row ? _mm256_mul_ps(LOAD8(row[r], c), _mm256_set1_ps(factor[r])) : _mm256_setzero_ps(); \
            }                                                                                                        \
            store_columns(x, q + c * ROWS + half);                                                                   \
        }                                                                                                            \
    }                                                                                                                \
    for (; c < n_col; c++) {                                                                                         \
        for (int32_t r = 0; r < ROWS; r++) {                                                                         \
            q[c * ROWS + r] = r < n_row ? LOAD1(row[r], c) * factor[r] : 0;                                          \
        }                                                                                                            \
    }

void mla_pack_f32_avx2(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    PACK_BODY(load8_f32, load1_f32)
}

void mla_pack_f16_avx2(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    PACK_BODY(load8_f16, load1_f16)
}

void mla_pack_bf16_avx2(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    PACK_BODY(load8_bf16, load1_bf16)
}

void mla_pack_hif8_avx2(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    PACK_BODY(load8_hif8, load1_hif8)
}

void mla_pack_i8_avx2(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    PACK_BODY(load8_i8, load1_i8)
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
