/*
 * subject_cuda.c - the library on a GPU, as the thing under test: every tensor of a problem in host memory gets a twin
 * on the device, of the same layout and alignment, between guards; the outputs' twins come back, gaps included.
 */
#include "subject_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 256          /* bytes before and behind a tensor */
#define LARGEST (1l << 28) /* of one tensor */

static struct {
    bool tried;
    const mla_cuda_device *device;
    char why[512];
} gpu;

const mla_cuda_device *ck_cuda_device(const char **why)
{
    if (!gpu.tried) {
        gpu.tried = true;
        if (mla_cuda_device_get(0, &gpu.device) != MLA_STATUS_OK) {
            gpu.device = NULL;
            snprintf(gpu.why, sizeof gpu.why, "%s", mla_last_error());
        }
    }
    *why = gpu.why;
    return gpu.device;
}

const mla_cuda_device *ck_cuda_enter(void)
{
    bool pushed; /* and never left: the process ends with the test */
    const char *why;
    if (!ck_cuda_device(&why)) {
        ck_skip("%s", why);
    }
    CK_REQUIRE(mla_cuda_enter(gpu.device, &pushed) == MLA_STATUS_OK);
    return gpu.device;
}

void ck_cuda_require(cuda_result result, const char *what)
{
    if (result != CUDA_RESULT_OK) {
        const char *text = NULL;
        gpu.device->driver->cuGetErrorString(result, &text);
        ck_fail("%s: %s", what, text ? text : "unknown CUDA error");
    }
}

/* ---- twins ------------------------------------------------------------------------------------------------------- */

/* First byte of a view and how many bytes it spans. */
static char *span_of(const mla_tensor *t, int64_t *bytes)
{
    int64_t low = 0, high = 0, size = (int64_t)mla_dtype_size(t->dtype);
    *bytes = 0;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->dim[i] == 0) {
            return t->data;
        }
        int64_t reach = (t->dim[i] - 1) * t->stride[i];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    *bytes = (high - low + 1) * size;
    return (char *)t->data + low * size;
}

void ck_cuda_upload(ck_cuda_twin *twin)
{
    const mla_cuda_driver *driver = gpu.device->driver;
    size_t around = (size_t)twin->bytes + 2 * GUARD;
    unsigned char *all = malloc(around);
    CK_REQUIRE(all != NULL);
    memset(all, 0xff, around);
    memcpy(all + GUARD, twin->host, (size_t)twin->bytes);
    ck_cuda_require(driver->cuMemcpyHtoDAsync_v2(twin->device - GUARD, all, around, NULL), "copying to the device");
    ck_cuda_require(driver->cuStreamSynchronize(NULL), "copying to the device");
    free(all);
}

static void download(const ck_cuda_twin *twin)
{
    const mla_cuda_driver *driver = gpu.device->driver;
    size_t around = (size_t)twin->bytes + 2 * GUARD;
    unsigned char *all = malloc(around);
    CK_REQUIRE(all != NULL);
    ck_cuda_require(driver->cuMemcpyDtoHAsync_v2(all, twin->device - GUARD, around, NULL), "copying from the device");
    ck_cuda_require(driver->cuStreamSynchronize(NULL), "a kernel, or copying from the device");
    for (size_t i = 0; i < GUARD; i++) {
        if (all[i] != 0xff || all[around - 1 - i] != 0xff) {
            ck_fail("memory around %s was written", twin->name);
        }
    }
    memcpy(twin->host, all + GUARD, (size_t)twin->bytes);
    free(all);
}

static void make_twin(ck_cuda_problem *c, mla_tensor *t, const char *name, bool output)
{
    if (!mla_tensor_present(t)) {
        return;
    }
    ck_cuda_twin *twin = &c->twin[c->n_twin++];
    *twin = (ck_cuda_twin){.name = name, .output = output};
    twin->host = span_of(t, &twin->bytes);
    if (twin->bytes > LARGEST) {
        ck_skip("%s of %lld bytes has no twin on the device", name, (long long)twin->bytes);
    }
    /* the same place within 256 bytes: kernels look at alignment */
    size_t place = (uintptr_t)twin->host % 256;
    ck_cuda_require(gpu.device->driver->cuMemAlloc_v2(&twin->base, place + (size_t)twin->bytes + 2 * GUARD),
                    "allocating on the device");
    twin->device = (twin->base & ~(cuda_address)255) + place + GUARD;
    if (twin->device - GUARD < twin->base) { /* the emulation's addresses are multiples of 16 alone */
        twin->device = twin->base + GUARD + (place - twin->base - GUARD) % 16;
    }
    ck_cuda_upload(twin);
    t->data = (void *)(uintptr_t)(twin->device + (cuda_address)((char *)t->data - twin->host));
    t->device = (mla_device){MLA_DEVICE_CUDA, 0};
}

void ck_cuda_make(ck_cuda_problem *c, const mla_problem *problem)
{
    ck_cuda_enter();
    *c = (ck_cuda_problem){.problem = *problem};
    mla_problem *p = &c->problem;
    make_twin(c, &p->q, "q", false);
    make_twin(c, &p->q_rope, "q_rope", false);
    make_twin(c, &p->q_begin, "q_begin", false);
    make_twin(c, &p->q_length, "q_length", false);
    make_twin(c, &p->q_descale, "q_descale", false);
    make_twin(c, &p->qk_descale, "qk_descale", false);
    make_twin(c, &p->pv_descale, "pv_descale", false);
    make_twin(c, &p->sink, "sink", false);
    make_twin(c, &p->o, "o", true);
    make_twin(c, &p->lse, "lse", true);
    make_twin(c, &p->max, "max", true);
    for (int32_t g = 0; g < p->n_segment; g++) {
        mla_segment *s = &p->segment[g];
        make_twin(c, &s->k, "k", false);
        make_twin(c, &s->k_rope, "k_rope", false);
        make_twin(c, &s->v, "v", false);
        make_twin(c, &s->k_begin, "k_begin", false);
        make_twin(c, &s->page_table, "page_table", false);
        make_twin(c, &s->length, "length", false);
        make_twin(c, &s->list, "list", false);
        make_twin(c, &s->list_length, "list_length", false);
        make_twin(c, &s->visible.residual, "residual", false);
        make_twin(c, &s->mask, "mask", false);
        make_twin(c, &s->descale, "descale", false);
    }
}

void ck_cuda_fetch(const ck_cuda_problem *c)
{
    for (int i = 0; i < c->n_twin; i++) {
        if (c->twin[i].output) {
            download(&c->twin[i]);
        }
    }
}

void ck_cuda_end(ck_cuda_problem *c)
{
    for (int i = 0; i < c->n_twin; i++) {
        gpu.device->driver->cuMemFree_v2(c->twin[i].base);
    }
    c->n_twin = 0;
}

cuda_address ck_cuda_workspace(const mla_plan *plan, size_t *bytes)
{
    cuda_address workspace = 0;
    *bytes = mla_plan_workspace_bytes(plan);
    if (*bytes > 0) {
        ck_cuda_require(gpu.device->driver->cuMemAlloc_v2(&workspace, *bytes), "allocating the workspace");
        ck_cuda_require(gpu.device->driver->cuMemsetD8Async(workspace, 0xff, *bytes, NULL), "filling the workspace");
        ck_cuda_require(gpu.device->driver->cuStreamSynchronize(NULL), "filling the workspace");
    }
    return workspace;
}

bool ck_cuda_note_kernels(const mla_plan *plan, const mla_problem *problem)
{
    mla_plan_info info;
    CK_REQUIRE(mla_plan_describe(plan, &info) == MLA_STATUS_OK);
    bool dense = strncmp(info.isa, "dense_", 6) == 0, f16 = problem->q.dtype == MLA_DTYPE_F16;
    CK_REQUIRE(info.arithmetic == (!dense ? MLA_ARITHMETIC_F32 : f16 ? MLA_ARITHMETIC_F16 : MLA_ARITHMETIC_BF16));
    ck_p_unit = !dense ? 0 : f16 ? 0x1p-11 : 0x1p-8;
    ck_p_least = dense && f16 ? 0x1p-24 : 0;
    return dense;
}

mla_status ck_cuda_execute(const mla_problem *problem)
{
    ck_cuda_problem c;
    mla_plan *plan = NULL;
    ck_cuda_make(&c, problem);
    mla_status status = mla_plan_build(&c.problem, NULL, &plan);
    if (status == MLA_STATUS_OK) {
        size_t bytes;
        ck_cuda_note_kernels(plan, &c.problem);
        cuda_address workspace = ck_cuda_workspace(plan, &bytes);
        status = mla_run(plan, &c.problem, (void *)(uintptr_t)workspace, bytes, NULL);
        if (status == MLA_STATUS_OK) {
            ck_cuda_fetch(&c);
        }
        if (workspace) {
            gpu.device->driver->cuMemFree_v2(workspace);
        }
        mla_plan_free(plan);
    }
    ck_cuda_end(&c);
    return status;
}
