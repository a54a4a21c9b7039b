/*
 * parallel.h - the one place that starts threads.
 */
#ifndef MLA_CORE_PARALLEL_H
#define MLA_CORE_PARALLEL_H

#include "plan.h"

/* Runs task(data, i) for i in [0, n_task) on the plan's executor, or on the calling thread alone when n_task is 1. */
void mla_parallel(const mla_plan *plan, int64_t n_task, mla_task task, void *data);

#endif
