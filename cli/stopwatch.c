/*
 * stopwatch.c - see stopwatch.h.
 */
#include "stopwatch.h"

#include <stdlib.h>

#include "cli.h"
#include "mla/mla_gpu.h"

#define MAX_SAMPLE 1000
#define ENOUGH_SAMPLE 6 /* a warm-up, and five for a median that one interruption does not move */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double stopwatch_quantile(double *value, size_t n, double quantile)
{
    qsort(value, n, sizeof *value, by_value);
    double place = quantile * (double)(n - 1);
    size_t below = (size_t)place;
    double part = place - (double)below;
    return below + 1 < n ? value[below] + part * (value[below + 1] - value[below]) : value[below];
}

/* Workspace on the problem's device. */
static mla_status allocate(const mla_problem *problem, size_t bytes, void **workspace)
{
    *workspace = NULL;
    if (problem->q.device.type == MLA_DEVICE_CUDA) {
        return bytes > 0 ? mla_gpu_allocate(problem->q.device.id, bytes, workspace) : MLA_STATUS_OK;
    }
    *workspace = cli_alloc(bytes, 1);
    return *workspace != NULL ? MLA_STATUS_OK : MLA_STATUS_OUT_OF_MEMORY;
}

static void release(const mla_problem *problem, void *workspace)
{
    if (problem->q.device.type == MLA_DEVICE_CUDA) {
        (void)mla_gpu_free(problem->q.device.id, workspace);
    } else {
        free(workspace);
    }
}

/* One run, and the wait for its results. */
static mla_status run_once(const mla_plan *plan, const mla_problem *problem, void *workspace, size_t bytes)
{
    mla_status status = mla_run(plan, problem, workspace, bytes, NULL);
    if (status == MLA_STATUS_OK && problem->q.device.type == MLA_DEVICE_CUDA) {
        status = mla_gpu_synchronize(problem->q.device.id, NULL);
    }
    return status;
}

mla_status stopwatch_problem(const mla_problem *problem, const mla_plan_options *options, double budget,
                             mla_plan_info *info, stopwatch_result *result)
{
    mla_plan *plan;
    mla_status status = mla_plan_build(problem, options, &plan);
    if (status != MLA_STATUS_OK) {
        return status;
    }
    mla_plan_describe(plan, info);
    size_t bytes = mla_plan_workspace_bytes(plan);
    void *workspace;
    double sample[MAX_SAMPLE];
    int n = 0;
    status = allocate(problem, bytes, &workspace);
    double begin = cli_now();
    while (status == MLA_STATUS_OK && n < MAX_SAMPLE) {
        double allowed = n < ENOUGH_SAMPLE ? 10 * budget : budget;
        if (n > 0 && cli_now() - begin >= allowed) {
            break;
        }
        double start = cli_now();
        status = run_once(plan, problem, workspace, bytes);
        sample[n++] = cli_now() - start;
    }
    release(problem, workspace);
    mla_plan_free(plan);
    if (status == MLA_STATUS_OK) {
        size_t skip = n > 1 ? 1 : 0;
        result->n_sample = n - (int)skip;
        result->median = stopwatch_quantile(sample + skip, (size_t)result->n_sample, 0.5);
        result->least = stopwatch_quantile(sample + skip, (size_t)result->n_sample, 0);
        result->low = stopwatch_quantile(sample + skip, (size_t)result->n_sample, 0.25);
        result->high = stopwatch_quantile(sample + skip, (size_t)result->n_sample, 0.75);
    }
    return status;
}
