/*
 * subject_cuda.h - problems in host memory and their twins on the GPU.
 */
#ifndef CHECKKERNEL_SUBJECT_CUDA_H
#define CHECKKERNEL_SUBJECT_CUDA_H

#include "checkkernel.h"
#include "cuda/cuda_device.h"

/* The first GPU, or NULL and the reason why there is none. */
const mla_cuda_device *ck_cuda_device(const char **why);

/* The same, its context current from here on; skips the test where there is none. */
const mla_cuda_device *ck_cuda_enter(void);

/* Fails the test unless the driver's answer is OK. */
void ck_cuda_require(cuda_result result, const char *what);

/* A tensor's memory on both sides. */
typedef struct ck_cuda_twin {
    const char *name;
    char *host;
    int64_t bytes;
    cuda_address base, device; /* what was allocated; where the tensor's first byte is */
    bool output;
} ck_cuda_twin;

#define CK_CUDA_MAX_TWIN 40

typedef struct ck_cuda_problem {
    mla_problem problem; /* on the device */
    ck_cuda_twin twin[CK_CUDA_MAX_TWIN];
    int n_twin;
} ck_cuda_problem;

/* Allocates the twins and copies everything, outputs' memory too. Skips the test where there is no GPU. */
void ck_cuda_make(ck_cuda_problem *c, const mla_problem *problem);
/* Copies one tensor's host memory again. */
void ck_cuda_upload(ck_cuda_twin *twin);
/* Outputs back into the host problem's memory; waits for the default stream. */
void ck_cuda_fetch(const ck_cuda_problem *c);
void ck_cuda_end(ck_cuda_problem *c);

/* Workspace that holds NaN. */
cuda_address ck_cuda_workspace(const mla_plan *plan, size_t *bytes);

/* Sets ck_p_unit and ck_p_least to what the plan's kernels do; true: they are the ones for dense decode on Hopper. */
bool ck_cuda_note_kernels(const mla_plan *plan, const mla_problem *problem);

/* make, plan, run, fetch, end. */
mla_status ck_cuda_execute(const mla_problem *problem);

#endif
