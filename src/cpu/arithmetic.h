/*
 * arithmetic.h - what a problem is computed in on the CPU: the policy.
 */
#ifndef MLA_CPU_ARITHMETIC_H
#define MLA_CPU_ARITHMETIC_H

#include "core/shape.h"
#include "kernels.h"

/* What the problem asks for, and where that is AUTO, the environment variable MLA_ARITH as it was when it was first
 * looked at. BAD_VALUE when that is no word for an arithmetic. */
mla_status mla_arithmetic_wanted(const mla_problem *problem, mla_arithmetic *wanted);

/* What the kernels of a level compute it in: F32 where they have no unit for bf16, or where it does not suit the problem's
 * formats. Where the system refuses the unit of that level, *kernels becomes the level below. */
mla_status mla_arithmetic_choose(const mla_problem *problem, const mla_shape *shape, const mla_cpu_kernels **kernels,
                                 mla_arithmetic *chosen);

/* Through units that multiply bf16? */
static inline bool mla_arithmetic_is_bf16(mla_arithmetic arithmetic)
{
    return arithmetic == MLA_ARITHMETIC_BF16 || arithmetic == MLA_ARITHMETIC_BF16X2;
}

#endif
