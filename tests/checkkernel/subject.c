/*
 * subject.c - how a problem is run: through the public interface, with a workspace that faults when it is too small.
 */
#include <stdint.h>

#include "subject_cuda.h"

const ck_subject *ck_subject_now;
uint64_t ck_seed;
double ck_seconds;

static mla_problem as_asked(const mla_problem *problem)
{
    mla_problem asked = *problem;
    if (asked.arithmetic == MLA_ARITHMETIC_AUTO) {
        asked.arithmetic = ck_subject_now->arithmetic;
    }
    return asked;
}

mla_status ck_try_execute(const mla_problem *problem, const ck_run *run)
{
    static const ck_run one_thread = {0};
    run = run ? run : &one_thread;
    int32_t n_thread = run->n_thread > 0 ? run->n_thread : 1;
    if (ck_subject_now->broken) {
        return ck_broken_attention(problem, ck_subject_now->bug, run->executor ? run->executor->n_worker : n_thread);
    }
    if (ck_subject_now->backend == MLA_BACKEND_CUDA) {
        return ck_cuda_execute(problem);
    }
    mla_problem asked = as_asked(problem);
    mla_plan_options options = {.backend = ck_subject_now->backend, .n_thread = n_thread, .executor = run->executor};
    mla_plan *plan = NULL;
    mla_status status = mla_plan_build(&asked, &options, &plan);
    if (status != MLA_STATUS_OK) {
        CK_REQUIRE(plan == NULL);
        return status;
    }
    size_t mark = ck_mark(), bytes = mla_plan_workspace_bytes(plan);
    void *workspace = bytes ? ck_buffer("workspace", bytes) : NULL;
    status = mla_run(plan, &asked, workspace, bytes, NULL);
    ck_release(mark);
    mla_plan_free(plan);
    return status;
}

mla_arithmetic ck_arithmetic(const mla_problem *problem)
{
    mla_plan_options options = {.backend = ck_subject_now->backend, .n_thread = 1};
    mla_plan *plan;
    mla_plan_info info;
    if (ck_subject_now->broken || ck_subject_now->backend == MLA_BACKEND_CUDA) {
        return MLA_ARITHMETIC_F32;
    }
    mla_problem asked = as_asked(problem);
    if (mla_plan_build(&asked, &options, &plan) != MLA_STATUS_OK || mla_plan_describe(plan, &info) != MLA_STATUS_OK) {
        ck_fail("the library refuses: %s", mla_last_error());
    }
    mla_plan_free(plan);
    return info.arithmetic;
}

void ck_execute(const mla_problem *problem, const ck_run *run)
{
    mla_status status = ck_try_execute(problem, run);
    if (status != MLA_STATUS_OK) {
        ck_fail("the library refuses: %s (%s)", mla_last_error(), mla_status_name(status));
    }
}
