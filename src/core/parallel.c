/*
 * parallel.c - OpenMP, or the threads that the host application lends.
 */
#include "parallel.h"

#ifdef _OPENMP
#include <omp.h>
#endif

int32_t mla_default_workers(void)
{
#ifdef _OPENMP
    /* inside somebody else's parallel region every caller is one worker already */
    int n = omp_in_parallel() ? 1 : omp_get_max_threads();
    return n < 1 ? 1 : n;
#else
    return 1;
#endif
}

void mla_parallel(const mla_plan *plan, int64_t n_task, mla_task task, void *data)
{
    if (n_task <= 0) {
        return;
    }
    if (n_task == 1) {
        task(data, 0);
        return;
    }
    if (plan->host_executor) {
        plan->executor.parallel_for(plan->executor.context, n_task, task, data);
        return;
    }
#ifdef _OPENMP
    int n_thread = plan->n_worker < n_task ? plan->n_worker : (int)n_task;
#pragma omp parallel for num_threads(n_thread) schedule(static, 1)
#endif
    for (int64_t i = 0; i < n_task; i++) {
        task(data, i);
    }
}
