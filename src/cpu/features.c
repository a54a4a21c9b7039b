/*
 * features.c - cpuid and xgetbv, or what Linux says of an Arm core. Built with baseline flags: it runs before anything is
 * known about the machine.
 */
#define _GNU_SOURCE /* syscall() */
#include "features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <pthread.h>
#include <stdint.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* XCR0: xmm + ymm; these + opmask + upper zmm; tiles and their shape */
enum { STATE_AVX = 0x6, STATE_AVX512 = 0xe6, STATE_AMX = 0x60000 };
enum { BIT_AVX512_BF16 = 1 << 5, BIT_AMX_BF16 = 1 << 22, BIT_AMX_TILE = 1 << 24 }; /* of leaf 7: 1.eax; 0.edx */

static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Did the system grant them? Refused for instance where a thread has a signal stack that is too small for them. */
static bool granted;

static void ask_for_tiles(void)
{
#if defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#endif
}

bool mla_cpu_tiles_granted(void)
{
    static pthread_once_t asked = PTHREAD_ONCE_INIT;
    pthread_once(&asked, ask_for_tiles);
    return granted;
}

static bool forgets;

static void ask_for_vendor(void)
{
    uint32_t max, b, c, d;
    forgets =
        __get_cpuid(0, &max, &b, &c, &d) && b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx;
}

bool mla_cpu_forgets_fetches(void)
{
    static pthread_once_t asked = PTHREAD_ONCE_INIT;
    pthread_once(&asked, ask_for_vendor);
    return forgets;
}

mla_cpu_features mla_cpu_features_detect(void)
{
    mla_cpu_features features = {0};
    uint32_t a, b, c, d, b7, c7, d7, a7_1 = 0, max;
    if (!__get_cpuid(1, &a, &b, &c, &d)) {
        return features;
    }
    bool osxsave = c & bit_OSXSAVE, fma = c & bit_FMA, f16c = c & bit_F16C, avx = c & bit_AVX;
    if (!osxsave || !__get_cpuid_count(7, 0, &max, &b7, &c7, &d7)) {
        return features;
    }
    uint64_t state = saved_state();
    features.avx2 = avx && fma && f16c && (b7 & bit_AVX2) && (state & STATE_AVX) == STATE_AVX;
    features.avxvnni = features.avx2 && max >= 1 && __get_cpuid_count(7, 1, &a7_1, &b, &c, &d) && (a7_1 >> 4 & 1);
    features.avx512 = features.avx2 && (b7 & bit_AVX512F) && (b7 & bit_AVX512BW) && (b7 & bit_AVX512DQ) &&
                      (b7 & bit_AVX512VL) && (state & STATE_AVX512) == STATE_AVX512;
    features.avx512bf16 = features.avx512 && (a7_1 & BIT_AVX512_BF16);
    features.amx =
        features.avx512bf16 && (d7 & BIT_AMX_TILE) && (d7 & BIT_AMX_BF16) && (state & STATE_AMX) == STATE_AMX;
    return features;
}

#else

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

enum { HWCAP2_HAS_BF16 = 1 << 14 };

mla_cpu_features mla_cpu_features_detect(void)
{
    return (mla_cpu_features){.neonbf16 = getauxval(AT_HWCAP2) & HWCAP2_HAS_BF16};
}
#else
mla_cpu_features mla_cpu_features_detect(void)
{
    return (mla_cpu_features){0};
}
#endif

bool mla_cpu_forgets_fetches(void)
{
    return false;
}

bool mla_cpu_tiles_granted(void)
{
    return false;
}

#endif
