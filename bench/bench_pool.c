/*
 * bench_pool.c - see bench_pool.h.
 */
#include "bench_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SPIN_SECONDS 100e-6
#define WAKE_SECONDS 100e-6 /* a sleeping worker may take this long to begin */

/* A worker's own line. */
typedef struct worker_line {
    _Alignas(64) double lost;
} worker_line;

struct bench_pool {
    int32_t n_thread;
    int32_t n_started;
    pthread_t *thread;
    worker_line *line; /* [n_thread], of the caller unused */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    mla_task task;
    void *data;
    int64_t n_task;
    double announced; /* when this round was */
    bool stop;
    /* each on a line of its own: written by one side, watched by the other */
    _Alignas(64) atomic_uint round;
    _Alignas(64) atomic_int_fast64_t next;
    _Alignas(64) atomic_int n_busy;
    _Alignas(64) atomic_int n_asleep;
};

typedef struct worker_start {
    bench_pool *pool;
    int32_t index;
} worker_start;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Time that the calling thread has run. */
static double own_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#else
    __asm__ volatile("" ::: "memory");
#endif
}

/* Binds the calling thread to the index-th CPU out of `allowed`. */
static void bind_to(const cpu_set_t *allowed, int32_t index)
{
    int32_t n = CPU_COUNT(allowed), skip = n > 0 ? index % n : 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, allowed) && skip-- == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
    }
}

static cpu_set_t process_cpus; /* as they were before anything was bound */
static pthread_once_t process_cpus_once = PTHREAD_ONCE_INIT;

static void remember_cpus(void)
{
    if (sched_getaffinity(0, sizeof process_cpus, &process_cpus) != 0) {
        CPU_ZERO(&process_cpus);
    }
}

void bench_pool_bind(bool bound)
{
    pthread_once(&process_cpus_once, remember_cpus);
    if (bound) {
        bind_to(&process_cpus, 0);
    } else if (CPU_COUNT(&process_cpus) > 0) {
        sched_setaffinity(0, sizeof process_cpus, &process_cpus);
    }
}

static void take_tasks(bench_pool *pool)
{
    for (int64_t i; (i = atomic_fetch_add(&pool->next, 1)) < pool->n_task;) {
        pool->task(pool->data, i);
    }
}

/* Waits for a round after `seen`: awake at first, then asleep. */
static unsigned next_round(bench_pool *pool, unsigned seen)
{
    double since = now();
    for (int spin = 0;; spin++) {
        unsigned round = atomic_load_explicit(&pool->round, memory_order_acquire);
        if (round != seen) {
            return round;
        }
        relax();
        if (spin % 64 == 63 && now() - since > SPIN_SECONDS) {
            break;
        }
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->n_asleep, 1);
    unsigned round;
    while ((round = atomic_load(&pool->round)) == seen) {
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    atomic_fetch_sub(&pool->n_asleep, 1);
    pthread_mutex_unlock(&pool->lock);
    return round;
}

static void *work(void *argument)
{
    worker_start start = *(worker_start *)argument;
    free(argument);
    bench_pool *pool = start.pool;
    bind_to(&process_cpus, start.index);
    for (unsigned round = 0;;) {
        round = next_round(pool, round);
        if (pool->stop) {
            return NULL;
        }
        double begin = now(), own = own_time(), late = begin - pool->announced - WAKE_SECONDS;
        take_tasks(pool);
        pool->line[start.index].lost += (now() - begin) - (own_time() - own) + (late > 0 ? late : 0);
        atomic_fetch_sub_explicit(&pool->n_busy, 1, memory_order_release);
    }
}

static void announce(bench_pool *pool)
{
    pthread_mutex_lock(&pool->lock); /* a worker on its way to sleep has either seen this round or gets the signal */
    atomic_fetch_add_explicit(&pool->round, 1, memory_order_release);
    if (atomic_load(&pool->n_asleep) > 0) {
        pthread_cond_broadcast(&pool->wake);
    }
    pthread_mutex_unlock(&pool->lock);
}

bench_pool *bench_pool_new(int32_t n_thread)
{
    pthread_once(&process_cpus_once, remember_cpus);
    bench_pool *pool = aligned_alloc(64, sizeof *pool);
    if (pool == NULL) {
        return NULL;
    }
    memset(pool, 0, sizeof *pool);
    pool->n_thread = n_thread;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->thread = calloc((size_t)n_thread, sizeof *pool->thread);
    pool->line = aligned_alloc(64, (size_t)n_thread * sizeof *pool->line);
    bool good = pool->thread != NULL && pool->line != NULL;
    if (good) {
        memset(pool->line, 0, (size_t)n_thread * sizeof *pool->line);
    }
    for (int32_t i = 1; good && i < n_thread; i++) {
        worker_start *start = malloc(sizeof *start);
        if (start == NULL) {
            break;
        }
        *start = (worker_start){pool, i};
        if (pthread_create(&pool->thread[i], NULL, work, start) != 0) {
            free(start);
            break;
        }
        pool->n_started++;
    }
    if (!good || pool->n_started != n_thread - 1) {
        bench_pool_free(pool);
        return NULL;
    }
    return pool;
}

void bench_pool_free(bench_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pool->stop = true;
    announce(pool);
    for (int32_t i = 1; i <= pool->n_started; i++) {
        pthread_join(pool->thread[i], NULL);
    }
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->line);
    free(pool->thread);
    free(pool);
}

int32_t bench_pool_size(const bench_pool *pool)
{
    return pool->n_thread;
}

void bench_pool_run(bench_pool *pool, int64_t n_task, mla_task task, void *data)
{
    if (pool->n_thread == 1 || n_task <= 1) {
        for (int64_t i = 0; i < n_task; i++) {
            task(data, i);
        }
        return;
    }
    pool->task = task;
    pool->data = data;
    pool->n_task = n_task;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->n_busy, pool->n_thread - 1);
    pool->announced = now();
    announce(pool);
    take_tasks(pool);
    while (atomic_load_explicit(&pool->n_busy, memory_order_acquire) > 0) {
        relax();
    }
}

void bench_pool_quiet(bench_pool *pool)
{
    while (atomic_load(&pool->n_asleep) < pool->n_thread - 1) {
        struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
    }
}

double bench_pool_lost(bench_pool *pool)
{
    double most = 0;
    for (int32_t i = 1; i < pool->n_thread; i++) {
        most = pool->line[i].lost > most ? pool->line[i].lost : most;
        pool->line[i].lost = 0;
    }
    return most;
}

static void lend(void *context, int64_t n_task, mla_task task, void *data)
{
    bench_pool_run(context, n_task, task, data);
}

mla_executor bench_pool_executor(bench_pool *pool)
{
    return (mla_executor){.parallel_for = lend, .context = pool, .n_worker = pool->n_thread};
}
