/*
 * hif8_table.h - HiFloat8 in two small tables, from which the scalar and the vector code are made.
 *
 * A code is a sign and 7 bits, and those begin with a prefix that says how many of them are exponent and how many
 * fraction. `s` is the sign of the exponent E, whose leading bit is implied:
 *
 *     0000mmm  E = m - 23, no fraction; 0000000 is zero      10seemm  E = +-(4 + ee), 2 bits of fraction
 *     0001mmm  E = 0, 3 bits of fraction                     11seeem  E = +-(8 + eee), 1 bit of fraction
 *     001smmm  E = +-1, 3 bits                               1101111  infinity
 *     01semmm  E = +-(2 + e), 3 bits                         80 (hex) the only NaN; there is no -0
 *
 * Given the upper four of the 7 bits, the lower three are a number that counts in steps of a power of two, upwards, or,
 * in the exponent bits among them, downwards where E is negative. So every finite magnitude but zero has the fp32 bits
 *
 *     0x3f800000 + ((start + (lower ^ down)) << 16) * step
 */
#ifndef MLA_CPU_HIF8_TABLE_H
#define MLA_CPU_HIF8_TABLE_H

/* By bits 6..3 of the code. The step is 128 where the lower bits are all exponent, 16 where they are all fraction. */
#define MLA_HIF8_START -23, 0, 8, -8, 16, 24, -16, -24, 16, 24, -20, -28, 16, 24, -22, -30
#define MLA_HIF8_DOWN 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 0, 0, 6, 6
#define MLA_HIF8_STEP 128, 16, 16, 16, 16, 16, 16, 16, 32, 32, 32, 32, 64, 64, 64, 64

/* By |E| <= 15: the code of 2^|E|, and what is added to it for 2^-|E|. */
#define MLA_HIF8_POWER 0x08, 0x10, 0x20, 0x28, 0x40, 0x44, 0x48, 0x4c, 0x60, 0x62, 0x64, 0x66, 0x68, 0x6a, 0x6c, 0x6e
#define MLA_HIF8_BELOW_ONE \
    0x00, 0x08, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10

/* By |E| <= 15: how many bits of fraction fp32 has more than HiF8. */
#define MLA_HIF8_EXCESS 20, 20, 20, 20, 21, 21, 21, 21, 22, 22, 22, 22, 22, 22, 22, 22

#define MLA_HIF8_INFINITY 0x6f
#define MLA_HIF8_NAN 0x80

/* fp32 bits of the borders of rounding. */
#define MLA_HIF8_BITS_HALF_LEAST 0x34000000 /* 2^-23: below it, everything is zero */
#define MLA_HIF8_BITS_LEAST 0x34800000      /* 2^-22, the least magnitude */
#define MLA_HIF8_BITS_OVERFLOW 0x47200000   /* 40960, half-way between 2^15 and what would be 1.5 * 2^15 */
#define MLA_HIF8_BITS_LARGEST 0x47000000    /* 2^15 */
#define MLA_HIF8_BITS_INFINITY 0x7f800000
#define MLA_HIF8_BITS_NAN 0x7fc00000

#endif
