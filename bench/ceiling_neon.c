/*
 * ceiling_neon.c - the loops with 128-bit vectors. In assembly, because a compiler may notice that the chains are alike
 * and compute one of them.
 */
#include "ceiling.h"

#if defined(__aarch64__)

double ceiling_fma_neon(int64_t rounds)
{
    double done = (double)rounds;
    /* 24 chains: a latency of 4 cycles times up to 4 per cycle, and some slack; one factor is a lane, as in the kernels.
     * 1 * 0 + x never changes x, so nothing overflows. */
    __asm__ volatile("fmov v24.4s, #1.0\n\t"
                     "movi v25.4s, #0\n\t"
                     "movi v0.4s, #0\n\t"
                     "movi v1.4s, #0\n\t"
                     "movi v2.4s, #0\n\t"
                     "movi v3.4s, #0\n\t"
                     "movi v4.4s, #0\n\t"
                     "movi v5.4s, #0\n\t"
                     "movi v6.4s, #0\n\t"
                     "movi v7.4s, #0\n\t"
                     "movi v8.4s, #0\n\t"
                     "movi v9.4s, #0\n\t"
                     "movi v10.4s, #0\n\t"
                     "movi v11.4s, #0\n\t"
                     "movi v12.4s, #0\n\t"
                     "movi v13.4s, #0\n\t"
                     "movi v14.4s, #0\n\t"
                     "movi v15.4s, #0\n\t"
                     "movi v16.4s, #0\n\t"
                     "movi v17.4s, #0\n\t"
                     "movi v18.4s, #0\n\t"
                     "movi v19.4s, #0\n\t"
                     "movi v20.4s, #0\n\t"
                     "movi v21.4s, #0\n\t"
                     "movi v22.4s, #0\n\t"
                     "movi v23.4s, #0\n\t"
                     ".p2align 5\n\t"
                     "1:\n\t"
                     "fmla v0.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v1.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v2.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v3.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v4.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v5.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v6.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v7.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v8.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v9.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v10.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v11.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v12.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v13.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v14.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v15.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v16.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v17.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v18.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v19.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v20.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v21.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v22.4s, v24.4s, v25.s[0]\n\t"
                     "fmla v23.4s, v24.4s, v25.s[0]\n\t"
                     "subs %0, %0, #1\n\t"
                     "b.ne 1b"
                     : "+r"(rounds)
                     :
                     : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",
                       "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25");
    return 24 * 4 * 2 * done;
}

void ceiling_read_neon(const void *data, size_t bytes)
{
    const char *at = data, *end = at + bytes / 512 * 512;
    if (at == end) {
        return;
    }
    __asm__ volatile("1:\n\t"
                     "ldp q0, q1, [%0, #0]\n\t"
                     "ldp q2, q3, [%0, #32]\n\t"
                     "ldp q4, q5, [%0, #64]\n\t"
                     "ldp q6, q7, [%0, #96]\n\t"
                     "ldp q8, q9, [%0, #128]\n\t"
                     "ldp q10, q11, [%0, #160]\n\t"
                     "ldp q12, q13, [%0, #192]\n\t"
                     "ldp q14, q15, [%0, #224]\n\t"
                     "ldp q0, q1, [%0, #256]\n\t"
                     "ldp q2, q3, [%0, #288]\n\t"
                     "ldp q4, q5, [%0, #320]\n\t"
                     "ldp q6, q7, [%0, #352]\n\t"
                     "ldp q8, q9, [%0, #384]\n\t"
                     "ldp q10, q11, [%0, #416]\n\t"
                     "ldp q12, q13, [%0, #448]\n\t"
                     "ldp q14, q15, [%0, #480]\n\t"
                     "add %0, %0, #512\n\t"
                     "cmp %0, %1\n\t"
                     "b.lo 1b"
                     : "+r"(at)
                     : "r"(end)
                     : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",
                       "v13", "v14", "v15");
}

#endif
