/*
 * registry.c - which tests there are.
 */
#include "cases.h"
#include "checkkernel.h"

static const ck_test *const groups[] =
    {ck_attention_tests, ck_format_tests, ck_rounding_tests,   ck_relation_tests,   ck_rounded_relation_tests,
     ck_fixed_tests,     ck_case_tests,   ck_case_value_tests, ck_case_range_tests, ck_case_large_tests,
     ck_plan_tests,      ck_alloc_tests,  ck_cuda_tests,       ck_cuda_dense_tests};

const ck_test *ck_test_at(size_t index)
{
    for (size_t i = 0; ck_kernel_test_at(i); i++) {
        if (index-- == 0) {
            return ck_kernel_test_at(i);
        }
    }
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        for (const ck_test *test = groups[i]; test->name; test++) {
            if (index-- == 0) {
                return test;
            }
        }
    }
    return NULL;
}
