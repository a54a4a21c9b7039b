/*
 * bench_measure.c - paired samples; see bench.h.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "ceiling.h"
#include "cli.h"
#include "machine.h"
#include "stopwatch.h"
#include "verify.h"

#define CEILING_SECONDS 2e-3
#define OPENMP_SPINS_US 50000 /* OpenMP's threads spin for a while after their work */
#define SAMPLE_SECONDS 8e-3   /* a sample repeats short calls until it takes about this long */
#define MAX_CONTENDER (1 + BENCH_MAX_RIVAL)
#define ORACLE_KEYS 70000 /* up to here the oracle looks at two heads, beyond at one */
#define OWN_CORES BENCH_OWN_CORES
#define LOST_TIME 0.03        /* a thread with a core of its own waits for it no longer than this part of the time */
#define RIVAL_DIFFERENCE 1e-5 /* normwise: of fp32 throughout, with sums of thousands of terms */
#define RIVAL_ROUNDING 0x1p-8 /* what rounding probabilities to bf16 costs at most */

/* One of those who are timed: ours or a rival. */
typedef struct contender {
    rival *rival; /* NULL: ours */
    int64_t repeat;
    double seconds[BENCH_MAX_SAMPLE];                      /* per call */
    double peak[BENCH_MAX_SAMPLE], read[BENCH_MAX_SAMPLE]; /* around the sample */
} contender;

/* Everything about one case on one pool. */
typedef struct bench_run {
    const bench_settings *settings;
    paged_case data;    /* plain keys */
    ascend_case ascend; /* or, unless its kind is ASCEND_NONE, this */
    bench_pool *pool;
    bool on_openmp;
    mla_plan *plan;
    mla_plan_info info;
    void *workspace;
    rival_task task;
    int64_t n_copy, next_copy; /* of the cache */
} bench_run;

/* ---- setting up -------------------------------------------------------------------------------------------------- */

static int64_t copies_for(const bench_case *c)
{
    if (!c->from_memory) {
        return 1;
    }
    const machine *m = machine_get();
    double wanted = 4.0 * (double)m->l3_bytes > 64e6 ? 4.0 * (double)m->l3_bytes : 64e6;
    double one = paged_case_bytes(&c->shape, 1);
    return (int64_t)ceil(wanted / one) + 1;
}

/* The problem over one copy of the cache; o in o_dtype. */
static mla_problem problem_of(const bench_run *run, int64_t copy, mla_dtype o_dtype)
{
    if (run->ascend.kind == ASCEND_NONE) {
        return paged_case_problem(&run->data, copy, o_dtype);
    }
    mla_problem problem = run->ascend.problem;
    if (o_dtype != problem.o.dtype) {
        problem.o = mla_tensor_make(run->ascend.wide_o, o_dtype, problem.o.ndim, problem.o.dim);
    }
    return problem;
}

/* The dtype that o has when it is timed. */
static mla_dtype o_dtype_of(const bench_run *run)
{
    return run->ascend.kind == ASCEND_NONE ? run->data.shape.dtype : run->ascend.problem.o.dtype;
}

static int open_run(const bench_case *c, int64_t n_copy, const bench_settings *settings, bench_run *run)
{
    *run = (bench_run){.settings = settings, .n_copy = n_copy};
    bool plain = c->ascend == ASCEND_NONE;
    double bytes = plain ? paged_case_bytes(&c->shape, n_copy + 1) /* the check needs one more copy */
                         : ascend_case_bytes(c->ascend, &c->shape);
    if (bytes > 0.8 * (double)machine_get()->available_bytes) {
        return cli_fail("the case needs %.1f GB of memory and %.1f are free", bytes * 1e-9,
                        (double)machine_get()->available_bytes * 1e-9);
    }
    if (!plain) {
        return ascend_case_make(c->ascend, &c->shape, 1, &run->ascend) ? CLI_OK : cli_fail("%s", mla_last_error());
    }
    if (!paged_case_make(&c->shape, n_copy, 1, &run->data)) {
        return cli_fail("not enough memory for a case of %.1f GB", bytes * 1e-9);
    }
    const paged_shape *s = &run->data.shape;
    run->task = (rival_task){.n_seq = s->n_seq,
                             .n_q = s->n_q,
                             .n_head = s->n_head,
                             .d_k = s->d_k,
                             .d_v = s->d_v,
                             .page_size = s->page_size,
                             .max_page = run->data.max_page,
                             .causal = s->causal,
                             .f16 = s->dtype == MLA_DTYPE_F16,
                             .scale = DEEPSEEK_V3_SCALE,
                             .q = run->data.q,
                             .cache = (const uint16_t *)run->data.cache,
                             .page_table = run->data.page_table,
                             .length = run->data.length};
    return CLI_OK;
}

static void drop_plan(bench_run *run)
{
    mla_plan_free(run->plan);
    free(run->workspace);
    run->plan = NULL;
    run->workspace = NULL;
}

static void close_run(bench_run *run)
{
    drop_plan(run);
    paged_case_release(&run->data);
    ascend_case_release(&run->ascend);
    free(run->task.o);
    *run = (bench_run){0};
}

/* Plans for a pool: for its threads, or for as many of OpenMP's. */
static int use_pool(bench_run *run, bench_pool *pool)
{
    drop_plan(run);
    run->pool = pool;
    mla_problem problem = problem_of(run, 0, o_dtype_of(run));
    mla_executor executor = bench_pool_executor(pool);
    mla_plan_options options = {.backend = MLA_BACKEND_CPU,
                                .n_thread = bench_pool_size(pool),
                                .executor = run->on_openmp ? NULL : &executor};
    mla_status status = mla_plan_build(&problem, &options, &run->plan);
    if (status != MLA_STATUS_OK) {
        return cli_fail_status("planning", status);
    }
    mla_plan_describe(run->plan, &run->info);
    run->workspace = cli_alloc(run->info.workspace_bytes, 1);
    return run->workspace != NULL ? CLI_OK : cli_fail("not enough memory for a workspace");
}

/* ---- right or wrong ---------------------------------------------------------------------------------------------- */

static mla_status run_ours(bench_run *run, int64_t copy, mla_dtype o_dtype)
{
    mla_problem problem = problem_of(run, copy, o_dtype);
    return mla_run(run->plan, &problem, run->workspace, run->info.workspace_bytes, NULL);
}

/* Our result in fp32, left in the problem's o, in the arithmetic that is timed. */
static int compute_ours(bench_run *run, mla_problem *problem)
{
    *problem = problem_of(run, 0, MLA_DTYPE_F32);
    problem->arithmetic = run->info.arithmetic;
    mla_executor executor = bench_pool_executor(run->pool);
    mla_status status = mla_attention(problem, &(mla_plan_options){.executor = &executor});
    return status == MLA_STATUS_OK ? CLI_OK : cli_fail_status("the case", status);
}

int64_t bench_head_stride(const paged_shape *s)
{
    int64_t sample = (double)(s->n_seq * s->n_q) * (double)s->n_key > ORACLE_KEYS ? 1 : 2;
    return s->n_head > sample ? s->n_head / sample : 1;
}

mla_status bench_check_result(const mla_problem *some, mla_arithmetic arithmetic, bench_result *result)
{
    verify_truth truth;
    verify_report report;
    mla_status status = verify_prepare(some, arithmetic, &truth);
    if (status != MLA_STATUS_OK) {
        return status;
    }
    verify_compare(&truth, &some->o, &some->lse, false, &report);
    verify_release(&truth);
    result->correct = report.passed;
    result->error = report.normwise;
    if (!report.passed) {
        snprintf(result->fault, sizeof result->fault, "%s", report.sentence);
    }
    return MLA_STATUS_OK;
}

/* A sample of heads against the oracle. */
static int check_ours(bench_run *run, const mla_problem *problem, bench_result *result)
{
    int64_t stride = bench_head_stride(&result->what->shape);
    mla_problem some = run->ascend.kind == ASCEND_NONE ? paged_case_sample(problem, stride)
                                                       : ascend_case_sample(&run->ascend, problem, stride);
    mla_status status = bench_check_result(&some, run->info.arithmetic, result);
    if (status != MLA_STATUS_OK) {
        return cli_fail_status("the oracle", status);
    }
    usleep(OPENMP_SPINS_US); /* the oracle ran on OpenMP */
    return CLI_OK;
}

/* The rival's result against ours in data.o. */
static void check_rival(bench_run *run, rival *r, bench_rival_result *found, bench_result *result)
{
    int64_t n = run->data.shape.n_seq * run->data.shape.n_q * run->data.shape.n_head * run->data.shape.d_v;
    rival_run(r, run->pool, &run->task);
    double error = 0, norm = 0;
    const float *ours = run->data.o;
    for (int64_t i = 0; i < n; i++) {
        double difference = (double)run->task.o[i] - (double)ours[i];
        error += difference * difference;
        norm += (double)ours[i] * (double)ours[i];
    }
    found->difference = sqrt(error / norm);
    double allowed = RIVAL_DIFFERENCE + (rival_rounds(r) ? RIVAL_ROUNDING : 0) +
                     2 * result->error; /* ours on a sample, when it does not compute in fp32 */
    if (!(found->difference <= allowed)) {
        result->correct = false;
        snprintf(result->fault, sizeof result->fault, "differs from %s by %.2g normwise, more than %.0e", rival_name(r),
                 found->difference, allowed);
    }
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

static void call(bench_run *run, rival *r)
{
    int64_t copy = run->next_copy;
    run->next_copy = (copy + 1) % run->n_copy;
    if (r == NULL) {
        run_ours(run, copy, o_dtype_of(run));
    } else {
        run->task.cache = (const uint16_t *)(run->data.cache + (size_t)copy * run->data.copy_bytes);
        rival_run(r, run->pool, &run->task);
    }
}

/* Seconds per call. */
static double sample(bench_run *run, rival *r, int64_t repeat)
{
    double start = cli_now();
    for (int64_t i = 0; i < repeat; i++) {
        call(run, r);
    }
    return (cli_now() - start) / (double)repeat;
}

static int64_t repeats_for(bench_run *run, rival *r)
{
    double once = sample(run, r, 1);
    once = once < 0.1 ? sample(run, r, 1) : once; /* now that everything is warm */
    int64_t repeat = (int64_t)ceil(SAMPLE_SECONDS / once);
    return repeat < 1 ? 1 : repeat > 10000 ? 10000 : repeat;
}

/* The next copy of the cache, read as fast as it goes. */
static double read_ceiling(bench_run *run)
{
    int64_t copy = run->next_copy;
    run->next_copy = (copy + 1) % run->n_copy;
    return ceiling_read(run->pool, run->data.cache + (size_t)copy * run->data.copy_bytes, run->data.copy_bytes);
}

/* One thread's peak, on a pool of several. */
static double single_peak(const bench_run *run)
{
    bench_pool *alone = bench_pool_new(1);
    double peak = alone != NULL ? ceiling_flops(alone, run->settings->isa, CEILING_SECONDS) : 0;
    bench_pool_free(alone);
    return peak;
}

/*
 * Which iterations were quiet? Each thread must have been running whenever it had something to run; and together they must
 * reach a good part of the best peak that they reached in any iteration: two CPUs may be one core in disguise, for a while
 * (a hypervisor moves them) or always (hyperthreads). Where they always are, results say so, by what the best peak is of n
 * times one thread's.
 */
typedef struct quiet_watch {
    double wall, given; /* of the calling thread, at the start */
    double slept;       /* on purpose, meanwhile */
    double one;         /* one thread's peak */
} quiet_watch;

typedef struct quiet_record {
    int32_t n;
    bool ran[BENCH_MAX_SAMPLE];
    double lowest[BENCH_MAX_SAMPLE]; /* peak of all threads */
    double own[BENCH_MAX_SAMPLE];    /* as a part of n times one thread's */
} quiet_record;

static double given_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static quiet_watch start_watch(const bench_run *run)
{
    quiet_watch watch = {0};
    if (bench_pool_size(run->pool) > 1) {
        watch.one = single_peak(run);
    }
    bench_pool_lost(run->pool);
    watch.wall = cli_now();
    watch.given = given_time();
    return watch;
}

/* Records an iteration; returns how many of all so far were quiet, as good[] says. */
static int32_t note_quiet(quiet_record *record, const quiet_watch *watch, const bench_run *run, double lowest_peak,
                          bool *good)
{
    double wall = cli_now() - watch->wall - watch->slept, given = given_time() - watch->given, best = 0;
    int32_t n = bench_pool_size(run->pool), i = record->n++, n_good = 0;
    record->ran[i] = wall - given <= LOST_TIME * wall && bench_pool_lost(run->pool) <= LOST_TIME * wall;
    record->lowest[i] = lowest_peak;
    record->own[i] = n == 1 ? 1 : lowest_peak / (n * watch->one);
    for (int32_t j = 0; j <= i; j++) {
        best = record->lowest[j] > best ? record->lowest[j] : best;
    }
    for (int32_t j = 0; j <= i; j++) {
        good[j] = record->ran[j] && (n == 1 || record->lowest[j] >= OWN_CORES * best);
        n_good += good[j];
    }
    return n_good;
}

static double best_own(const quiet_record *record)
{
    double best = 0;
    for (int32_t i = 0; i < record->n; i++) {
        best = record->own[i] > best ? record->own[i] : best;
    }
    return best;
}

/* Waits until no thread that a sample of `run` was on spins beside the next one: workers of the pool are asked, OpenMP's
 * are given the time after which they sleep. */
static void fall_quiet(const bench_run *run, quiet_watch *watch)
{
    double start = cli_now();
    if (run->on_openmp) {
        usleep(OPENMP_SPINS_US);
    } else {
        bench_pool_quiet(run->pool);
    }
    watch->slept += cli_now() - start;
}

/*
 * Iterations of: ceiling, contender, ceiling, contender, ..., ceiling, in an order that turns with every iteration.
 * Returns how many were made; good[i] tells whether the threads had a core each during iteration i.
 */
static int32_t take_samples(bench_run *run, contender *who, int32_t n_who, bool reads, bool *good, double *own_cores)
{
    const bench_settings *settings = run->settings;
    int32_t n_good = 0, i = 0;
    quiet_record record = {0};
    double begin = cli_now();
    for (; i < BENCH_MAX_SAMPLE && n_good < settings->n_sample; i++) {
        double elapsed = cli_now() - begin;
        if (elapsed > settings->budget && (n_good >= 5 || elapsed > 3 * settings->budget) && i >= 3) {
            break;
        }
        quiet_watch watch = start_watch(run);
        double peak = ceiling_flops(run->pool, settings->isa, CEILING_SECONDS), lowest = peak;
        double read = reads ? read_ceiling(run) : 0;
        for (int32_t j = 0; j < n_who; j++) {
            contender *c = &who[(i + j) % n_who];
            c->seconds[i] = sample(run, c->rival, c->repeat);
            double read_after = reads ? read_ceiling(run) : 0;
            double peak_after = ceiling_flops(run->pool, settings->isa, CEILING_SECONDS);
            c->peak[i] = (peak + peak_after) / 2;
            c->read[i] = (read + read_after) / 2;
            lowest = peak_after < lowest ? peak_after : lowest;
            peak = peak_after;
            read = read_after;
        }
        n_good = note_quiet(&record, &watch, run, lowest, good);
        if (settings->progress != NULL) {
            settings->progress((double)n_good / settings->n_sample);
        }
    }
    *own_cores = best_own(&record);
    return i;
}

bench_spread bench_spread_of(const double *value, const bool *good, int32_t n)
{
    double kept[BENCH_MAX_SAMPLE];
    size_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (good[i]) {
            kept[count++] = value[i];
        }
    }
    return (bench_spread){stopwatch_quantile(kept, count, 0.5), stopwatch_quantile(kept, count, 0.25),
                          stopwatch_quantile(kept, count, 0.75)};
}

/* Counts what is good; when nothing is, everything is kept and the result says so. */
static void settle(bool *good, int32_t n, bench_result *result)
{
    int32_t n_good = 0;
    for (int32_t i = 0; i < n; i++) {
        n_good += good[i];
        result->raw.good[i] = good[i];
    }
    result->raw.n = n;
    result->disturbed = n_good == 0;
    for (int32_t i = 0; i < n && result->disturbed; i++) {
        good[i] = true;
    }
    result->n_sample = result->disturbed ? n : n_good;
    result->n_discarded = result->disturbed ? 0 : n - n_good;
}

static int measure_speed(bench_run *run, bench_result *result)
{
    const bench_settings *settings = run->settings;
    contender who[MAX_CONTENDER];
    int32_t slot[MAX_CONTENDER] = {0}, n_who = 1;
    bool good[BENCH_MAX_SAMPLE];
    memset(who, 0, sizeof who);
    for (int32_t i = 0; i < BENCH_MAX_RIVAL && result->what->compare; i++) {
        rival *r = settings->rival[i];
        if (r == NULL || (rival_rounds(r) && result->what->shape.dtype != MLA_DTYPE_BF16)) {
            continue;
        }
        if (!rival_prepare(r, run->pool, &run->task)) {
            return cli_fail("not enough memory for %s", rival_name(r));
        }
        result->rival[i].block = rival_block(r);
        check_rival(run, r, &result->rival[i], result);
        slot[n_who] = i;
        who[n_who++].rival = r;
    }
    for (int32_t i = 0; i < n_who; i++) {
        who[i].repeat = repeats_for(run, who[i].rival);
    }
    int32_t n = take_samples(run, who, n_who, result->what->from_memory, good, &result->own_cores);
    settle(good, n, result);

    memcpy(result->raw.seconds, who[0].seconds, sizeof result->raw.seconds);
    memcpy(result->raw.peak, who[0].peak, sizeof result->raw.peak);
    memcpy(result->raw.read, who[0].read, sizeof result->raw.read);

    double value[3][BENCH_MAX_SAMPLE];
    for (int32_t i = 0; i < n; i++) {
        value[0][i] = result->flops / who[0].seconds[i] * 1e-9 / who[0].peak[i];
        value[1][i] = result->bytes / who[0].seconds[i] * 1e-9 / who[0].read[i];
    }
    result->seconds = bench_spread_of(who[0].seconds, good, n);
    result->peak = bench_spread_of(who[0].peak, good, n);
    result->of_peak = bench_spread_of(value[0], good, n);
    if (result->what->from_memory) {
        result->read = bench_spread_of(who[0].read, good, n);
        result->of_read = bench_spread_of(value[1], good, n);
    }
    for (int32_t j = 1; j < n_who; j++) {
        bench_rival_result *found = &result->rival[slot[j]];
        for (int32_t i = 0; i < n; i++) {
            value[2][i] = who[j].seconds[i] / who[0].seconds[i];
        }
        found->measured = true;
        memcpy(found->sample, who[j].seconds, sizeof found->sample);
        found->seconds = bench_spread_of(who[j].seconds, good, n);
        found->ratio = bench_spread_of(value[2], good, n);
    }
    return CLI_OK;
}

/* Alternates between two ways: `base` and `run`. ratio[i] = base / run when `speedup`, else run / base, per call. */
static void alternate(bench_run *base, bench_run *run, double base_weight, double run_weight, bool speedup,
                      bench_result *result)
{
    const bench_settings *settings = run->settings;
    double *seconds = result->raw.seconds, *ratio = result->raw.ratio;
    bool good[BENCH_MAX_SAMPLE];
    int64_t base_repeat = repeats_for(base, NULL), repeat = repeats_for(run, NULL);
    quiet_record record = {0};
    double begin = cli_now();
    int32_t i = 0, n_good = 0;
    for (; i < BENCH_MAX_SAMPLE && n_good < settings->n_sample; i++) {
        double elapsed = cli_now() - begin;
        if (elapsed > settings->budget && (n_good >= 3 || elapsed > 3 * settings->budget) && i >= 3) {
            break;
        }
        quiet_watch watch = start_watch(run);
        double a, b, before = ceiling_flops(run->pool, settings->isa, CEILING_SECONDS);
        if (i % 2 == 0) {
            fall_quiet(run, &watch);
            a = sample(base, NULL, base_repeat);
            fall_quiet(base, &watch);
            b = sample(run, NULL, repeat);
        } else {
            b = sample(run, NULL, repeat);
            fall_quiet(run, &watch);
            a = sample(base, NULL, base_repeat);
            fall_quiet(base, &watch);
        }
        double after = ceiling_flops(run->pool, settings->isa, CEILING_SECONDS);
        a /= base_weight;
        seconds[i] = b;
        if (base->on_openmp) {
            fall_quiet(base, &watch);
        }
        b /= run_weight;
        ratio[i] = speedup ? a / b : b / a;
        n_good = note_quiet(&record, &watch, run, before < after ? before : after, good);
        if (settings->progress != NULL) {
            settings->progress((double)n_good / settings->n_sample);
        }
    }
    result->own_cores = best_own(&record);
    settle(good, i, result);
    result->seconds = bench_spread_of(seconds, good, i);
    result->ratio = bench_spread_of(ratio, good, i);
}

static int measure_scaling(bench_run *run, bench_result *result)
{
    bench_pool *alone = bench_pool_new(1);
    bench_run base = *run; /* the same data, another plan */
    base.plan = NULL;
    base.workspace = NULL;
    int code = alone != NULL ? use_pool(&base, alone) : cli_fail("not enough memory");
    if (code == CLI_OK) {
        alternate(&base, run, 1, 1, true, result);
    }
    drop_plan(&base);
    bench_pool_free(alone);
    return code;
}

static int measure_executor(bench_run *run, bench_result *result)
{
    bench_run base = *run; /* the same data, another plan */
    base.plan = NULL;
    base.workspace = NULL;
    base.on_openmp = true;
    int code = use_pool(&base, run->pool);
    if (code == CLI_OK) {
        alternate(&base, run, 1, 1, true, result);
    }
    drop_plan(&base);
    return code;
}

static int measure_growth(bench_run *run, bench_result *result)
{
    bench_case small = *result->what;
    small.shape.n_key = 4096;
    bench_run base;
    int code = open_run(&small, 1, run->settings, &base);
    code = code == CLI_OK ? use_pool(&base, run->pool) : code;
    if (code == CLI_OK) {
        alternate(&base, run, base.data.keys, run->data.keys, false, result);
    }
    close_run(&base);
    return code;
}

static int measure_format(bench_run *run, bench_result *result)
{
    bench_case plain = *result->what;
    plain.ascend = ASCEND_NONE;
    bench_run base;
    int code = open_run(&plain, 1, run->settings, &base);
    code = code == CLI_OK ? use_pool(&base, run->pool) : code;
    if (code == CLI_OK) {
        alternate(&base, run, 1, 1, false, result);
    }
    close_run(&base);
    return code;
}

void bench_case_threads(const bench_case *c, const int32_t *n_thread, int32_t n_count, int32_t *first, int32_t *last)
{
    if (c->kind == BENCH_GPU) {
        *first = 0;
        *last = 1;
        return;
    }
    bool several = c->kind == BENCH_SCALING || c->kind == BENCH_EXECUTOR;
    *first = c->most_threads_only ? n_count - 1 : several && n_thread[0] == 1 ? 1 : 0;
    /* growth: on one thread, because short requests cannot feed many */
    *last = c->kind == BENCH_GROWTH ? 1 : n_count;
}

/* One thread count; `checked` is a result of the same case to take the oracle's verdict from, or NULL. */
static int measure_on(bench_run *run, bench_pool *pool, const bench_result *checked, bench_result *result)
{
    mla_problem problem;
    int code = use_pool(run, pool);
    code = code == CLI_OK ? compute_ours(run, &problem) : code;
    if (code != CLI_OK) {
        return code;
    }
    result->workspace_bytes = (int64_t)run->info.workspace_bytes;
    if (checked != NULL) { /* the bits are the same for any number of threads */
        result->correct = checked->correct;
        result->error = checked->error;
        memcpy(result->fault, checked->fault, sizeof result->fault);
    } else {
        code = check_ours(run, &problem, result);
    }
    if (code == CLI_OK) {
        bench_pool_bind(true);
        code = result->what->kind == BENCH_SPEED      ? measure_speed(run, result)
               : result->what->kind == BENCH_FORMAT   ? measure_format(run, result)
               : result->what->kind == BENCH_SCALING  ? measure_scaling(run, result)
               : result->what->kind == BENCH_EXECUTOR ? measure_executor(run, result)
                                                      : measure_growth(run, result);
        bench_pool_bind(false);
    }
    return code;
}

static double flops_of(const bench_run *run)
{
    const paged_shape *s = &run->ascend.shape;
    double pairs = (double)s->n_seq * (double)s->n_key;
    return run->ascend.kind == ASCEND_NONE ? paged_case_flops(&run->data)
                                           : 2 * pairs * (double)s->n_head * (double)(s->d_k + s->d_v);
}

static double key_bytes_of(const bench_run *run)
{
    return run->ascend.kind == ASCEND_NONE ? paged_case_key_bytes(&run->data) : run->ascend.key_bytes;
}

int bench_measure(const bench_case *c, const int32_t *n_thread, int32_t n_count, const bench_settings *settings,
                  bench_result *result, void (*done)(const bench_result *result))
{
    bench_run run;
    int64_t n_copy = copies_for(c);
    int code = open_run(c, n_copy, settings, &run);
    if (code == CLI_OK && c->compare) {
        int64_t n = run.data.shape.n_seq * run.data.shape.n_q * run.data.shape.n_head * run.data.shape.d_v;
        run.task.o = cli_alloc((size_t)n, sizeof *run.task.o);
        code = run.task.o != NULL ? CLI_OK : cli_fail("not enough memory");
    }
    for (int32_t i = 0; code == CLI_OK && i < n_count; i++) {
        result[i] = (bench_result){.what = c,
                                   .n_thread = n_thread[i],
                                   .n_copy = n_copy,
                                   .flops = flops_of(&run),
                                   .bytes = key_bytes_of(&run)};
        bench_case_name(c, result[i].name, sizeof result[i].name);
        bench_pool *pool = bench_pool_new(n_thread[i]);
        code = pool != NULL ? measure_on(&run, pool, i > 0 ? &result[0] : NULL, &result[i])
                            : cli_fail("cannot start %d threads", (int)n_thread[i]);
        drop_plan(&run);
        bench_pool_free(pool);
        if (code == CLI_OK) {
            done(&result[i]);
        }
    }
    close_run(&run);
    return code;
}
