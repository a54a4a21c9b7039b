/*
 * cuda_runtime_shim.h - enough of CUDA C++ for the generic kernels to be compiled as C++ and run on the CPU.
 *
 * Each thread of a thread block is a fiber; barriers and warp exchanges switch between them (emulator.cpp). Shared
 * memory is thread-local, because one OS thread runs one block at a time.
 */
#ifndef CUDA_RUNTIME_SHIM_H
#define CUDA_RUNTIME_SHIM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __CUDACC__ 1
#define __host__
#define __device__
#define __global__
#define __shared__ thread_local
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

struct uint3_shim {
    unsigned x, y, z;
};
extern thread_local uint3_shim threadIdx, blockIdx;

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

/* Ends the calling fiber's turn until the block, or its warp, has come as far. */
void emulator_block_barrier(int vote, int *any);
void emulator_warp_barrier();
uint32_t *emulator_warp_words(); /* [32], of the fiber's warp */
int emulator_lane();

static inline void __syncthreads()
{
    emulator_block_barrier(0, nullptr);
}

static inline int __syncthreads_or(int x)
{
    int any;
    emulator_block_barrier(x, &any);
    return any;
}

static inline void __syncwarp()
{
    emulator_warp_barrier();
}

static inline uint32_t __float_as_uint(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float __uint_as_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline float __shfl_xor_sync(unsigned, float x, int lane_mask)
{
    uint32_t *word = emulator_warp_words();
    word[emulator_lane()] = __float_as_uint(x);
    emulator_warp_barrier();
    x = __uint_as_float(word[emulator_lane() ^ lane_mask]);
    emulator_warp_barrier();
    return x;
}

static inline int __shfl_sync(unsigned, int x, int lane)
{
    uint32_t *word = emulator_warp_words();
    word[emulator_lane()] = (uint32_t)x;
    emulator_warp_barrier();
    x = (int)word[lane];
    emulator_warp_barrier();
    return x;
}

static inline unsigned __ballot_sync(unsigned, int vote)
{
    uint32_t *word = emulator_warp_words();
    word[emulator_lane()] = vote != 0;
    emulator_warp_barrier();
    unsigned ballot = 0;
    for (int i = 0; i < 32; i++) {
        ballot |= word[i] << i;
    }
    emulator_warp_barrier();
    return ballot;
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __ffs(unsigned x)
{
    return __builtin_ffs((int)x);
}

static inline unsigned long long atomicMin(unsigned long long *at, unsigned long long x)
{
    unsigned long long old = *at;
    *at = x < old ? x : old;
    return old;
}

/* Numbers of 16 bits, as far as number.cuh asks for them. */
struct __half {
    uint16_t bits;
};
struct __nv_bfloat16 {
    uint16_t bits;
};

static inline __half __ushort_as_half(unsigned short bits)
{
    return {bits};
}

static inline float __half2float(__half h)
{
    uint32_t exponent = h.bits >> 10 & 31, fraction = h.bits & 1023;
    float magnitude = exponent == 0    ? ldexpf((float)fraction, -24)
                      : exponent == 31 ? (fraction ? NAN : INFINITY)
                                       : ldexpf((float)(1024 + fraction), (int)exponent - 25);
    return h.bits & 0x8000 ? -magnitude : magnitude;
}

static inline __half __float2half_rn(float x)
{
    uint16_t sign = (uint16_t)(__float_as_uint(x) >> 16 & 0x8000);
    float magnitude = fabsf(x);
    if (isnan(x)) {
        return {0x7fff};
    }
    if (magnitude >= 65520) {
        return {(uint16_t)(sign | 0x7c00)};
    }
    int exponent = magnitude < 0x1p-14f ? -14 : ilogbf(magnitude);
    uint32_t units = (uint32_t)rintf(ldexpf(magnitude, 10 - exponent)); /* a carry reaches the next exponent */
    return {(uint16_t)(sign | ((uint32_t)(exponent + 14) * 1024 + units))};
}

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    uint32_t bits = __float_as_uint(x);
    if (isnan(x)) {
        return {0x7fff};
    }
    return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

#endif
