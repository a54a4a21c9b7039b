/*
 * bench_gpu.c - decode steps on the first GPU, as a C program has them: calls queued on a stream, one behind the other.
 *
 * The time of a call is that of many, from an idle stream to one that is idle again, so that what the host does shows only
 * where it takes longer than the GPU. Calls take turns over several copies of the cache, together larger than any GPU's
 * caches. Before and after each sample a part of them is copied within the GPU's memory: what that moves, read and
 * written, is the ceiling for what a call must move at least, its key rows, queries and outputs.
 */
#include <math.h>
#include <stdio.h>

#include "bench.h"
#include "cli.h"
#include "machine.h"
#include "mla/mla_gpu.h"

#define GPU 0
#define COPIES_BYTES 768e6 /* of keys in turn: several times the L2 cache of any GPU */
#define MAX_COPY 64        /* of a cache that is small, which then fits into it */
#define COPY_BYTES ((size_t)256 << 20)
#define SAMPLE_SECONDS 20e-3

typedef struct gpu_run {
    paged_case host;
    int64_t n_copy, next_copy;
    void *q, *cache, *page_table, *length, *o, *lse, *workspace, *stream;
    mla_plan *plan;
    mla_plan_info info;
} gpu_run;

static mla_status to_gpu(const void *from, size_t bytes, void **to)
{
    mla_status status = mla_gpu_allocate(GPU, bytes, to);
    return status == MLA_STATUS_OK && from != NULL ? mla_gpu_copy(GPU, *to, from, bytes, NULL) : status;
}

static size_t row_bytes(const paged_shape *s, int64_t d)
{
    return (size_t)(s->n_seq * s->n_q * s->n_head * d) * mla_dtype_size(s->dtype);
}

static void place_on_gpu(mla_tensor *t, void *data)
{
    t->data = data;
    t->device = (mla_device){MLA_DEVICE_CUDA, GPU};
}

/* The step over one copy of the cache, in device memory. */
static mla_problem problem_of(const gpu_run *run, int64_t copy)
{
    mla_problem p = paged_case_problem(&run->host, 0, run->host.shape.dtype);
    place_on_gpu(&p.q, run->q);
    place_on_gpu(&p.segment[0].k, (char *)run->cache + (size_t)copy * run->host.copy_bytes);
    place_on_gpu(&p.segment[0].page_table, run->page_table);
    place_on_gpu(&p.segment[0].length, run->length);
    place_on_gpu(&p.o, run->o);
    place_on_gpu(&p.lse, run->lse);
    return p;
}

static mla_status copy_cache(const gpu_run *run)
{
    const size_t bytes = run->host.copy_bytes;
    mla_status status = mla_gpu_copy(GPU, run->cache, run->host.cache, bytes, NULL);
    for (int64_t i = 1; status == MLA_STATUS_OK && i < run->n_copy; i++) {
        status = mla_gpu_copy(GPU, (char *)run->cache + (size_t)i * bytes, run->cache, bytes, NULL);
    }
    return status == MLA_STATUS_OK ? mla_gpu_synchronize(GPU, NULL) : status;
}

static mla_status open_run(gpu_run *run)
{
    const paged_shape *s = &run->host.shape;
    const size_t table = (size_t)(s->n_seq * run->host.max_page) * sizeof(int32_t);
    const double copies = ceil(COPIES_BYTES / (double)run->host.copy_bytes);
    run->n_copy = copies < 2 ? 2 : copies > MAX_COPY ? MAX_COPY : (int64_t)copies;
    struct {
        const void *from;
        size_t bytes;
        void **to;
    } all[] = {{run->host.q, row_bytes(s, s->d_k), &run->q},
               {NULL, (size_t)run->n_copy * run->host.copy_bytes, &run->cache},
               {run->host.page_table, table, &run->page_table},
               {run->host.length, (size_t)s->n_seq * sizeof(int32_t), &run->length},
               {NULL, row_bytes(s, s->d_v), &run->o},
               {NULL, (size_t)(s->n_seq * s->n_q * s->n_head) * sizeof(float), &run->lse}};
    mla_status status = mla_gpu_stream_create(GPU, &run->stream);
    for (size_t i = 0; status == MLA_STATUS_OK && i < sizeof all / sizeof all[0]; i++) {
        status = to_gpu(all[i].from, all[i].bytes, all[i].to);
    }
    status = status == MLA_STATUS_OK ? copy_cache(run) : status;
    if (status == MLA_STATUS_OK) {
        mla_problem p = problem_of(run, 0);
        status = mla_plan_build(&p, NULL, &run->plan);
    }
    if (status == MLA_STATUS_OK) {
        mla_plan_describe(run->plan, &run->info);
        status = run->info.workspace_bytes > 0 ? mla_gpu_allocate(GPU, run->info.workspace_bytes, &run->workspace)
                                               : MLA_STATUS_OK;
    }
    return status;
}

static void close_run(gpu_run *run)
{
    void *all[] = {run->q, run->cache, run->page_table, run->length, run->o, run->lse, run->workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        (void)mla_gpu_free(GPU, all[i]);
    }
    if (run->stream != NULL) {
        (void)mla_gpu_stream_destroy(GPU, run->stream);
    }
    mla_plan_free(run->plan);
    paged_case_release(&run->host);
}

/* Seconds of a call, of n of them. */
static mla_status time_calls(gpu_run *run, int64_t n, double *seconds)
{
    mla_status status = MLA_STATUS_OK;
    double begin = cli_now();
    for (int64_t i = 0; status == MLA_STATUS_OK && i < n; i++) {
        mla_problem p = problem_of(run, run->next_copy);
        run->next_copy = (run->next_copy + 1) % run->n_copy;
        status = mla_run(run->plan, &p, run->workspace, run->info.workspace_bytes, run->stream);
    }
    status = status == MLA_STATUS_OK ? mla_gpu_synchronize(GPU, run->stream) : status;
    *seconds = (cli_now() - begin) / (double)n;
    return status;
}

/* Bytes of the ceiling's copy: half of the copies of the cache onto the other half, where there is so much. */
static size_t copied_bytes(const gpu_run *run)
{
    const size_t half = (size_t)(run->n_copy / 2) * run->host.copy_bytes;
    return half < COPY_BYTES ? half : COPY_BYTES;
}

/* GB/s of n copies within the GPU's memory, read and written. The copies of the cache are alike, so nothing changes. */
static mla_status time_copy(gpu_run *run, int64_t n, double *rate)
{
    char *to = (char *)run->cache + (size_t)(run->n_copy / 2) * run->host.copy_bytes;
    mla_status status = MLA_STATUS_OK;
    double begin = cli_now();
    for (int64_t i = 0; status == MLA_STATUS_OK && i < n; i++) {
        status = mla_gpu_copy(GPU, to, run->cache, copied_bytes(run), run->stream);
    }
    status = status == MLA_STATUS_OK ? mla_gpu_synchronize(GPU, run->stream) : status;
    *rate = 2e-9 * (double)copied_bytes(run) * (double)n / (cli_now() - begin);
    return status;
}

/* The first call's result, in host memory, against the oracle on some heads. */
static mla_status check_result(gpu_run *run, bench_result *result)
{
    const paged_shape *s = &run->host.shape;
    mla_problem device = problem_of(run, 0), host = paged_case_problem(&run->host, 0, s->dtype);
    mla_status status = mla_run(run->plan, &device, run->workspace, run->info.workspace_bytes, run->stream);
    status =
        status == MLA_STATUS_OK ? mla_gpu_copy(GPU, host.o.data, run->o, row_bytes(s, s->d_v), run->stream) : status;
    status = status == MLA_STATUS_OK
                 ? mla_gpu_copy(GPU, host.lse.data, run->lse, (size_t)(s->n_seq * s->n_q * s->n_head) * sizeof(float),
                                run->stream)
                 : status;
    status = status == MLA_STATUS_OK ? mla_gpu_synchronize(GPU, run->stream) : status;
    if (status != MLA_STATUS_OK) {
        return status;
    }
    mla_problem some = paged_case_sample(&host, bench_head_stride(s));
    return bench_check_result(&some, run->info.arithmetic, result);
}

/* How many, each of `seconds`, make a sample. */
static int64_t repeats_for(double seconds)
{
    const double n = SAMPLE_SECONDS / seconds;
    return n < 1 ? 1 : n > 10000 ? 10000 : (int64_t)n;
}

static mla_status take_samples(gpu_run *run, const bench_settings *settings, bench_result *result)
{
    bench_raw *raw = &result->raw;
    double once = 1, before = 1, after, share[BENCH_MAX_SAMPLE];
    mla_status status = time_copy(run, 1, &before);
    for (int i = 0; status == MLA_STATUS_OK && i < 2; i++) { /* the first one warms up */
        status = time_calls(run, run->n_copy, &once);
    }
    const int64_t repeat = repeats_for(once), copies = repeats_for(2e-9 * (double)copied_bytes(run) / before);
    const double begin = cli_now();
    status = status == MLA_STATUS_OK ? time_copy(run, copies, &before) : status;
    for (; status == MLA_STATUS_OK && raw->n < settings->n_sample; raw->n++) {
        if (raw->n >= 3 && cli_now() - begin > settings->budget) {
            break;
        }
        status = time_calls(run, repeat, &raw->seconds[raw->n]);
        status = status == MLA_STATUS_OK ? time_copy(run, copies, &after) : status;
        raw->good[raw->n] = true;
        raw->read[raw->n] = (before + after) / 2;
        share[raw->n] = result->bytes / raw->seconds[raw->n] * 1e-9 / raw->read[raw->n];
        before = after;
        settings->progress((double)(raw->n + 1) / settings->n_sample);
    }
    if (status == MLA_STATUS_OK) {
        result->n_sample = raw->n;
        result->seconds = bench_spread_of(raw->seconds, raw->good, raw->n);
        result->read = bench_spread_of(raw->read, raw->good, raw->n);
        result->of_read = bench_spread_of(share, raw->good, raw->n);
    }
    return status;
}

int bench_measure_gpu(const bench_case *c, const bench_settings *settings, bench_result *result,
                      void (*done)(const bench_result *result))
{
    gpu_run run = {0};
    const double bytes = paged_case_bytes(&c->shape, 1);
    if (bytes > 0.8 * (double)machine_get()->available_bytes) {
        return cli_fail("the case needs %.1f GB of host memory and %.1f are free", bytes * 1e-9,
                        (double)machine_get()->available_bytes * 1e-9);
    }
    if (!paged_case_make(&c->shape, 1, 1, &run.host)) {
        return cli_fail("not enough memory for a case of %.1f GB", bytes * 1e-9);
    }
    const paged_shape *s = &c->shape;
    *result = (bench_result){.what = c,
                             .flops = paged_case_flops(&run.host),
                             .bytes = paged_case_key_bytes(&run.host) + (double)row_bytes(s, s->d_k + s->d_v)};
    bench_case_name(c, result->name, sizeof result->name);
    mla_status status = open_run(&run);
    status = status == MLA_STATUS_OK ? check_result(&run, result) : status;
    status = status == MLA_STATUS_OK ? take_samples(&run, settings, result) : status;
    result->n_copy = run.n_copy;
    result->workspace_bytes = (int64_t)run.info.workspace_bytes;
    snprintf(result->kernel, sizeof result->kernel, "%s", run.info.isa);
    close_run(&run);
    if (status != MLA_STATUS_OK) {
        return cli_fail_status(result->name, status);
    }
    done(result);
    return CLI_OK;
}
