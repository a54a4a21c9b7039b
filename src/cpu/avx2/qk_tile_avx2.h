/*
 * qk_tile_avx2.h - the instructions of the score tile, 6 keys by 16 rows, for the kernels that go over it: qk_avx2.c, and
 * load_qk_avx2.c, which converts keys meanwhile. ymm 0 to 11 are accumulators, 12 and 13 hold q, 14 a key's element; ymm15
 * is free.
 */
#ifndef MLA_CPU_QK_TILE_AVX2_H
#define MLA_CPU_QK_TILE_AVX2_H

/* An instruction is a line. clang-format would join them. */
/* clang-format off */

/* One column: two vectors of q against the element of one key, whose accumulators are ymm `a` and ymm `b`. Pointers stand
 * in the middle of what they serve, so that offsets fit into a byte. */
#define ASM_KEY(u, pointer, at, a, b)                         \
    "vbroadcastss " #at "+4*" #u "(" pointer "), %%ymm14\n\t" \
    "vfmadd231ps %%ymm12, %%ymm14, %%ymm" #a "\n\t"           \
    "vfmadd231ps %%ymm13, %%ymm14, %%ymm" #b "\n\t"
#define ASM_COLUMN(u)                          \
    "vmovups 64*" #u "-128(%[q]), %%ymm12\n\t" \
    "vmovups 64*" #u "-96(%[q]), %%ymm13\n\t"  \
    ASM_KEY(u, "%[low]", -96, 0, 1)            \
    ASM_KEY(u, "%[low]", 0, 2, 3)              \
    ASM_KEY(u, "%[low]", 96, 4, 5)             \
    ASM_KEY(u, "%[high]", -96, 6, 7)           \
    ASM_KEY(u, "%[high]", 0, 8, 9)             \
    ASM_KEY(u, "%[high]", 96, 10, 11)
#define ASM_ALL(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)
#define ASM_ZERO(i) "vxorps %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n\t"
#define ASM_ADD(i) "vaddps 32*" #i "(%[s]), %%ymm" #i ", %%ymm" #i "\n\t"
#define ASM_SAVE(i) "vmovups %%ymm" #i ", 32*" #i "(%[s])\n\t"

/* clang-format on */

#endif
