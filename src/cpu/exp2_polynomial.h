/*
 * exp2_polynomial.h - 2^f for |f| <= 1/2: 1 + f * (C1 + f * (C2 + ... f * C6)). Minimax in relative error, 2e-9 before the
 * coefficients and the steps are rounded to fp32. One polynomial for all vector widths, so that they agree.
 */
#ifndef MLA_CPU_EXP2_POLYNOMIAL_H
#define MLA_CPU_EXP2_POLYNOMIAL_H

#define MLA_EXP2_C1 0x1.62e43p-1f
#define MLA_EXP2_C2 0x1.ebfbdcp-3f
#define MLA_EXP2_C3 0x1.c6aee8p-5f
#define MLA_EXP2_C4 0x1.3b2d4cp-7f
#define MLA_EXP2_C5 0x1.5f3e54p-10f
#define MLA_EXP2_C6 0x1.41fbb8p-13f

#endif
