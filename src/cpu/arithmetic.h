/*
 * arithmetic.h - what a problem is computed in on the CPU: the policy.
 */
#ifndef MLA_CPU_ARITHMETIC_H
#define MLA_CPU_ARITHMETIC_H

#include "core/shape.h"

/* What the problem asks for, and where that is AUTO, the environment variable MLA_ARITH as it was when it was first
 * looked at. BAD_VALUE when that is no word for an arithmetic. */
mla_status mla_arithmetic_wanted(const mla_problem *problem, mla_arithmetic *wanted);

#endif
