/*
 * bench.h - the benchmark: which shapes, how they are measured, how they are shown.
 *
 * Absolute times on a shared machine differ by tens of per cent from minute to minute. So nothing here is compared
 * across time: each sample of ours stands between two measurements of the machine's ceiling and beside one sample of
 * each rival, a few milliseconds apart, on the same threads; ratios are formed inside an iteration, and their median is
 * reported.
 */
#ifndef MLA_BENCH_H
#define MLA_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "ascend_case.h"
#include "paged_case.h"
#include "rival.h"

typedef enum bench_kind {
    BENCH_SPEED = 0, /* beside ceilings and rivals, for every thread count */
    BENCH_FORMAT,    /* a format of Ascend's: time against that of plain bf16 keys, as many and as wide */
    BENCH_SCALING,   /* one thread against more */
    BENCH_EXECUTOR,  /* the library's own OpenMP threads against as many that the host lends */
    BENCH_GROWTH,    /* time per key against that of 4096 keys */
    BENCH_GPU        /* on the first GPU, beside copies within its memory; apart from all others */
} bench_kind;

typedef struct bench_case {
    bench_kind kind;
    paged_shape shape;
    ascend_kind ascend; /* stored like that; the shape's dtype and page size are then those of the plain keys */
    bool from_memory;   /* rotate copies of the cache, so that keys come from DRAM */
    bool compare;       /* worth a comparison with rivals */
    bool quick;         /* part of --quick */
    bool most_threads_only;
} bench_case;

/* The grid, in the order it is run. */
extern const bench_case bench_grid[];
extern const int32_t bench_grid_size;

/* "speed" */
const char *bench_kind_name(bench_kind kind);

/* "b1 h128 s4096 576/512 bf16" */
void bench_case_name(const bench_case *c, char *name, size_t size);

typedef struct bench_spread {
    double median, low, high; /* quartiles */
} bench_spread;

#define BENCH_MAX_RIVAL 3
#define BENCH_MAX_SAMPLE 64
#define BENCH_OWN_CORES 0.85 /* n threads on cores of their own reach at least this much of n times one thread's peak */

typedef struct bench_rival_result {
    bool measured;
    int64_t block;
    bench_spread seconds, ratio;     /* ratio: rival's time / ours */
    double difference;               /* normwise, of fp32 outputs */
    double sample[BENCH_MAX_SAMPLE]; /* seconds */
} bench_rival_result;

/* Every iteration as it was measured, those that do not count too. */
typedef struct bench_raw {
    int32_t n;
    bool good[BENCH_MAX_SAMPLE]; /* the threads had a core each */
    double seconds[BENCH_MAX_SAMPLE];
    double peak[BENCH_MAX_SAMPLE], read[BENCH_MAX_SAMPLE]; /* SPEED: GFLOP/s, GB/s around it */
    double ratio[BENCH_MAX_SAMPLE];                        /* of the other kinds */
} bench_raw;

typedef struct bench_result {
    const bench_case *what;
    char name[96];
    int32_t n_thread;
    int32_t n_sample;    /* iterations that count */
    int32_t n_discarded; /* the ones in which the threads did not have a core each */
    bool disturbed;      /* all were like that; they were kept, but ratios between neighbours mean nothing then */
    double own_cores;    /* best peak of all threads / (n times that of one) */
    bool correct;
    char fault[256];     /* the sentence, when not correct */
    double error;        /* normwise, fp32 output against the oracle, on a sample of heads */
    double flops, bytes; /* of one call */
    int64_t n_copy;
    int64_t workspace_bytes;
    bench_spread seconds;
    bench_spread of_peak, peak; /* fraction; GFLOP/s */
    bench_spread of_read, read; /* fraction; GB/s; only from memory; GPU: of copying, read and written */
    char kernel[64];            /* GPU: what computes it */
    bench_spread
        ratio; /* FORMAT: our time / that of plain bf16 keys; SCALING: one thread's time / ours; EXECUTOR: the time
                           on OpenMP's threads / that on lent ones; GROWTH: our
                           time per key / that of 4096 keys */
    bench_rival_result rival[BENCH_MAX_RIVAL];
    bench_raw raw;
} bench_result;

typedef struct bench_settings {
    const char *gpu; /* its name; NULL: the CPU is measured */
    const char *isa;
    char date[32];                     /* at the start, UTC */
    double load;                       /* at the start, < 0: unknown */
    rival *rival[BENCH_MAX_RIVAL];     /* NULL: not there */
    int32_t n_sample;                  /* wanted */
    double budget;                     /* seconds per measurement, after which fewer samples do */
    void (*progress)(double fraction); /* of one measurement */
} bench_settings;

/* Which of these thread counts (ascending) a case is measured with: indices [*first, *last). None for scaling and
 * lent threads where one thread is all there is. */
void bench_case_threads(const bench_case *c, const int32_t *n_thread, int32_t n_count, int32_t *first, int32_t *last);

/*
 * Measures a case on each of the thread counts, one result each; calls `done` after every one. CLI_OK, or CLI_USAGE
 * when it cannot be run (already reported).
 */
int bench_measure(const bench_case *c, const int32_t *n_thread, int32_t n_count, const bench_settings *settings,
                  bench_result *result, void (*done)(const bench_result *result));

/* The same for a case of kind GPU, which takes no threads. */
int bench_measure_gpu(const bench_case *c, const bench_settings *settings, bench_result *result,
                      void (*done)(const bench_result *result));

/* Quartiles over the n values that are good. */
bench_spread bench_spread_of(const double *value, const bool *good, int32_t n);

/* Every which head the oracle looks at: two of them, of long cases one. */
int64_t bench_head_stride(const paged_shape *shape);

/* Holds a computed sample of heads against the oracle, into result's correct, error and fault; what the oracle returns. */
mla_status bench_check_result(const mla_problem *some, mla_arithmetic arithmetic, bench_result *result);

/* ---- report ------------------------------------------------------------------------------------------------------ */

void bench_print_header(bench_kind kind, const bench_settings *settings);
void bench_print_row(const bench_result *result, const bench_settings *settings);

/* Writes everything as JSON; false with a sentence. command is the command line. */
bool bench_write_json(const char *path, const char *command, const bench_settings *settings, const bench_result *result,
                      int32_t n_result, char *error, size_t error_size);

#endif
