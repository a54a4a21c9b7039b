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

#elif defined(__aarch64__)

#include "cpu/neon/hif8_neon.h"

void hif8_vector_decode32(const uint8_t code[32], float x[32])
{
    for (int i = 0; i < 32; i += 16) {
        float32x4_t part[4];
        hif8_decode16_neon(code + i, part);
        for (int k = 0; k < 4; k++) {
            vst1q_f32(x + i + 4 * k, part[k]);
        }
    }
}

void hif8_vector_decode8(const uint8_t code[8], float x[8])
{
    float32x4_t part[2];
    hif8_decode8_neon(code, part);
    vst1q_f32(x, part[0]);
    vst1q_f32(x + 4, part[1]);
}

void hif8_vector_round8(const float x[8], float rounded[8])
{
    vst1q_f32(rounded, hif8_round_neon(vld1q_f32(x)));
    vst1q_f32(rounded + 4, hif8_round_neon(vld1q_f32(x + 4)));
}

void hif8_vector_encode8(const float x[8], bool saturate, uint8_t code[8])
{
    uint32_t lane[8];
    vst1q_u32(lane, hif8_encode4_neon(vld1q_f32(x), saturate));
    vst1q_u32(lane + 4, hif8_encode4_neon(vld1q_f32(x + 4), saturate));
    for (int i = 0; i < 8; i++) {
        code[i] = (uint8_t)lane[i];
    }
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
