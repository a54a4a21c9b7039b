/*
 * api.c - the native calls: plan, run, one-shot.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "mla/mla.h"
#include "parallel.h"
#include "plan.h"

#define MLA_WORKSPACE_ALIGN 4096

static mla_status choose_backend(mla_backend wanted, const mla_problem *problem, const mla_shape *shape,
                                 const mla_backend_ops **backend)
{
    switch (wanted) {
    case MLA_BACKEND_AUTO:
        *backend = problem->q.device.type == MLA_DEVICE_CUDA ? &mla_backend_cuda_ops : &mla_backend_cpu_ops;
        break;
    case MLA_BACKEND_CPU: *backend = &mla_backend_cpu_ops; break;
    case MLA_BACKEND_REF: *backend = &mla_backend_ref_ops; break;
    case MLA_BACKEND_CUDA: *backend = &mla_backend_cuda_ops; break;
    default: return mla_fail(MLA_STATUS_BAD_VALUE, "options.backend = %d is not an mla_backend", (int)wanted);
    }
    if ((*backend)->device != problem->q.device.type) {
        return mla_fail(MLA_STATUS_BAD_DEVICE, "options.backend = %d (%s) cannot compute on tensors in %s", (int)wanted,
                        (*backend)->name,
                        problem->q.device.type == MLA_DEVICE_CUDA ? "the memory of a GPU" : "host memory");
    }
    return (*backend)->accepts(problem, shape);
}

static mla_status read_options(const mla_plan_options *options, mla_plan *plan)
{
    if (options->allocator && !options->allocator->allocate) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "options.allocator->allocate is NULL");
    }
    if (options->n_thread < 0) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "options.n_thread = %d must not be negative", (int)options->n_thread);
    }
    plan->batch_invariant = options->batch_invariant;
    plan->n_worker = options->n_thread > 0 ? options->n_thread : mla_default_threads();
    if (options->executor) {
        if (!options->executor->parallel_for) {
            return mla_fail(MLA_STATUS_NULL_POINTER, "options.executor->parallel_for is NULL");
        }
        if (options->executor->n_worker < 1) {
            return mla_fail(MLA_STATUS_BAD_VALUE, "options.executor->n_worker = %d must be at least 1",
                            (int)options->executor->n_worker);
        }
        plan->executor = *options->executor;
        plan->host_executor = true;
        plan->n_worker = options->executor->n_worker;
    }
    return MLA_STATUS_OK;
}

static mla_status build_resolved(const mla_problem *problem, const mla_shape *shape, const mla_plan_options *options,
                                 mla_plan *plan)
{
    static const mla_plan_options defaults = {0};
    options = options ? options : &defaults;
    MLA_TRY(choose_backend(options->backend, problem, shape, &plan->backend));
    MLA_TRY(read_options(options, plan));
    plan->fingerprint = mla_plan_fingerprint(problem, shape);
    plan->isa = "";
    plan->arithmetic = MLA_ARITHMETIC_F32; /* unless the backend says otherwise */
    return plan->backend->build(problem, shape, plan);
}

mla_status mla_plan_build(const mla_problem *problem, const mla_plan_options *options, mla_plan **plan)
{
    if (!plan) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "plan is NULL");
    }
    *plan = NULL;
    mla_shape shape;
    MLA_TRY(mla_problem_resolve(problem, &shape));
    mla_plan *fresh = calloc(1, sizeof *fresh);
    if (!fresh) {
        return mla_fail(MLA_STATUS_OUT_OF_MEMORY, "plan does not fit into memory");
    }
    mla_status status = build_resolved(problem, &shape, options, fresh);
    if (status != MLA_STATUS_OK) {
        mla_plan_free(fresh);
        return status;
    }
    *plan = fresh;
    return MLA_STATUS_OK;
}

/* Frees what a plan holds, not the plan. */
static void empty_plan(mla_plan *plan)
{
    free(plan->item);
    free(plan->combine);
}

void mla_plan_free(mla_plan *plan)
{
    if (plan) {
        empty_plan(plan);
        free(plan);
    }
}

size_t mla_plan_workspace_bytes(const mla_plan *plan)
{
    /* the caller's memory may start anywhere; the backend gets it aligned */
    return plan && plan->workspace_bytes ? plan->workspace_bytes + MLA_WORKSPACE_ALIGN : 0;
}

mla_status mla_plan_describe(const mla_plan *plan, mla_plan_info *info)
{
    if (!plan || !info) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "%s is NULL", plan ? "info" : "plan");
    }
    *info = (mla_plan_info){
        .backend = plan->backend->name,
        .isa = plan->isa,
        .n_worker = plan->n_worker,
        .n_item = plan->n_item,
        .n_slot = plan->n_slot,
        .workspace_bytes = mla_plan_workspace_bytes(plan),
        .fingerprint = plan->fingerprint,
        .arithmetic = plan->arithmetic,
    };
    return MLA_STATUS_OK;
}

static mla_status run_resolved(const mla_plan *plan, const mla_problem *problem, const mla_shape *shape,
                               void *workspace, void *stream)
{
    if (plan->backend->inspect) {
        MLA_TRY(plan->backend->inspect(problem, shape, stream));
    }
    uintptr_t start = ((uintptr_t)workspace + MLA_WORKSPACE_ALIGN - 1) / MLA_WORKSPACE_ALIGN * MLA_WORKSPACE_ALIGN;
    return plan->backend->run(plan, problem, shape, (void *)start, stream);
}

static mla_status check_stream(const mla_problem *problem, const void *stream)
{
    if (stream && problem->q.device.type == MLA_DEVICE_CPU) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "stream must be NULL for tensors in host memory");
    }
    return MLA_STATUS_OK;
}

mla_status mla_run(const mla_plan *plan, const mla_problem *problem, void *workspace, size_t workspace_bytes,
                   void *stream)
{
    if (!plan) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "plan is NULL");
    }
    mla_shape shape;
    MLA_TRY(mla_problem_resolve(problem, &shape));
    MLA_TRY(check_stream(problem, stream));
    MLA_TRY(plan->backend->accepts(problem, &shape));
    if (mla_plan_fingerprint(problem, &shape) != plan->fingerprint) {
        return mla_fail(MLA_STATUS_STALE_PLAN, "plan was built for other shapes, rules or lengths; build it again");
    }
    size_t need = mla_plan_workspace_bytes(plan);
    if (workspace_bytes < need) {
        return mla_fail(MLA_STATUS_WORKSPACE_TOO_SMALL, "workspace_bytes = %zu must be at least %zu", workspace_bytes,
                        need);
    }
    if (need && !workspace) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "workspace is NULL but %zu bytes are needed", need);
    }
    return run_resolved(plan, problem, &shape, workspace, stream);
}

/*
 * The last workspace that came from the heap. The system takes memory of this size back when it is freed and hands it out page
 * by page, so that a call of a few milliseconds would spend as long again on touching it.
 */
typedef struct kept_workspace {
    size_t bytes; /* behind this struct */
} kept_workspace;
#ifdef __SANITIZE_ADDRESS__
#define MLA_MOST_KEPT ((size_t)0) /* so that it notices what lies outside a workspace, and what is used after a call */
#else
#define MLA_MOST_KEPT ((size_t)64 << 20)
#endif
static _Atomic(kept_workspace *) kept;

static void *take_from_heap(size_t bytes)
{
    kept_workspace *block = atomic_exchange(&kept, NULL);
    if (block && block->bytes < bytes) {
        free(block);
        block = NULL;
    }
    if (!block) {
        block = bytes <= SIZE_MAX - sizeof *block ? malloc(sizeof *block + bytes) : NULL;
        if (!block) {
            return NULL;
        }
        block->bytes = bytes;
    }
    return block + 1;
}

static void give_to_heap(void *memory)
{
    kept_workspace *block = (kept_workspace *)memory - 1;
    free(block->bytes <= MLA_MOST_KEPT ? atomic_exchange(&kept, block) : block);
}

/* When the library is unloaded. */
__attribute__((destructor)) static void free_kept(void)
{
    free(atomic_exchange(&kept, NULL));
}

/* The one-shot call's workspace: from the caller's allocator, from the backend, or from the heap. */
static mla_status allocate(const mla_plan *plan, const mla_plan_options *options, size_t bytes, void **memory)
{
    if (bytes == 0) {
        return MLA_STATUS_OK;
    }
    if (options->allocator) {
        *memory = options->allocator->allocate(options->allocator->context, bytes, options->stream);
    } else if (plan->backend->allocate) {
        return plan->backend->allocate(plan, bytes, options->stream, memory);
    } else {
        *memory = take_from_heap(bytes);
    }
    if (!*memory) {
        return mla_fail(MLA_STATUS_OUT_OF_MEMORY, "workspace of %zu bytes does not fit into memory", bytes);
    }
    return MLA_STATUS_OK;
}

static void release(const mla_plan *plan, const mla_plan_options *options, void *memory)
{
    if (memory == NULL) {
        return;
    }
    if (options->allocator) {
        if (options->allocator->release) {
            options->allocator->release(options->allocator->context, memory, options->stream);
        }
    } else if (plan->backend->release) {
        plan->backend->release(plan, memory, options->stream);
    } else {
        give_to_heap(memory);
    }
}

mla_status mla_attention(const mla_problem *problem, const mla_plan_options *options)
{
    mla_shape shape;
    MLA_TRY(mla_problem_resolve(problem, &shape));
    static const mla_plan_options defaults = {0};
    options = options ? options : &defaults;
    MLA_TRY(check_stream(problem, options->stream));
    mla_plan plan = {0};
    void *workspace = NULL;
    mla_status status = build_resolved(problem, &shape, options, &plan);
    if (status == MLA_STATUS_OK) {
        status = allocate(&plan, options, mla_plan_workspace_bytes(&plan), &workspace);
    }
    if (status == MLA_STATUS_OK) {
        status = run_resolved(&plan, problem, &shape, workspace, options->stream);
    }
    release(&plan, options, workspace);
    empty_plan(&plan);
    return status;
}
