/*
 * hif8_array_neon.c - arrays of HiFloat8, for the format helpers.
 */
#include "cpu/scalar/hif8.h"
#include "hif8_neon.h"
#include "tables_neon.h"

void mla_encode_hif8_neon(const float *x, int64_t n, bool saturate, uint8_t *code)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint16x4_t low = vmovn_u32(hif8_encode4_neon(vld1q_f32(x + i), saturate));
        uint16x4_t high = vmovn_u32(hif8_encode4_neon(vld1q_f32(x + i + 4), saturate));
        vst1_u8(code + i, vmovn_u16(vcombine_u16(low, high)));
    }
    for (; i < n; i++) {
        code[i] = mla_hif8_from_f32(x[i], saturate);
    }
}

void mla_decode_hif8_neon(const uint8_t *code, int64_t n, float *x)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        float32x4_t part[4];
        hif8_decode16_neon(code + i, part);
        vst1q_f32(x + i, part[0]);
        vst1q_f32(x + i + 4, part[1]);
        vst1q_f32(x + i + 8, part[2]);
        vst1q_f32(x + i + 12, part[3]);
    }
    for (; i < n; i++) {
        x[i] = mla_f32_from_hif8(code[i]);
    }
}
