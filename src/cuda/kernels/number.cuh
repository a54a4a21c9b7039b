/*
 * number.cuh - stored numbers on the GPU: where formats begin and end.
 */
#ifndef MLA_CUDA_NUMBER_CUH
#define MLA_CUDA_NUMBER_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "mla/mla_types.h"

__device__ __forceinline__ float mla_f32_from_hif8(uint32_t code)
{
    uint32_t magnitude = code & 0x7f, sign = (code & 0x80) << 24;
    if (magnitude < 0x08) { /* powers of two from 2^-22 on; 0 is zero, and with a sign the NaN */
        return __uint_as_float(magnitude ? sign | (magnitude + 104) << 23 : sign ? 0x7fc00000u : 0u);
    }
    if (magnitude == 0x6f) {
        return __uint_as_float(sign | 0x7f800000u);
    }
    /* exponent bits by prefix: 0001, 001, 01, 10, 11 */
    int n = magnitude < 0x10 ? 0 : magnitude < 0x20 ? 1 : magnitude < 0x40 ? 2 : magnitude < 0x60 ? 3 : 4;
    int fraction_bits = n < 3 ? 3 : 5 - n;
    int field = (int)(magnitude >> fraction_bits) & ((1 << n) - 1);
    int leading = (1 << n) >> 1; /* the place of the exponent's sign, where its magnitude has an implied 1 */
    int exponent = field & leading ? -field : field | leading;
    uint32_t fraction = magnitude & ((1u << fraction_bits) - 1);
    return __uint_as_float(sign | (uint32_t)(exponent + 127) << 23 | fraction << (23 - fraction_bits));
}

/* Element i of an array of any stored dtype, exactly. */
__device__ __forceinline__ float mla_element(const void *data, int32_t dtype, int64_t i)
{
    switch (dtype) {
    case MLA_DTYPE_F32: return ((const float *)data)[i];
    case MLA_DTYPE_F16: return __half2float(((const __half *)data)[i]);
    case MLA_DTYPE_BF16: return __uint_as_float((uint32_t)((const uint16_t *)data)[i] << 16);
    case MLA_DTYPE_I8: return (float)((const int8_t *)data)[i];
    default: return mla_f32_from_hif8(((const uint8_t *)data)[i]);
    }
}

/* Element i of an output = x, rounded once, to nearest even. */
__device__ __forceinline__ void mla_store_element(void *data, int32_t dtype, int64_t i, float x)
{
    switch (dtype) {
    case MLA_DTYPE_F16: ((__half *)data)[i] = __float2half_rn(x); break;
    case MLA_DTYPE_BF16: ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(x); break;
    default: ((float *)data)[i] = x; break;
    }
}

/* Sixteen columns of a stored row on their way from memory: raw bits, so that nothing waits for them yet. */
struct mla_raw16 {
    uint4 word[4];
    int32_t dtype; /* MLA_DTYPE_NONE: zeros */
};

/* An aligned run of 16 elements. */
__device__ __forceinline__ void mla_fetch16(mla_raw16 &raw, const void *data, int32_t dtype, int64_t at)
{
    raw.dtype = dtype;
    switch (dtype) {
    case MLA_DTYPE_F32: {
        const uint4 *from = (const uint4 *)((const float *)data + at);
        for (int i = 0; i < 4; i++) {
            raw.word[i] = from[i];
        }
        break;
    }
    case MLA_DTYPE_F16:
    case MLA_DTYPE_BF16: {
        const uint4 *from = (const uint4 *)((const uint16_t *)data + at);
        raw.word[0] = from[0];
        raw.word[1] = from[1];
        break;
    }
    default: raw.word[0] = *(const uint4 *)((const uint8_t *)data + at); break;
    }
}

__device__ __forceinline__ void mla_decode16(const mla_raw16 &raw, float *x)
{
    const uint32_t *word = (const uint32_t *)raw.word;
    switch (raw.dtype) {
    case MLA_DTYPE_NONE:
#pragma unroll
        for (int i = 0; i < 16; i++) {
            x[i] = 0;
        }
        break;
    case MLA_DTYPE_F32:
#pragma unroll
        for (int i = 0; i < 16; i++) {
            x[i] = __uint_as_float(word[i]);
        }
        break;
    case MLA_DTYPE_F16:
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[2 * i] = __half2float(__ushort_as_half((unsigned short)(word[i] & 0xffff)));
            x[2 * i + 1] = __half2float(__ushort_as_half((unsigned short)(word[i] >> 16)));
        }
        break;
    case MLA_DTYPE_BF16:
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[2 * i] = __uint_as_float(word[i] << 16);
            x[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
        }
        break;
    case MLA_DTYPE_I8:
#pragma unroll
        for (int i = 0; i < 16; i++) {
            x[i] = (float)(int8_t)(word[i / 4] >> 8 * (i % 4));
        }
        break;
    default:
#pragma unroll
        for (int i = 0; i < 16; i++) {
            x[i] = mla_f32_from_hif8(word[i / 4] >> 8 * (i % 4) & 0xff);
        }
        break;
    }
}

#endif
