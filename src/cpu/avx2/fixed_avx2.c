/*
 * fixed_avx2.c - what turns keys, queries and probabilities into integers.
 */
#include <immintrin.h>
#include <math.h>

#include "cpu/kernels_fixed.h"
#include "cpu/scalar/convert.h"
#include "tables_avx2.h"

enum { COL_PANEL = MLA_AVX2_COL_PANEL, ROWS = MLA_ROW_PANEL };

static inline __m256 absolute(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

/* Operand order: NaN in x is passed over. */
static inline __m256 larger(__m256 x, __m256 y)
{
    return _mm256_max_ps(x, y);
}

static inline float sum_of(__m256 x)
{
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

static inline float largest_of(__m256 x)
{
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

/* Columns from c on of a row in this format, unfolded. format and whether unfold is NULL are known where this is compiled
 * into a loop. */
static inline __attribute__((always_inline)) __m256 column8(mla_format format, const void *x, const float *unfold,
                                                            int64_t c)
{
    __m256 y;
    if (format == MLA_FORMAT_F32) {
        y = _mm256_loadu_ps((const float *)x + c);
    } else {
        __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)x + c));
        y = format == MLA_FORMAT_F16 ? _mm256_cvtph_ps(half)
                                     : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
    return unfold ? _mm256_mul_ps(y, _mm256_loadu_ps(unfold + c)) : y;
}

static inline __attribute__((always_inline)) float column1(mla_format format, const void *x, const float *unfold,
                                                           int64_t c)
{
    float y = format == MLA_FORMAT_F32   ? ((const float *)x)[c]
              : format == MLA_FORMAT_F16 ? mla_f32_from_f16(((const uint16_t *)x)[c])
                                         : mla_f32_from_bf16(((const uint16_t *)x)[c]);
    return unfold ? y * unfold[c] : y;
}

static inline __attribute__((always_inline)) void norm(mla_format format, const void *x, const float *unfold,
                                                       int64_t n_col, float *y, float *square, float *largest)
{
    __m256 sum0 = _mm256_setzero_ps(), sum1 = sum0, sum2 = sum0, sum3 = sum0, top0 = sum0, top1 = sum0;
    int64_t c = 0;
    for (; c + 32 <= n_col; c += 32) { /* four sums: one would wait for itself */
        __m256 y0 = column8(format, x, unfold, c), y1 = column8(format, x, unfold, c + 8);
        __m256 y2 = column8(format, x, unfold, c + 16), y3 = column8(format, x, unfold, c + 24);
        _mm256_storeu_ps(y + c, y0);
        _mm256_storeu_ps(y + c + 8, y1);
        _mm256_storeu_ps(y + c + 16, y2);
        _mm256_storeu_ps(y + c + 24, y3);
        sum0 = _mm256_fmadd_ps(y0, y0, sum0);
        sum1 = _mm256_fmadd_ps(y1, y1, sum1);
        sum2 = _mm256_fmadd_ps(y2, y2, sum2);
        sum3 = _mm256_fmadd_ps(y3, y3, sum3);
        top0 = larger(absolute(y0), larger(absolute(y1), top0));
        top1 = larger(absolute(y2), larger(absolute(y3), top1));
    }
    float sum = sum_of(_mm256_add_ps(_mm256_add_ps(sum0, sum1), _mm256_add_ps(sum2, sum3)));
    float top = largest_of(larger(top0, top1));
    for (; c < n_col; c++) {
        float size;
        y[c] = column1(format, x, unfold, c);
        size = fabsf(y[c]);
        sum += y[c] * y[c];
        top = size > top ? size : top;
    }
    *square += sum;
    *largest = top > *largest ? top : *largest;
}

#define NORM(format)                                        \
    if (unfold) {                                           \
        norm(format, x, unfold, n_col, y, square, largest); \
    } else {                                                \
        norm(format, x, NULL, n_col, y, square, largest);   \
    }

void mla_fixed_norm_f32_avx2(const void *x, const float *unfold, int64_t n_col, float *y, float *square, float *largest)
{
    NORM(MLA_FORMAT_F32)
}

void mla_fixed_norm_f16_avx2(const void *x, const float *unfold, int64_t n_col, float *y, float *square, float *largest)
{
    NORM(MLA_FORMAT_F16)
}

void mla_fixed_norm_bf16_avx2(const void *x, const float *unfold, int64_t n_col, float *y, float *square,
                              float *largest)
{
    NORM(MLA_FORMAT_BF16)
}

/* Two vectors of integers that fit into 16 bits, side by side in each lane. */
static inline __m256i pair_up(__m256i even, __m256i odd)
{
    return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
}

static inline __m256i integers8(const float *y, __m256 factor)
{
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(y), factor));
}

static inline void store16(int16_t *to, __m256i low, __m256i high)
{
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8));
}

/* 16 columns from c on to both rows of k, and to v: the first 8 pairs to `low`, the others to `high`, NULL: nowhere. */
static inline __attribute__((always_inline)) void keys16(const mla_fixed_key *even, const mla_fixed_key *odd, int64_t c,
                                                         int16_t *low, int16_t *high)
{
    __m256 factor = _mm256_broadcast_ss(&even->factor);
    __m256i a0 = integers8(even->y + c, factor), a1 = integers8(even->y + c + 8, factor);
    __m256i b0 = _mm256_setzero_si256(), b1 = b0;
    store16(even->k + c, a0, a1);
    if (odd) {
        factor = _mm256_broadcast_ss(&odd->factor);
        b0 = integers8(odd->y + c, factor);
        b1 = integers8(odd->y + c + 8, factor);
        store16(odd->k + c, b0, b1);
    }
    if (low) {
        _mm256_storeu_si256((__m256i *)low, pair_up(a0, b0));
        _mm256_storeu_si256((__m256i *)high, pair_up(a1, b1));
    }
}

/* Where the pair of column c goes. Eight columns from a multiple of 8 on lie side by side, for 8 divides a panel. */
static inline int16_t *pair_place(int16_t *v, int64_t panel_stride, int64_t c)
{
    return v + c / COL_PANEL * panel_stride + c % COL_PANEL * 2;
}

static inline int16_t integer(const mla_fixed_key *key, int64_t c)
{
    return (int16_t)_mm_cvtss_si32(_mm_set_ss(key->y[c] * key->factor));
}

static inline __attribute__((always_inline)) void keys(const mla_fixed_key *even, const mla_fixed_key *odd,
                                                       int64_t n_col, int64_t n_value, int16_t *v, int64_t panel_stride)
{
    int64_t c = 0;
    for (; c + 2 * COL_PANEL <= n_value; c += 2 * COL_PANEL) { /* two panels are three times 16 columns */
        int16_t *first = v + c / COL_PANEL * panel_stride, *second = first + panel_stride;
        keys16(even, odd, c, first, first + 16);
        keys16(even, odd, c + 16, first + 32, second);
        keys16(even, odd, c + 32, second + 16, second + 32);
    }
    for (; c + 16 <= n_value; c += 16) {
        keys16(even, odd, c, pair_place(v, panel_stride, c), pair_place(v, panel_stride, c + 8));
    }
    for (; c < n_value; c++) {
        int16_t *pair = pair_place(v, panel_stride, c);
        pair[0] = even->k[c] = integer(even, c);
        pair[1] = 0;
        if (odd) {
            pair[1] = odd->k[c] = integer(odd, c);
        }
    }
    for (; c + 16 <= n_col; c += 16) {
        keys16(even, odd, c, NULL, NULL);
    }
    for (; c < n_col; c++) {
        even->k[c] = integer(even, c);
        if (odd) {
            odd->k[c] = integer(odd, c);
        }
    }
}

void mla_fixed_keys_f32_avx2(const mla_fixed_key *even, const mla_fixed_key *odd, int64_t n_col, int64_t n_value,
                             int16_t *v, int64_t panel_stride)
{
    if (odd) {
        keys(even, odd, n_col, n_value, v, panel_stride);
    } else {
        keys(even, NULL, n_col, n_value, v, panel_stride);
    }
}

static void query_half(const float *q, const float *fold, int64_t n_col, int16_t *to, float *unit)
{
    __m256 square = _mm256_setzero_ps(), top = square;
    for (int64_t c = 0; c < n_col; c++) {
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(q + c * ROWS), _mm256_broadcast_ss(fold + c));
        square = _mm256_fmadd_ps(y, y, square);
        top = larger(absolute(y), top);
    }
    float squares[8], tops[8], factors[8];
    _mm256_storeu_ps(squares, square);
    _mm256_storeu_ps(tops, top);
    for (int r = 0; r < 8; r++) {
        bool sound = mla_fixed_factor(squares[r], tops[r], &factors[r]);
        unit[r] = !sound ? NAN : factors[r] > 0 ? 1 / factors[r] : 0;
    }
    __m256 factor = _mm256_loadu_ps(factors);
    __m256i used = _mm256_castps_si256(_mm256_cmp_ps(factor, _mm256_setzero_ps(), _CMP_GT_OQ)); /* 0 * NaN is no 0 */
    for (int64_t c = 0; c < n_col; c += 2) {
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(q + c * ROWS), _mm256_broadcast_ss(fold + c)), z = _mm256_setzero_ps();
        if (c + 1 < n_col) {
            z = _mm256_mul_ps(_mm256_loadu_ps(q + (c + 1) * ROWS), _mm256_broadcast_ss(fold + c + 1));
        }
        __m256i pair =
            pair_up(_mm256_cvtps_epi32(_mm256_mul_ps(y, factor)), _mm256_cvtps_epi32(_mm256_mul_ps(z, factor)));
        _mm256_storeu_si256((__m256i *)(to + c * ROWS), _mm256_and_si256(pair, used));
    }
}

void mla_fixed_query_f32_avx2(const float *q, const float *fold, int64_t n_col, int16_t *to, float *unit)
{
    query_half(q, fold, n_col, to, unit);
    query_half(q + 8, fold, n_col, to + 16, unit + 8);
}

static void p_half(const float *p, int64_t n_key, const float *unit, const float *largest, int16_t *to, float *weight)
{
    __m256 top = _mm256_setzero_ps(), sum = top;
    for (int64_t n = 0; n < n_key; n++) {
        __m256 x = _mm256_loadu_ps(p + n * ROWS);
        top = larger(_mm256_mul_ps(x, _mm256_broadcast_ss(unit + n)), top);
        sum = _mm256_fmadd_ps(x, _mm256_broadcast_ss(largest + n), sum);
    }
    float tops[8], sums[8], factors[8];
    _mm256_storeu_ps(tops, top);
    _mm256_storeu_ps(sums, sum);
    for (int r = 0; r < 8; r++) {
        factors[r] = mla_fixed_p_factor(tops[r], sums[r]);
        weight[r] = factors[r] > 0 ? 1 / factors[r] : 0;
    }
    __m256 factor = _mm256_loadu_ps(factors);
    for (int64_t n = 0; n < n_key; n += 2) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(p + n * ROWS), _mm256_broadcast_ss(unit + n)), y = _mm256_setzero_ps();
        if (n + 1 < n_key) {
            y = _mm256_mul_ps(_mm256_loadu_ps(p + (n + 1) * ROWS), _mm256_broadcast_ss(unit + n + 1));
        }
        __m256i pair =
            pair_up(_mm256_cvtps_epi32(_mm256_mul_ps(x, factor)), _mm256_cvtps_epi32(_mm256_mul_ps(y, factor)));
        _mm256_storeu_si256((__m256i *)(to + n * ROWS), pair);
    }
}

void mla_fixed_p_f32_avx2(const float *p, int64_t n_key, const float *unit, const float *largest, int16_t *to,
                          float *weight)
{
    p_half(p, n_key, unit, largest, to, weight);
    p_half(p + 8, n_key, unit, largest, to + 16, weight + 8);
}
