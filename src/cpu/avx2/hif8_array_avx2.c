/*
 * hif8_array_avx2.c - arrays of HiFloat8, for the format helpers.
 */
#include "cpu/scalar/hif8.h"
#include "hif8_avx2.h"
#include "tables_avx2.h"

void mla_encode_hif8_avx2(const float *x, int64_t n, bool saturate, uint8_t *code)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        hif8_encode8_avx2(_mm256_loadu_ps(x + i), saturate, code + i);
    }
    for (; i < n; i++) {
        code[i] = mla_hif8_from_f32(x[i], saturate);
    }
}

void mla_decode_hif8_avx2(const uint8_t *code, int64_t n, float *x)
{
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256 part[4];
        hif8_decode32_avx2(code + i, part);
        _mm256_storeu_ps(x + i, part[0]);
        _mm256_storeu_ps(x + i + 8, part[1]);
        _mm256_storeu_ps(x + i + 16, part[2]);
        _mm256_storeu_ps(x + i + 24, part[3]);
    }
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(x + i, hif8_decode8_avx2(code + i));
    }
    for (; i < n; i++) {
        x[i] = mla_f32_from_hif8(code[i]);
    }
}
