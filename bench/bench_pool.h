/*
 * bench_pool.h - the threads that everything measured runs on: ours, the rivals and the ceilings alike.
 *
 * An OpenMP run time keeps its threads spinning for a while after a parallel region; on a machine with few cores that
 * slows down whatever is timed next with fewer threads. Here idle workers sleep after 0.1 ms, and bench_pool_quiet()
 * waits until they do. Worker i is bound to the i-th CPU that the process may use; the caller is worker 0 and is bound
 * while bench_pool_bind() says so.
 */
#ifndef MLA_BENCH_POOL_H
#define MLA_BENCH_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "mla/mla.h"

typedef struct bench_pool bench_pool;

/* n_thread >= 1, the caller included. NULL: no memory or no threads. */
bench_pool *bench_pool_new(int32_t n_thread);
void bench_pool_free(bench_pool *pool); /* NULL is fine */

int32_t bench_pool_size(const bench_pool *pool);

/* Runs task(data, i) for i in [0, n_task) on the pool's threads and returns when all are done. Only one caller at a
 * time, always the same thread. */
void bench_pool_run(bench_pool *pool, int64_t n_task, mla_task task, void *data);

/* Returns when every worker sleeps. */
void bench_pool_quiet(bench_pool *pool);

/* Seconds that the worst-off worker had tasks to run and no core to run them on, since the last call. */
double bench_pool_lost(bench_pool *pool);

/* The pool as threads lent to libmla; valid as long as the pool. */
mla_executor bench_pool_executor(bench_pool *pool);

/* Binds the calling thread to the first CPU of the process, or gives it back its old freedom. Threads created in
 * between inherit the binding, so create pools and load libraries before. */
void bench_pool_bind(bool bound);

#endif
