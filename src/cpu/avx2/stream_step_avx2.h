/*
 * stream_step_avx2.h - the step of the stream kernels, 8 lanes wide.
 *
 * A step of 16 columns becomes two vectors of fp32: bf16 by shifting and masking (even and odd columns), f16 by two
 * conversions, f32 as it is.
 */
#ifndef MLA_CPU_STREAM_STEP_AVX2_H
#define MLA_CPU_STREAM_STEP_AVX2_H

#include <string.h>

#include "stream_pairs.h"

enum { STEP = 16 };

/* The two vectors of the step that starts at p. */
INLINE void load_step(const char *p, mla_format format, __m256 *x, __m256 *y)
{
    if (format == MLA_FORMAT_BF16) {
        __m256i raw = _mm256_loadu_si256((const __m256i *)p);
        PIN(raw);
        *x = _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
        *y = _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32((int)0xffff0000u)));
    } else if (format == MLA_FORMAT_F16) {
        *x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
        *y = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16)));
    } else {
        *x = _mm256_loadu_ps((const float *)p);
        *y = _mm256_loadu_ps((const float *)p + 8);
    }
}

/* The columns from c on, fewer than a step, copied in front of zeros so that nothing past the row is read. */
INLINE void load_tail(const void *row, int64_t c, int64_t n_col, mla_format format, __m256 *x, __m256 *y)
{
    char buffer[STEP * 4] = {0};
    memcpy(buffer, column(row, c, format), (size_t)(column(row, n_col, format) - column(row, c, format)));
    load_step(buffer, format, x, y);
}

/* One key for one row. */
INLINE void values_1x1(const mla_stream_part *v, int64_t n, float *o, float weight, mla_format format)
{
    __m256 w = _mm256_set1_ps(weight), x, y;
    for (int64_t c = 0; c < v->n_col; c += STEP) {
        if (c + STEP <= v->n_col) {
            load_step(column(v->row[n], c, format), format, &x, &y);
        } else {
            load_tail(v->row[n], c, v->n_col, format, &x, &y);
        }
        _mm256_storeu_ps(o + c, _mm256_fmadd_ps(w, x, _mm256_loadu_ps(o + c)));
        _mm256_storeu_ps(o + c + 8, _mm256_fmadd_ps(w, y, _mm256_loadu_ps(o + c + 8)));
    }
}

#endif
