/*
 * fixed_tiles.h - the tiles in which nearly all time of fixed point is spent, for the levels that compute with 256
 * bits.
 *
 * A level defines MULTIPLY_ADD(a, b, sum, scratch): sum += a.even * b.even + a.odd * b.odd in each of 8 lanes, with
 * scratch, a register that may be lost; a may be memory. Sums are integers, so all levels give the same bits.
 * Everything is assembly: compilers spill what needs all 16 registers.
 */
#ifndef MLA_CPU_FIXED_TILES_H
#define MLA_CPU_FIXED_TILES_H

#include "cpu/kernels_fixed.h"
#include "tables_avx2.h"

/* An instruction is a line. clang-format would join them. */
/* clang-format off */

#define FIXED_8(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
#define FIXED_12(M) FIXED_8(M) M(8) M(9) M(10) M(11)
#define FIXED_ZERO(i) "vpxor %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n\t"
#define FIXED_REGISTERS \
    "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
    "xmm12", "xmm13", "xmm14", "xmm15"

/* One column pair: two vectors of q against the pair of one key, whose sums are ymm `a` and ymm `b`. */
#define FIXED_QK_KEY(u, address, a, b)                 \
    "vpbroadcastd 4*" #u address ", %%ymm14\n\t"       \
    MULTIPLY_ADD("%%ymm12", "%%ymm14", #a, "%%ymm15")  \
    MULTIPLY_ADD("%%ymm13", "%%ymm14", #b, "%%ymm14")
#define FIXED_QK_PAIR(u)                       \
    "vmovdqu 64*" #u "-128(%[q]), %%ymm12\n\t" \
    "vmovdqu 64*" #u "-96(%[q]), %%ymm13\n\t"  \
    FIXED_QK_KEY(u, "(%[low])", 0, 1)          \
    FIXED_QK_KEY(u, "(%[low],%[stride])", 2, 3)    \
    FIXED_QK_KEY(u, "(%[low],%[stride],2)", 4, 5)  \
    FIXED_QK_KEY(u, "(%[high])", 6, 7)             \
    FIXED_QK_KEY(u, "(%[high],%[stride])", 8, 9)   \
    FIXED_QK_KEY(u, "(%[high],%[stride],2)", 10, 11)
#define FIXED_QK_SAVE(n, a, b)                           \
    "vbroadcastss 4*" #n "(%[unit]), %%ymm12\n\t"        \
    "vcvtdq2ps %%ymm" #a ", %%ymm" #a "\n\t"             \
    "vcvtdq2ps %%ymm" #b ", %%ymm" #b "\n\t"             \
    "vmulps %%ymm12, %%ymm" #a ", %%ymm" #a "\n\t"       \
    "vmulps %%ymm12, %%ymm" #b ", %%ymm" #b "\n\t"       \
    "vmovups %%ymm" #a ", 64*" #n "(%[s])\n\t"           \
    "vmovups %%ymm" #b ", 64*" #n "+32(%[s])\n\t"

/* 6 keys by 16 rows. */
static void fixed_tile_6x16(const int16_t *q, const int16_t *k, int64_t k_stride, int64_t n_pair, const float *unit,
                            float *s)
{
    int64_t stride = k_stride * 2, round; /* bytes */
    const int16_t *low = k, *high = k + 3 * k_stride;
    q += 64;
    __asm__ volatile(
        FIXED_12(FIXED_ZERO)
        "mov %[n_pair], %[round]\n\t"
        "shr $2, %[round]\n\t"
        "jz 2f\n\t"
        ".p2align 5\n\t"
        "1:\n\t" /* four pairs */
        FIXED_QK_PAIR(0)
        FIXED_QK_PAIR(1)
        FIXED_QK_PAIR(2)
        FIXED_QK_PAIR(3)
        "add $256, %[q]\n\t"
        "add $16, %[low]\n\t"
        "add $16, %[high]\n\t"
        "dec %[round]\n\t"
        "jnz 1b\n\t"
        "2:\n\t"
        "and $3, %[n_pair]\n\t"
        "jz 4f\n\t"
        "3:\n\t" /* one pair */
        FIXED_QK_PAIR(0)
        "add $64, %[q]\n\t"
        "add $4, %[low]\n\t"
        "add $4, %[high]\n\t"
        "dec %[n_pair]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        FIXED_QK_SAVE(0, 0, 1)
        FIXED_QK_SAVE(1, 2, 3)
        FIXED_QK_SAVE(2, 4, 5)
        FIXED_QK_SAVE(3, 6, 7)
        FIXED_QK_SAVE(4, 8, 9)
        FIXED_QK_SAVE(5, 10, 11)
        "vzeroupper"
        : [q] "+r"(q), [low] "+r"(low), [high] "+r"(high), [n_pair] "+r"(n_pair), [round] "=&r"(round)
        : [stride] "r"(stride), [s] "r"(s), [unit] "r"(unit)
        : FIXED_REGISTERS);
}

/* One key pair: three vectors of v, the last from memory, against the pair of probabilities of each of four rows. */
#define FIXED_PV_ROW(u, r, x, y, z)                                            \
    "vpbroadcastd 64*" #u "-128+4*" #r "(%[p]), %%ymm15\n\t"                   \
    MULTIPLY_ADD("%%ymm12", "%%ymm15", #x, "%%ymm14")                          \
    MULTIPLY_ADD("%%ymm13", "%%ymm15", #y, "%%ymm14")                          \
    MULTIPLY_ADD("96*" #u "-64(%[v])", "%%ymm15", #z, "%%ymm15")
#define FIXED_PV_PAIR(u)                       \
    "vmovdqu 96*" #u "-128(%[v]), %%ymm12\n\t" \
    "vmovdqu 96*" #u "-96(%[v]), %%ymm13\n\t"  \
    FIXED_PV_ROW(u, 0, 0, 1, 2)                \
    FIXED_PV_ROW(u, 1, 3, 4, 5)                \
    FIXED_PV_ROW(u, 2, 6, 7, 8)                \
    FIXED_PV_ROW(u, 3, 9, 10, 11)
#define FIXED_PV_ADD(i, column)                              \
    "vcvtdq2ps %%ymm" #i ", %%ymm" #i "\n\t"                 \
    "vmulps %%ymm" #column ", %%ymm" #i ", %%ymm" #i "\n\t"  \
    "vfmadd213ps 32*" #i "(%[o]), %%ymm15, %%ymm" #i "\n\t"  \
    "vmovups %%ymm" #i ", 32*" #i "(%[o])\n\t"
#define FIXED_PV_ROW_ADD(r, x, y, z)                  \
    "vbroadcastss 4*" #r "(%[weight]), %%ymm15\n\t"   \
    FIXED_PV_ADD(x, 12)                               \
    FIXED_PV_ADD(y, 13)                               \
    FIXED_PV_ADD(z, 14)

/* 4 rows by 24 columns. */
static void fixed_tile_4x24(const int16_t *p, const int16_t *v, int64_t n_pair, const float *weight, const float *fold,
                            float *o)
{
    int64_t round;
    p += 64;
    v += 64;
    __asm__ volatile(
        FIXED_12(FIXED_ZERO)
        "mov %[n_pair], %[round]\n\t"
        "shr $2, %[round]\n\t"
        "jz 2f\n\t"
        ".p2align 5\n\t"
        "1:\n\t" /* four pairs */
        FIXED_PV_PAIR(0)
        FIXED_PV_PAIR(1)
        FIXED_PV_PAIR(2)
        FIXED_PV_PAIR(3)
        "add $256, %[p]\n\t"
        "add $384, %[v]\n\t"
        "dec %[round]\n\t"
        "jnz 1b\n\t"
        "2:\n\t"
        "and $3, %[n_pair]\n\t"
        "jz 4f\n\t"
        "3:\n\t" /* one pair */
        FIXED_PV_PAIR(0)
        "add $64, %[p]\n\t"
        "add $96, %[v]\n\t"
        "dec %[n_pair]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "vmovups (%[fold]), %%ymm12\n\t"
        "vmovups 32(%[fold]), %%ymm13\n\t"
        "vmovups 64(%[fold]), %%ymm14\n\t"
        FIXED_PV_ROW_ADD(0, 0, 1, 2)
        FIXED_PV_ROW_ADD(1, 3, 4, 5)
        FIXED_PV_ROW_ADD(2, 6, 7, 8)
        FIXED_PV_ROW_ADD(3, 9, 10, 11)
        "vzeroupper"
        : [p] "+r"(p), [v] "+r"(v), [n_pair] "+r"(n_pair), [round] "=&r"(round)
        : [o] "r"(o), [weight] "r"(weight), [fold] "r"(fold)
        : FIXED_REGISTERS);
}

#define FIXED_PV_NARROW(r)                            \
    "vpbroadcastd 4*" #r "(%[p]), %%ymm13\n\t"        \
    MULTIPLY_ADD("%%ymm12", "%%ymm13", #r, "%%ymm13")
#define FIXED_PV_NARROW_ADD(r)                            \
    "vbroadcastss 4*" #r "(%[weight]), %%ymm13\n\t"       \
    "vcvtdq2ps %%ymm" #r ", %%ymm" #r "\n\t"              \
    "vmulps %%ymm12, %%ymm" #r ", %%ymm" #r "\n\t"        \
    "vfmadd213ps 96*" #r "(%[o]), %%ymm13, %%ymm" #r "\n\t" \
    "vmovups %%ymm" #r ", 96*" #r "(%[o])\n\t"

/* 8 rows by 8 columns, where few columns of the last panel are in use. */
static void fixed_tile_8x8(const int16_t *p, const int16_t *v, int64_t n_pair, const float *weight, const float *fold,
                           float *o)
{
    __asm__ volatile(
        FIXED_8(FIXED_ZERO)
        ".p2align 5\n\t"
        "1:\n\t" /* one pair */
        "vmovdqu (%[v]), %%ymm12\n\t"
        FIXED_8(FIXED_PV_NARROW)
        "add $64, %[p]\n\t"
        "add $96, %[v]\n\t"
        "dec %[n_pair]\n\t"
        "jnz 1b\n\t"
        "vmovups (%[fold]), %%ymm12\n\t"
        FIXED_8(FIXED_PV_NARROW_ADD)
        "vzeroupper"
        : [p] "+r"(p), [v] "+r"(v), [n_pair] "+r"(n_pair)
        : [o] "r"(o), [weight] "r"(weight), [fold] "r"(fold)
        : FIXED_REGISTERS);
}

/* clang-format on */

/* The kernels, for a level to give its names to. */
static inline void fixed_qk(const int16_t *q, const int16_t *k, int64_t k_stride, int64_t n_pair, int64_t n_key,
                            const float *unit, float *s, mla_prefetch *ahead)
{
    for (int64_t n = 0; n < n_key; n += MLA_FIXED_TILE) {
        fixed_tile_6x16(q, k + n * k_stride, k_stride, n_pair, unit + n, s + n * MLA_ROW_PANEL);
        mla_prefetch_step(ahead);
    }
}

static inline void fixed_pv(const int16_t *p, const int16_t *v, int64_t n_pair, int32_t n_row, int32_t n_col,
                            const float *weight, const float *fold, float *o, mla_prefetch *ahead)
{
    for (int32_t r = 0; n_col <= 8 && r < n_row; r += 8) {
        fixed_tile_8x8(p + r * 2, v, n_pair, weight + r, fold, o + r * MLA_AVX2_COL_PANEL);
    }
    for (int32_t r = 0; n_col > 8 && r < n_row; r += 4) {
        fixed_tile_4x24(p + r * 2, v, n_pair, weight + r, fold, o + r * MLA_AVX2_COL_PANEL);
        mla_prefetch_step(ahead);
    }
}

#endif
