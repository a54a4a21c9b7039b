/*
 * parallel.c - OpenMP, or the threads that the host application lends.
 */
#define _POSIX_C_SOURCE 200809L
#include "parallel.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "cpu_quota.h"

#ifdef _OPENMP
#include <omp.h>

/* A child of fork() has one thread, and an OpenMP run time that believes in the others and would wait for them. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool forked;

static void note_fork(void)
{
    forked = true;
}

static void watch_fork(void)
{
    pthread_atfork(NULL, NULL, note_fork);
}

static pthread_once_t quota_once = PTHREAD_ONCE_INIT;
static int32_t quota; /* 0: none */

static void look_for_quota(void)
{
    quota = mla_cpu_quota("");
}

/* Has nobody told OpenMP how many threads to use? It then takes as many as there are CPUs to run on. */
static bool is_openmps_own_number(int n)
{
    return getenv("OMP_NUM_THREADS") == NULL && n == omp_get_num_procs();
}
#endif

/* The run time ends the process when it cannot start a thread, so it is not asked for absurdly many. */
#define MLA_MAX_THREADS 1024

int32_t mla_default_threads(void)
{
#ifdef _OPENMP
    /* inside somebody else's parallel region every caller is one worker already */
    int n = omp_in_parallel() ? 1 : omp_get_max_threads();
    if (n > 1 && is_openmps_own_number(n)) {
        pthread_once(&quota_once, look_for_quota);
        n = quota > 0 && quota < n ? quota : n;
    }
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
    pthread_once(&once, watch_fork);
    /* the plan's number even for fewer tasks: the run time ends the threads that a smaller team leaves over, and starting
     * them again costs the next call more than it takes them to find nothing to do */
    int n_thread = plan->n_worker < MLA_MAX_THREADS ? plan->n_worker : MLA_MAX_THREADS;
#pragma omp parallel for num_threads(n_thread) schedule(static, 1) if (!forked)
#endif
    for (int64_t i = 0; i < n_task; i++) {
        task(data, i);
    }
}
