/*
 * gpu_problem.c - see gpu_problem.h.
 */
#include "gpu_problem.h"

#include <stddef.h>
#include <stdlib.h>

#include "cli.h"
#include "mla/mla_gpu.h"

#define GPU 0

/* Every tensor of a problem, and of a segment; the first ones are outputs. */
static const size_t fields[] = {
    offsetof(mla_problem, o),          offsetof(mla_problem, lse),       offsetof(mla_problem, max),
    offsetof(mla_problem, q),          offsetof(mla_problem, q_rope),    offsetof(mla_problem, q_begin),
    offsetof(mla_problem, q_length),   offsetof(mla_problem, q_descale), offsetof(mla_problem, qk_descale),
    offsetof(mla_problem, pv_descale), offsetof(mla_problem, sink),
};
static const size_t segment_fields[] = {
    offsetof(mla_segment, k),       offsetof(mla_segment, k_rope),      offsetof(mla_segment, v),
    offsetof(mla_segment, k_begin), offsetof(mla_segment, page_table),  offsetof(mla_segment, length),
    offsetof(mla_segment, list),    offsetof(mla_segment, list_length), offsetof(mla_segment, visible.residual),
    offsetof(mla_segment, mask),    offsetof(mla_segment, descale),
};

enum {
    N_OUTPUT = 3,
    N_FIELD = sizeof fields / sizeof fields[0],
    N_SEGMENT_FIELD = sizeof segment_fields / sizeof segment_fields[0],
    MAX_TWIN = N_FIELD + MLA_MAX_SEGMENT * N_SEGMENT_FIELD
};

typedef struct span {
    char *host;
    void *device;
    size_t bytes;
} span;

struct gpu_problem {
    mla_problem problem;
    span twin[MAX_TWIN]; /* outputs first; device NULL: that tensor is absent or empty */
    int n_twin;
};

/* The memory that a view reaches. */
static span span_of(const mla_tensor *t)
{
    int64_t low = 0, high = 0, size = (int64_t)mla_dtype_size(t->dtype);
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->dim[i] == 0) {
            return (span){0};
        }
        int64_t reach = (t->dim[i] - 1) * t->stride[i];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    return (span){.host = (char *)t->data + low * size, .bytes = (size_t)((high - low + 1) * size)};
}

static mla_status move(gpu_problem *g, mla_tensor *t)
{
    span *twin = &g->twin[g->n_twin++];
    if (t->ndim == 0) {
        return MLA_STATUS_OK;
    }
    t->device = (mla_device){MLA_DEVICE_CUDA, GPU};
    *twin = span_of(t);
    if (twin->bytes == 0) {
        return MLA_STATUS_OK;
    }
    mla_status status = mla_gpu_allocate(GPU, twin->bytes, &twin->device);
    if (status == MLA_STATUS_OK) {
        status = mla_gpu_copy(GPU, twin->device, twin->host, twin->bytes, NULL);
        t->data = (char *)twin->device + ((char *)t->data - twin->host);
    }
    return status;
}

mla_status gpu_problem_make(const mla_problem *host, gpu_problem **twin)
{
    mla_status status = mla_problem_check(host); /* its views are followed below */
    *twin = NULL;
    if (status != MLA_STATUS_OK) {
        return status;
    }
    gpu_problem *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return MLA_STATUS_OUT_OF_MEMORY;
    }
    g->problem = *host;
    for (size_t i = 0; status == MLA_STATUS_OK && i < N_FIELD; i++) {
        status = move(g, (mla_tensor *)((char *)&g->problem + fields[i]));
    }
    for (int32_t s = 0; s < g->problem.n_segment; s++) {
        for (size_t i = 0; status == MLA_STATUS_OK && i < N_SEGMENT_FIELD; i++) {
            status = move(g, (mla_tensor *)((char *)&g->problem.segment[s] + segment_fields[i]));
        }
    }
    if (status == MLA_STATUS_OK) {
        status = mla_gpu_synchronize(GPU, NULL);
    }
    if (status != MLA_STATUS_OK) {
        gpu_problem_release(g);
        return status;
    }
    *twin = g;
    return MLA_STATUS_OK;
}

const mla_problem *gpu_problem_of(const gpu_problem *twin)
{
    return &twin->problem;
}

mla_status gpu_problem_fetch(const gpu_problem *g)
{
    mla_status status = MLA_STATUS_OK;
    for (int i = 0; status == MLA_STATUS_OK && i < N_OUTPUT; i++) {
        status = mla_gpu_copy(GPU, g->twin[i].host, g->twin[i].device, g->twin[i].bytes, NULL);
    }
    return status == MLA_STATUS_OK ? mla_gpu_synchronize(GPU, NULL) : status;
}

void gpu_problem_release(gpu_problem *g)
{
    for (int i = 0; g != NULL && i < g->n_twin; i++) {
        (void)mla_gpu_free(GPU, g->twin[i].device);
    }
    free(g);
}

mla_status gpu_attention(const mla_problem *host, mla_arithmetic *arithmetic)
{
    gpu_problem *g;
    mla_status status = gpu_problem_make(host, &g);
    if (status == MLA_STATUS_OK) {
        *arithmetic = cli_arithmetic_of(&g->problem, NULL);
        status = mla_attention(&g->problem, NULL);
    }
    if (status == MLA_STATUS_OK) {
        status = gpu_problem_fetch(g);
    }
    gpu_problem_release(g);
    return status;
}
