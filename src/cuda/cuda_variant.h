/*
 * cuda_variant.h - the ways in which a problem can run on a GPU. The first one in the table that serves it, and pays,
 * is taken.
 */
#ifndef MLA_CUDA_VARIANT_H
#define MLA_CUDA_VARIANT_H

#include "core/plan.h"
#include "cuda_device.h"

typedef struct mla_cuda_variant {
    const char *name; /* "generic"; mla_plan_info calls it the isa */
    bool invariant;   /* obeys plan->batch_invariant; others are passed over where that is asked for */
    /* Can it run the problem on this GPU? Looks at shapes, dtypes, strides and addresses. Cheap and pure: every run
     * asks again, because a plan does not depend on strides or addresses. */
    bool (*serves)(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape);
    /* Is it the right one for a plan? Asked only when a plan is built. NULL: always. */
    bool (*pays)(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape);
    /* Finds its kernels and fills in function[], number[], n_item, n_slot and workspace_bytes of the plan. n_token is
     * at least 1. May load modules; nothing else that a stream could notice. */
    mla_status (*build)(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape,
                        mla_plan *plan);
    /* Queues the work. The device's context is current; workspace is aligned to 4096 bytes. Allocates nothing and waits
     * for nothing. Values behind device addresses may have changed since the plan was built. */
    mla_status (*launch)(const mla_cuda_device *device, const mla_plan *plan, const mla_problem *problem,
                         const mla_shape *shape, cuda_address workspace, cuda_stream stream);
} mla_cuda_variant;

/* Ends with NULL. */
extern const mla_cuda_variant *const mla_cuda_variants[];

extern const mla_cuda_variant mla_cuda_dense_few_sm90_variant, mla_cuda_dense_sm90_variant;
extern const mla_cuda_variant mla_cuda_generic_variant;

#endif
