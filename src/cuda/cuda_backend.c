/*
 * cuda_backend.c - problems in GPU memory: choice of the variant, context, workspace of the one-shot call.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_debug.h"
#include "cuda_images.h"
#include "cuda_variant.h"

static mla_status cuda_accepts(const mla_problem *problem, const mla_shape *shape)
{
    (void)shape;
    if (problem->arithmetic == MLA_ARITHMETIC_INT16) {
        return mla_fail(MLA_STATUS_UNSUPPORTED, "arithmetic = %d (int16) is not available on the CUDA backend",
                        (int)problem->arithmetic);
    }
    return MLA_STATUS_OK;
}

static mla_status cuda_build(const mla_problem *problem, const mla_shape *shape, mla_plan *plan)
{
    const mla_cuda_device *device;
    MLA_TRY(mla_cuda_device_get(problem->q.device.id, &device));
    plan->device = device;
    plan->n_worker = device->n_sm;
    if (shape->n_token == 0) {
        return MLA_STATUS_OK; /* nothing to do, and sizes may be anything then */
    }
    const mla_cuda_variant *const *variant = mla_cuda_variants;
    while (*variant != NULL &&
           ((plan->batch_invariant && !(*variant)->invariant) || !(*variant)->serves(device, problem, shape) ||
            ((*variant)->pays != NULL && !(*variant)->pays(device, problem, shape)))) {
        variant++;
    }
    if (*variant == NULL) {
        return mla_fail(MLA_STATUS_UNSUPPORTED, "no CUDA kernel of this build runs the problem");
    }
    plan->kernels = *variant;
    plan->isa = (*variant)->name;
    return (*variant)->build(device, problem, shape, plan);
}

static mla_status cuda_run(const mla_plan *plan, const mla_problem *problem, const mla_shape *shape, void *workspace,
                           void *stream)
{
    const mla_cuda_variant *variant = plan->kernels;
    const mla_cuda_device *device = plan->device;
    bool pushed;
    if (variant == NULL) {
        return MLA_STATUS_OK; /* no query tokens */
    }
    if (!variant->serves(device, problem, shape)) {
        return mla_fail(MLA_STATUS_STALE_PLAN,
                        "plan was built for the kernels '%s', which do not serve these strides or addresses; build it "
                        "again",
                        variant->name);
    }
    MLA_TRY(mla_cuda_enter(device, &pushed));
    mla_status status =
        variant->launch(device, plan, problem, shape, (cuda_address)(uintptr_t)workspace, (cuda_stream)stream);
    mla_cuda_leave(device, pushed);
    return status;
}

/* ---- workspace of one-shot calls --------------------------------------------------------------------------------- */

mla_status mla_cuda_pool_allocate(int32_t ordinal, size_t bytes, void *stream, void **memory)
{
    const mla_cuda_device *device;
    cuda_address address = 0;
    bool pushed;
    MLA_TRY(mla_cuda_device_get(ordinal, &device));
    if (!device->memory_pools) {
        return mla_fail(MLA_STATUS_UNSUPPORTED,
                        "GPU %" PRId32 " (%s) has no stream-ordered memory: give options.allocator, or use "
                        "mla_run() with a workspace",
                        device->ordinal, device->name);
    }
    MLA_TRY(mla_cuda_enter(device, &pushed));
    mla_status status =
        mla_cuda_check(device->driver, device->driver->cuMemAllocAsync(&address, bytes, (cuda_stream)stream),
                       "allocating workspace");
    mla_cuda_leave(device, pushed);
    *memory = (void *)(uintptr_t)address;
    return status;
}

void mla_cuda_pool_release(int32_t ordinal, void *memory, void *stream)
{
    const mla_cuda_device *device;
    bool pushed;
    if (mla_cuda_device_get(ordinal, &device) == MLA_STATUS_OK && mla_cuda_enter(device, &pushed) == MLA_STATUS_OK) {
        device->driver->cuMemFreeAsync((cuda_address)(uintptr_t)memory, (cuda_stream)stream);
        mla_cuda_leave(device, pushed);
    }
}

static mla_status cuda_allocate(const mla_plan *plan, size_t bytes, void *stream, void **memory)
{
    const mla_cuda_device *device = plan->device;
    return mla_cuda_pool_allocate(device->ordinal, bytes, stream, memory);
}

static void cuda_release(const mla_plan *plan, void *memory, void *stream)
{
    const mla_cuda_device *device = plan->device;
    mla_cuda_pool_release(device->ordinal, memory, stream);
}

const mla_backend_ops mla_backend_cuda_ops = {
    .name = "cuda",
    .device = MLA_DEVICE_CUDA,
    .accepts = cuda_accepts,
    .build = cuda_build,
    .run = cuda_run,
    .inspect = mla_cuda_inspect,
    .allocate = cuda_allocate,
    .release = cuda_release,
};

/* ---- what this machine has --------------------------------------------------------------------------------------- */

/* As with kernel files, a name with _sm90 belongs to compute capability 9.0 alone. */
static bool is_for(const mla_cuda_variant *variant, int32_t compute_capability)
{
    const char *at = strstr(variant->name, "_sm");
    return at == NULL || atoi(at + 3) == compute_capability;
}

/* Those of one generation, or, 0, of all. */
static void list_variants(char *text, size_t capacity, int32_t compute_capability)
{
    size_t used = 0;
    text[0] = '\0';
    for (const mla_cuda_variant *const *v = mla_cuda_variants; *v != NULL && used < capacity; v++) {
        if (compute_capability == 0 || is_for(*v, compute_capability)) {
            used += (size_t)snprintf(text + used, capacity - used, "%s%s", used > 0 ? ", " : "", (*v)->name);
        }
    }
}

size_t mla_gpu_list(mla_gpu_info *info, size_t capacity)
{
    int32_t count;
    if (mla_cuda_images[0].name == NULL) {
        mla_fail(MLA_STATUS_UNSUPPORTED, "this build of libmla has no CUDA kernels: %s", mla_cuda_images_missing);
        return 0;
    }
    mla_status status = mla_cuda_device_count(&count);
    if (status != MLA_STATUS_OK) {
        char why[400], variants[sizeof info->variants];
        snprintf(why, sizeof why, "%s", mla_last_error());
        list_variants(variants, sizeof variants, 0);
        mla_fail(status, "%s (this build has CUDA kernels: %s)", why, variants);
        return 0;
    }
    for (int32_t i = 0; i < count && (size_t)i < capacity; i++) {
        mla_cuda_device facts;
        memset(&info[i], 0, sizeof info[i]);
        if (mla_cuda_device_describe(i, &facts) == MLA_STATUS_OK) {
            memcpy(info[i].name, facts.name, sizeof info[i].name);
            info[i].compute_capability = facts.compute_capability;
            info[i].n_sm = facts.n_sm;
            info[i].memory_bytes = facts.memory_bytes;
            list_variants(info[i].variants, sizeof info[i].variants, info[i].compute_capability);
        }
    }
    return (size_t)count;
}
