/*
 * cuda_generic.c - the variant for every problem.
 */
#include "cuda_variant.h"

static bool serves(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape)
{
    (void)device;
    (void)problem;
    (void)shape;
    return false; /* not written yet */
}

const mla_cuda_variant mla_cuda_generic_variant = {.name = "generic", .serves = serves};
