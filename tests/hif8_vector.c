/*
 * hif8_vector.c - see hif8_vector.h. Called only after the test has looked at the machine.
 */
#include "hif8_vector.h"

#if defined(__AVX2__)

#include "cpu/avx2/hif8_avx2.h"

void hif8_vector_decode32(const uint8_t code[32], float x[32])
{
    __m256 part[4];
    hif8_decode32_avx2(code, part);
    _mm256_storeu_ps(x, part[0]);
    _mm256_storeu_ps(x + 8, part[1]);
    _mm256_storeu_ps(x + 16, part[2]);
    _mm256_storeu_ps(x + 24, part[3]);
}

void hif8_vector_decode8(const uint8_t code[8], float x[8])
{
    _mm256_storeu_ps(x, hif8_decode8_avx2(code));
}

void hif8_vector_round8(const float x[8], float rounded[8])
{
    _mm256_storeu_ps(rounded, hif8_round_avx2(_mm256_loadu_ps(x)));
}

void hif8_vector_encode8(const float x[8], bool saturate, uint8_t code[8])
{
    hif8_encode8_avx2(_mm256_loadu_ps(x), saturate, code);
}

#else /* another architecture: never called */

#include "cpu/scalar/hif8.h"

void hif8_vector_decode32(const uint8_t code[32], float x[32])
{
    x[0] = mla_f32_from_hif8(code[0]);
}

void hif8_vector_decode8(const uint8_t code[8], float x[8])
{
    x[0] = mla_f32_from_hif8(code[0]);
}

void hif8_vector_round8(const float x[8], float rounded[8])
{
    rounded[0] = mla_f32_rounded_to_hif8(x[0]);
}

void hif8_vector_encode8(const float x[8], bool saturate, uint8_t code[8])
{
    code[0] = mla_hif8_from_f32(x[0], saturate);
}

#endif
