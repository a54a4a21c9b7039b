/*
 * fixed_avx2.c - what turns keys, queries and probabilities into integers.
 */
#include <immintrin.h>
#include <math.h>

#include "cpu/kernels_fixed.h"
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

/* Eight columns, unfolded. unfold is known to be NULL or not where this is compiled into a loop. */
static inline __m256 column8(const float *x, const float *unfold, int64_t c)
{
    __m256 y = _mm256_loadu_ps(x + c);
    return unfold ? _mm256_mul_ps(y, _mm256_loadu_ps(unfold + c)) : y;
}

static inline float column1(const float *x, const float *unfold, int64_t c)
{
    return unfold ? x[c] * unfold[c] : x[c];
}

static inline __attribute__((always_inline)) void norm(const float *x, const float *unfold, int64_t n_col,
                                                       float *square, float *largest)
{
    __m256 sum0 = _mm256_setzero_ps(), sum1 = sum0, sum2 = sum0, sum3 = sum0, top0 = sum0, top1 = sum0;
    int64_t c = 0;
    for (; c + 32 <= n_col; c += 32) { /* four sums: one would wait for itself */
        __m256 y0 = column8(x, unfold, c), y1 = column8(x, unfold, c + 8);
        __m256 y2 = column8(x, unfold, c + 16), y3 = column8(x, unfold, c + 24);
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
        float y = column1(x, unfold, c), size = fabsf(y);
        sum += y * y;
        top = size > top ? size : top;
    }
    *square += sum;
    *largest = top > *largest ? top : *largest;
}

void mla_fixed_norm_f32_avx2(const float *x, const float *unfold, int64_t n_col, float *square, float *largest)
{
    if (unfold) {
        norm(x, unfold, n_col, square, largest);
    } else {
        norm(x, NULL, n_col, square, largest);
    }
}

static inline __attribute__((always_inline)) void to_integers(const float *x, const float *unfold, int64_t n_col,
                                                              float factor, int16_t *to)
{
    __m256 f = _mm256_set1_ps(factor);
    int64_t c = 0;
    for (; c + 16 <= n_col; c += 16) {
        __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(column8(x, unfold, c), f));
        __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(column8(x, unfold, c + 8), f));
        __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
        _mm256_storeu_si256((__m256i *)(to + c), both);
    }
    for (; c < n_col; c++) {
        to[c] = (int16_t)_mm_cvtss_si32(_mm_set_ss(column1(x, unfold, c) * factor));
    }
}

void mla_fixed_round_f32_avx2(const float *x, const float *unfold, int64_t n_col, float factor, int16_t *to)
{
    if (unfold) {
        to_integers(x, unfold, n_col, factor, to);
    } else {
        to_integers(x, NULL, n_col, factor, to);
    }
}

void mla_fixed_pair_i16_avx2(const int16_t *even, const int16_t *odd, int64_t n_col, int16_t *v, int64_t panel_stride)
{
    for (int64_t c = 0; c < n_col; c += COL_PANEL, v += panel_stride) {
        int64_t end = n_col - c < COL_PANEL ? n_col - c : COL_PANEL, i = 0;
        for (; i + 8 <= end; i += 8) {
            __m128i x = _mm_loadu_si128((const __m128i *)(even + c + i));
            __m128i y = odd ? _mm_loadu_si128((const __m128i *)(odd + c + i)) : _mm_setzero_si128();
            __m256i both = _mm256_set_m128i(_mm_unpackhi_epi16(x, y), _mm_unpacklo_epi16(x, y));
            _mm256_storeu_si256((__m256i *)(v + 2 * i), both);
        }
        for (; i < end; i++) {
            v[2 * i] = even[c + i];
            v[2 * i + 1] = odd ? odd[c + i] : 0;
        }
    }
}

/* Two vectors of integers that fit into 16 bits, side by side in each lane. */
static inline __m256i pair_up(__m256i even, __m256i odd)
{
    return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
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
