/*
 * ceiling_avx512.c - the multiply-add loop with 512-bit vectors; see ceiling_avx2.c.
 */
#include "ceiling.h"

#if defined(__x86_64__)

double ceiling_fma_avx512(int64_t rounds)
{
    double done = (double)rounds;
    __asm__ volatile("vpternlogd $255, %%zmm30, %%zmm30, %%zmm30\n\t"
                     "vpsrld $25, %%zmm30, %%zmm30\n\t"
                     "vpslld $23, %%zmm30, %%zmm30\n\t" /* 1.0 */
                     "vpxord %%zmm31, %%zmm31, %%zmm31\n\t"
                     "vpxord %%zmm0, %%zmm0, %%zmm0\n\t"
                     "vpxord %%zmm1, %%zmm1, %%zmm1\n\t"
                     "vpxord %%zmm2, %%zmm2, %%zmm2\n\t"
                     "vpxord %%zmm3, %%zmm3, %%zmm3\n\t"
                     "vpxord %%zmm4, %%zmm4, %%zmm4\n\t"
                     "vpxord %%zmm5, %%zmm5, %%zmm5\n\t"
                     "vpxord %%zmm6, %%zmm6, %%zmm6\n\t"
                     "vpxord %%zmm7, %%zmm7, %%zmm7\n\t"
                     "vpxord %%zmm8, %%zmm8, %%zmm8\n\t"
                     "vpxord %%zmm9, %%zmm9, %%zmm9\n\t"
                     "vpxord %%zmm10, %%zmm10, %%zmm10\n\t"
                     "vpxord %%zmm11, %%zmm11, %%zmm11\n\t"
                     "vpxord %%zmm12, %%zmm12, %%zmm12\n\t"
                     "vpxord %%zmm13, %%zmm13, %%zmm13\n\t"
                     "vpxord %%zmm14, %%zmm14, %%zmm14\n\t"
                     "vpxord %%zmm15, %%zmm15, %%zmm15\n\t"
                     "vpxord %%zmm16, %%zmm16, %%zmm16\n\t"
                     "vpxord %%zmm17, %%zmm17, %%zmm17\n\t"
                     "vpxord %%zmm18, %%zmm18, %%zmm18\n\t"
                     "vpxord %%zmm19, %%zmm19, %%zmm19\n\t"
                     "vpxord %%zmm20, %%zmm20, %%zmm20\n\t"
                     "vpxord %%zmm21, %%zmm21, %%zmm21\n\t"
                     "vpxord %%zmm22, %%zmm22, %%zmm22\n\t"
                     "vpxord %%zmm23, %%zmm23, %%zmm23\n\t"
                     "vpxord %%zmm24, %%zmm24, %%zmm24\n\t"
                     "vpxord %%zmm25, %%zmm25, %%zmm25\n\t"
                     "vpxord %%zmm26, %%zmm26, %%zmm26\n\t"
                     "vpxord %%zmm27, %%zmm27, %%zmm27\n\t"
                     ".p2align 5\n\t"
                     "1:\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm0\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm1\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm2\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm3\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm4\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm5\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm6\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm7\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm8\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm9\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm10\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm11\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm12\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm13\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm14\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm15\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm16\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm17\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm18\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm19\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm20\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm21\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm22\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm23\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm24\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm25\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm26\n\t"
                     "vfmadd231ps %%zmm30, %%zmm31, %%zmm27\n\t"
                     "dec %0\n\t"
                     "jnz 1b\n\t"
                     "vzeroupper"
                     : "+r"(rounds)
                     :
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",
                       "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm30", "xmm31");
    return 28 * 16 * 2 * done;
}

#endif
