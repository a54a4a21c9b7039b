/*
 * backend.h - what a backend offers to the core. The list of backends is in api.c.
 */
#ifndef MLA_CORE_BACKEND_H
#define MLA_CORE_BACKEND_H

#include "mla/mla.h"
#include "shape.h"

typedef struct mla_backend_ops {
    const char *name;
    mla_device_type device;
    /* MLA_STATUS_OK, or UNSUPPORTED with a sentence that names the field this backend cannot do. */
    mla_status (*accepts)(const mla_problem *problem, const mla_shape *shape);
    /* Fills in the backend's part of a plan (plan.h). */
    mla_status (*build)(const mla_problem *problem, const mla_shape *shape, mla_plan *plan);
    /* Runs it. workspace is aligned to 4096 bytes and at least plan->workspace_bytes long. stream: NULL in host memory.
     * Cannot fail on the CPU. */
    mla_status (*run)(const mla_plan *plan, const mla_problem *problem, const mla_shape *shape, void *workspace,
                      void *stream);
    /* With MLA_DEBUG=1, before a run: the numbers in index tensors that the checker could not read. NULL: it could. */
    mla_status (*inspect)(const mla_problem *problem, const mla_shape *shape, void *stream);
    /* Workspace for mla_attention(), usable and released in the order of the stream; NULL: malloc() and free(). */
    mla_status (*allocate)(const mla_plan *plan, size_t bytes, void *stream, void **memory);
    void (*release)(const mla_plan *plan, void *memory, void *stream);
} mla_backend_ops;

extern const mla_backend_ops mla_backend_cpu_ops;
extern const mla_backend_ops mla_backend_ref_ops;
extern const mla_backend_ops mla_backend_cuda_ops;

#endif
