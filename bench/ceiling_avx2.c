/*
 * ceiling_avx2.c - the loops with 256-bit vectors. In assembly, because a compiler may notice that the chains are alike
 * and compute one of them.
 */
#include "ceiling.h"

#if defined(__x86_64__)

double ceiling_fma_avx2(int64_t rounds)
{
    double done = (double)rounds;
    /* 14 chains: latency 4 to 5 cycles times 2 per cycle, and some slack. 1 * 0 + x never changes x, so nothing
     * overflows. */
    __asm__ volatile("vpcmpeqd %%ymm14, %%ymm14, %%ymm14\n\t"
                     "vpsrld $25, %%ymm14, %%ymm14\n\t"
                     "vpslld $23, %%ymm14, %%ymm14\n\t" /* 1.0 */
                     "vxorps %%ymm15, %%ymm15, %%ymm15\n\t"
                     "vxorps %%ymm0, %%ymm0, %%ymm0\n\t"
                     "vxorps %%ymm1, %%ymm1, %%ymm1\n\t"
                     "vxorps %%ymm2, %%ymm2, %%ymm2\n\t"
                     "vxorps %%ymm3, %%ymm3, %%ymm3\n\t"
                     "vxorps %%ymm4, %%ymm4, %%ymm4\n\t"
                     "vxorps %%ymm5, %%ymm5, %%ymm5\n\t"
                     "vxorps %%ymm6, %%ymm6, %%ymm6\n\t"
                     "vxorps %%ymm7, %%ymm7, %%ymm7\n\t"
                     "vxorps %%ymm8, %%ymm8, %%ymm8\n\t"
                     "vxorps %%ymm9, %%ymm9, %%ymm9\n\t"
                     "vxorps %%ymm10, %%ymm10, %%ymm10\n\t"
                     "vxorps %%ymm11, %%ymm11, %%ymm11\n\t"
                     "vxorps %%ymm12, %%ymm12, %%ymm12\n\t"
                     "vxorps %%ymm13, %%ymm13, %%ymm13\n\t"
                     ".p2align 5\n\t"
                     "1:\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm0\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm1\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm2\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm3\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm4\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm5\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm6\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm7\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm8\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm9\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm10\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm11\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm12\n\t"
                     "vfmadd231ps %%ymm14, %%ymm15, %%ymm13\n\t"
                     "dec %0\n\t"
                     "jnz 1b\n\t"
                     "vzeroupper"
                     : "+r"(rounds)
                     :
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    return 14 * 8 * 2 * done;
}

void ceiling_read_avx2(const void *data, size_t bytes)
{
    const char *at = data;
    const char *end = at + bytes / 512 * 512;
    if (at == end) {
        return;
    }
    __asm__ volatile("vxorps %%ymm0, %%ymm0, %%ymm0\n\t"
                     "vxorps %%ymm1, %%ymm1, %%ymm1\n\t"
                     "vxorps %%ymm2, %%ymm2, %%ymm2\n\t"
                     "vxorps %%ymm3, %%ymm3, %%ymm3\n\t"
                     ".p2align 5\n\t"
                     "1:\n\t"
                     "vorps (%0), %%ymm0, %%ymm0\n\t"
                     "vorps 32(%0), %%ymm1, %%ymm1\n\t"
                     "vorps 64(%0), %%ymm2, %%ymm2\n\t"
                     "vorps 96(%0), %%ymm3, %%ymm3\n\t"
                     "vorps 128(%0), %%ymm0, %%ymm0\n\t"
                     "vorps 160(%0), %%ymm1, %%ymm1\n\t"
                     "vorps 192(%0), %%ymm2, %%ymm2\n\t"
                     "vorps 224(%0), %%ymm3, %%ymm3\n\t"
                     "vorps 256(%0), %%ymm0, %%ymm0\n\t"
                     "vorps 288(%0), %%ymm1, %%ymm1\n\t"
                     "vorps 320(%0), %%ymm2, %%ymm2\n\t"
                     "vorps 352(%0), %%ymm3, %%ymm3\n\t"
                     "vorps 384(%0), %%ymm0, %%ymm0\n\t"
                     "vorps 416(%0), %%ymm1, %%ymm1\n\t"
                     "vorps 448(%0), %%ymm2, %%ymm2\n\t"
                     "vorps 480(%0), %%ymm3, %%ymm3\n\t"
                     "add $512, %0\n\t"
                     "cmp %1, %0\n\t"
                     "jb 1b\n\t"
                     "vzeroupper"
                     : "+r"(at)
                     : "r"(end)
                     : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3");
}

#endif
