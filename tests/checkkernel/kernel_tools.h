/*
 * kernel_tools.h - what the checks of single kernels share.
 */
#ifndef CHECKKERNEL_KERNEL_TOOLS_H
#define CHECKKERNEL_KERNEL_TOOLS_H

#include "checkkernel.h"
#include "cpu/kernels.h"

#define KERNEL_MAX 256

/* The kernel under test, from the test's name. */
typedef struct kernel_case {
    const char *isa;
    const mla_cpu_kernels *table;
    mla_format format; /* of the kernel's stored operand */
    mla_dtype dtype;
} kernel_case;

const kernel_case *kernel_now(void);

/* How often u a sum of n terms may be off, relative to the sum of their sizes. */
double kernel_chain(double n);
float *kernel_floats(const char *name, int64_t n);
bool kernel_untouched(float x);
/* n_key rows of n_col columns in the kernel's format, each in front of an inaccessible page. */
const void **kernel_rows(const kernel_case *k, int64_t n_key, int64_t n_col, ck_random *r);
/* Fails with the given words unless |got - want| <= allowed. */
__attribute__((format(printf, 4, 5))) void kernel_near(double got, double want, double allowed, const char *format,
                                                       ...);

/* Relative error of exp2(x) in fp32 as compare.c (3) grants it, the rounding of the argument apart. */
#define KERNEL_EXP_ERROR (8 * 0x1p-24)

/* What is left of weights below the smallest normal number. */
#define KERNEL_VANISHING 0x1p-125

void kernel_check_softmax(void);
void kernel_check_stream(void);
void kernel_check_encode(void);
void kernel_check_decode(void);
void kernel_check_peak(void);
void kernel_check_round(void);
void kernel_check_fixed_norm(void);
void kernel_check_fixed_keys(void);
void kernel_check_fixed_query(void);
void kernel_check_fixed_qk(void);
void kernel_check_fixed_p(void);
void kernel_check_fixed_pv(void);
void kernel_check_qpairs(void);
void kernel_check_vpairs(void);
void kernel_check_ppairs(void);
void kernel_check_qk_bf16(void);
void kernel_check_pv_bf16(void);
void kernel_check_vpairs_pv(void);

#endif
