/*
 * features.c - cpuid and xgetbv. Built with baseline flags: it runs before anything is known about the machine.
 */
#include "features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>

enum { STATE_AVX = 0x6, STATE_AVX512 = 0xe6 }; /* XCR0: xmm + ymm; these + opmask + upper zmm */

static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

mla_cpu_features mla_cpu_features_detect(void)
{
    mla_cpu_features features = {0};
    uint32_t a, b, c, d, b7, c7, a7_1;
    if (!__get_cpuid(1, &a, &b, &c, &d)) {
        return features;
    }
    bool osxsave = c & bit_OSXSAVE, fma = c & bit_FMA, f16c = c & bit_F16C, avx = c & bit_AVX;
    if (!osxsave || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d)) {
        return features;
    }
    uint64_t state = saved_state();
    features.avx2 = avx && fma && f16c && (b7 & bit_AVX2) && (state & STATE_AVX) == STATE_AVX;
    features.avxvnni = features.avx2 && __get_cpuid_count(7, 1, &a7_1, &b, &c, &d) && (a7_1 >> 4 & 1);
    features.avx512 = features.avx2 && (b7 & bit_AVX512F) && (b7 & bit_AVX512BW) && (b7 & bit_AVX512DQ) &&
                      (b7 & bit_AVX512VL) && (state & STATE_AVX512) == STATE_AVX512;
    return features;
}

#else

mla_cpu_features mla_cpu_features_detect(void)
{
    return (mla_cpu_features){0};
}

#endif
