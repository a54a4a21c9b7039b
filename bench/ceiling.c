/*
 * ceiling.c - see ceiling.h.
 */
#include "ceiling.h"

#include <string.h>
#include <time.h>

#include "machine.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What any compiler makes of multiply and add with the vectors of the baseline. */
static double fma_baseline(int64_t rounds)
{
    enum { LANES = 64 };
    float sum[LANES] = {0};
    float factor = 1, addend = 0;
    for (int64_t r = 0; r < rounds; r++) {
        __asm__ volatile("" : "+m"(factor), "+m"(addend)); /* may have changed: no round can be left out */
        for (int i = 0; i < LANES; i++) {
            sum[i] = sum[i] * factor + addend;
        }
    }
    __asm__ volatile("" : : "m"(sum));
    return 2 * LANES * (double)rounds;
}

static void read_baseline(const void *data, size_t bytes)
{
    const uint64_t *at = data, *end = at + bytes / 64 * 8;
    uint64_t any[8] = {0};
    for (; at < end; at += 8) {
        for (int i = 0; i < 8; i++) {
            any[i] |= at[i];
        }
    }
    __asm__ volatile("" : : "m"(any));
}

typedef double (*fma_loop)(int64_t rounds);

static fma_loop choose(const char *isa, const char **name)
{
#if defined(__x86_64__)
    const machine *m = machine_get();
    bool wide = strncmp(isa, "avx512", 6) == 0 || strncmp(isa, "amx", 3) == 0;
    if (wide && m->avx512) {
        *name = "512-bit FMA";
        return ceiling_fma_avx512;
    }
    if ((wide || strncmp(isa, "avx", 3) == 0) && m->avx2) {
        *name = "256-bit FMA";
        return ceiling_fma_avx2;
    }
#elif defined(__aarch64__)
    if (strncmp(isa, "neon", 4) == 0) {
        *name = "128-bit FMA";
        return ceiling_fma_neon;
    }
#endif
    (void)isa;
    *name = "multiply-add of the baseline";
    return fma_baseline;
}

const char *ceiling_name(const char *isa)
{
    const char *name;
    choose(isa, &name);
    return name;
}

typedef struct fma_job {
    fma_loop loop;
    int64_t rounds;
    double flops; /* of one task */
} fma_job;

static void fma_task(void *data, int64_t index)
{
    fma_job *job = data;
    double flops = job->loop(job->rounds);
    if (index == 0) {
        job->flops = flops;
    }
}

double ceiling_flops(bench_pool *pool, const char *isa, double seconds)
{
    const char *name;
    fma_job job = {.loop = choose(isa, &name), .rounds = 2000};
    int32_t n = bench_pool_size(pool);
    double start = now();
    job.loop(job.rounds);
    double once = now() - start;
    job.rounds = (int64_t)((double)job.rounds * seconds / (once > 1e-7 ? once : 1e-7)) + 1;
    start = now();
    bench_pool_run(pool, n, fma_task, &job);
    return job.flops * n / (now() - start) * 1e-9;
}

typedef void (*read_loop)(const void *data, size_t bytes);

typedef struct read_job {
    read_loop loop;
    const char *data;
    size_t bytes, part;
} read_job;

static void read_task(void *data, int64_t index)
{
    const read_job *job = data;
    size_t begin = (size_t)index * job->part;
    size_t end = begin + job->part < job->bytes ? begin + job->part : job->bytes;
    if (begin < end) {
        job->loop(job->data + begin, end - begin);
    }
}

double ceiling_read(bench_pool *pool, const void *data, size_t bytes)
{
    size_t n = (size_t)bench_pool_size(pool);
    read_job job = {.loop = read_baseline, .data = data, .bytes = bytes, .part = (bytes / n / 512 + 1) * 512};
#if defined(__x86_64__)
    if (machine_get()->avx2) {
        job.loop = ceiling_read_avx2;
    }
#elif defined(__aarch64__)
    job.loop = ceiling_read_neon;
#endif
    double start = now();
    bench_pool_run(pool, (int64_t)n, read_task, &job);
    return (double)bytes / (now() - start) * 1e-9;
}
