/*
 * compare_ggml.c - a decode step beside the flash attention of ggml, or of a fork that kept its interface, in one
 * process, in turn.
 *
 *     cmake --preset release -DMLA_GGML=/where/ggml/is/installed && cmake --build --preset release
 *     OMP_WAIT_POLICY=active OMP_PROC_BIND=true build/compare_ggml --peer 'ggml d99724f, AVX2' --threads 2 --json FILE
 *
 * Nothing of ggml is part of this repository: the program is built against the one that is installed. ggml gets what
 * programs on top of it give it for these models: queries in fp32, a contiguous fp16 cache of one row per token, values
 * as a view of its first columns, a mask of zeros, precision F32. Ours reads the same cache through pages of 64. Both
 * have planned before and run on OpenMP's threads. A sample is a few calls of one, then about as many milliseconds of the
 * other; ratios are formed inside a pair, and their median counts. Pairs during which the threads did not have a core each
 * are discarded: threads that wait actively use their cores all the time, so the process must have been given as much
 * time as all of them together. Errors are against the oracle, on two heads.
 *
 * OMP_NUM_THREADS and MLA_ISA act as ever; the peer's instruction set was chosen when it was built.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cjson/cJSON.h>
#include <ggml.h>
#if __has_include(<ggml-cpu.h>)
#include <ggml-cpu.h>
#define MAKE_PLAN(graph, n_thread) ggml_graph_plan(graph, n_thread, NULL)
#else /* before the CPU was a backend of its own */
#define MAKE_PLAN(graph, n_thread) ggml_graph_plan(graph, n_thread)
#endif

#include "cli.h"
#include "cli_number.h"
#include "machine.h"
#include "paged_case.h"
#include "stopwatch.h"

enum { D_K = 576, D_V = 512, PAGE = 64, MAX_SAMPLE = 64, MASK_ROWS = 64 /* ggml wants them padded */ };

#define SAMPLE_SECONDS 20e-3
#define BUDGET_SECONDS 12 /* for a shape, after which fewer pairs do, or disturbed ones */
#define LOST_TIME 0.03    /* of the time that all threads together ask for */

static const struct {
    int64_t n_head, n_key;
} grid[] = {{128, 4096}, {128, 16384}, {16, 4096}, {16, 16384}};

/* ---- the two ----------------------------------------------------------------------------------------------------- */

typedef struct peer {
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    struct ggml_tensor *out; /* f32 [n_head][512] */
    struct ggml_cplan plan;
    void *work;
} peer;

typedef struct ours {
    paged_case data;
    mla_problem problem; /* o in fp32, as ggml's */
    mla_plan *plan;
    void *workspace;
    size_t workspace_bytes;
} ours;

static bool open_ours(int64_t n_head, int64_t n_key, int32_t n_thread, ours *o)
{
    paged_shape shape = {.n_seq = 1,
                         .n_q = 1,
                         .n_head = n_head,
                         .d_k = D_K,
                         .d_v = D_V,
                         .page_size = PAGE,
                         .n_key = n_key,
                         .dtype = MLA_DTYPE_F16};
    *o = (ours){0};
    if (!paged_case_make(&shape, 1, 1, &o->data)) {
        return false;
    }
    for (int64_t i = 0; i < o->data.max_page; i++) {
        o->data.page_table[i] = (int32_t)i; /* so that ggml sees the same rows in the same order */
    }
    o->problem = paged_case_problem(&o->data, 0, MLA_DTYPE_F32);
    if (mla_plan_build(&o->problem, &(mla_plan_options){.n_thread = n_thread}, &o->plan) != MLA_STATUS_OK) {
        fprintf(stderr, "%s\n", mla_last_error());
        return false;
    }
    o->workspace_bytes = mla_plan_workspace_bytes(o->plan);
    o->workspace = cli_alloc(o->workspace_bytes, 1);
    return o->workspace != NULL;
}

static void close_ours(ours *o)
{
    mla_plan_free(o->plan);
    free(o->workspace);
    paged_case_release(&o->data);
}

static bool open_peer(const ours *o, int32_t n_thread, peer *p)
{
    int64_t n_head = o->data.shape.n_head, n_key = o->data.shape.n_key, n_q = n_head * D_K;
    size_t bytes = (size_t)(n_key * D_K + MASK_ROWS * n_key) * 2 + (size_t)n_head * (D_K + D_V) * 4 + (16u << 20);
    *p = (peer){.context = ggml_init((struct ggml_init_params){.mem_size = bytes})};
    if (p->context == NULL) {
        return false;
    }
    struct ggml_tensor *q = ggml_new_tensor_3d(p->context, GGML_TYPE_F32, D_K, 1, n_head);
    struct ggml_tensor *k = ggml_new_tensor_3d(p->context, GGML_TYPE_F16, D_K, n_key, 1);
    struct ggml_tensor *v = ggml_view_3d(p->context, k, D_V, n_key, 1, k->nb[1], k->nb[2], 0);
    struct ggml_tensor *mask = ggml_new_tensor_2d(p->context, GGML_TYPE_F16, n_key, MASK_ROWS);
    for (int64_t i = 0; i < n_q; i++) {
        ((float *)q->data)[i] = number_load(o->data.q, MLA_DTYPE_F16, i);
    }
    memcpy(k->data, o->data.cache, (size_t)(n_key * D_K) * 2);
    memset(mask->data, 0, (size_t)(MASK_ROWS * n_key) * 2);
    p->out = ggml_flash_attn_ext(p->context, q, k, v, mask, DEEPSEEK_V3_SCALE, 0, 0);
    ggml_flash_attn_ext_set_prec(p->out, GGML_PREC_F32);
    p->graph = ggml_new_graph(p->context);
    ggml_build_forward_expand(p->graph, p->out);
    p->plan = MAKE_PLAN(p->graph, n_thread);
    p->work = cli_alloc(p->plan.work_size, 1);
    p->plan.work_data = p->work;
    return p->work != NULL;
}

static void close_peer(peer *p)
{
    free(p->work);
    if (p->context != NULL) {
        ggml_free(p->context);
    }
}

static bool run_ours(ours *o)
{
    return mla_run(o->plan, &o->problem, o->workspace, o->workspace_bytes, NULL) == MLA_STATUS_OK;
}

static bool run_peer(peer *p)
{
    return ggml_graph_compute(p->graph, &p->plan) == GGML_STATUS_SUCCESS;
}

/* ---- one shape --------------------------------------------------------------------------------------------------- */

typedef struct outcome {
    int32_t n, n_discarded;
    bool disturbed; /* no pair was good; all were kept */
    double ours[MAX_SAMPLE], peer[MAX_SAMPLE], ratio[MAX_SAMPLE];
    double our_error, peer_error; /* normwise */
    mla_arithmetic arithmetic;    /* ours */
} outcome;

/* Both against the oracle, on the first head and the middle one. */
static bool compare(ours *o, const peer *p, outcome *found)
{
    int64_t stride = o->data.shape.n_head / 2;
    mla_problem some = paged_case_sample(&o->problem, stride);
    float truth[2 * D_V];
    some.o = mla_tensor_make(truth, MLA_DTYPE_F32, 4, (int64_t[]){1, 1, 2, D_V});
    some.lse = (mla_tensor){0};
    if (mla_attention(&some, &(mla_plan_options){.backend = MLA_BACKEND_REF}) != MLA_STATUS_OK) {
        return false;
    }
    double norm = 0, ours2 = 0, peer2 = 0;
    for (int64_t i = 0; i < 2 * D_V; i++) {
        int64_t at = i / D_V * stride * D_V + i % D_V;
        double t = (double)truth[i], a = (double)((const float *)o->data.o)[at],
               b = (double)((const float *)p->out->data)[at];
        norm += t * t;
        ours2 += (a - t) * (a - t);
        peer2 += (b - t) * (b - t);
    }
    found->our_error = sqrt(ours2 / norm);
    found->peer_error = sqrt(peer2 / norm);
    return true;
}

static double time_ours(ours *o, int64_t repeat)
{
    double start = cli_now();
    for (int64_t i = 0; i < repeat; i++) {
        run_ours(o);
    }
    return (cli_now() - start) / (double)repeat;
}

static double time_peer(peer *p, int64_t repeat)
{
    double start = cli_now();
    for (int64_t i = 0; i < repeat; i++) {
        run_peer(p);
    }
    return (cli_now() - start) / (double)repeat;
}

static int64_t repeats(double seconds)
{
    return (int64_t)ceil(SAMPLE_SECONDS / seconds);
}

/* Time that the threads of the process have run, together. */
static double given_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Pairs until enough are good, or time is up. */
static void sample_pairs(ours *o, peer *p, int32_t n_thread, int32_t n_sample, outcome *found)
{
    int64_t our_repeat = repeats(time_ours(o, 1)), peer_repeat = repeats(time_peer(p, 1));
    double begin = cli_now();
    bool good[MAX_SAMPLE];
    int32_t n = 0, n_good = 0;
    for (; n < MAX_SAMPLE && n_good < n_sample && (n < 3 || cli_now() - begin < BUDGET_SECONDS); n++) {
        double wall = cli_now(), given = given_time();
        if (n % 2 == 0) {
            found->ours[n] = time_ours(o, our_repeat);
        }
        found->peer[n] = time_peer(p, peer_repeat);
        if (n % 2 != 0) {
            found->ours[n] = time_ours(o, our_repeat);
        }
        wall = cli_now() - wall;
        good[n] = given_time() - given >= (1 - LOST_TIME) * n_thread * wall;
        n_good += good[n];
    }
    found->disturbed = n_good == 0;
    for (int32_t i = 0; i < n; i++) {
        if (good[i] || found->disturbed) {
            found->ours[found->n] = found->ours[i];
            found->peer[found->n] = found->peer[i];
            found->ratio[found->n++] = found->peer[i] / found->ours[i];
        }
    }
    found->n_discarded = n - found->n;
}

static bool measure(int64_t n_head, int64_t n_key, int32_t n_thread, int32_t n_sample, outcome *found)
{
    ours o = {0};
    peer p = {0};
    *found = (outcome){0};
    bool good = open_ours(n_head, n_key, n_thread, &o) && open_peer(&o, n_thread, &p) && run_ours(&o) && run_peer(&p) &&
                compare(&o, &p, found);
    if (good) {
        mla_plan_info info;
        mla_plan_describe(o.plan, &info);
        found->arithmetic = info.arithmetic;
        sample_pairs(&o, &p, n_thread, n_sample, found);
    }
    close_peer(&p);
    close_ours(&o);
    return good;
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

static double quantile(const double *value, int32_t n, double which)
{
    double sorted[MAX_SAMPLE];
    memcpy(sorted, value, (size_t)n * sizeof *value);
    return stopwatch_quantile(sorted, (size_t)n, which);
}

static void print_row(int64_t n_head, int64_t n_key, int32_t n_thread, const outcome *r)
{
    printf("h%-4" PRId64 " s%-6" PRId64 " %3d %10.0f %10.0f   %5.2f (%.2f-%.2f)   %.1e %.1e%s\n", n_head, n_key,
           (int)n_thread, quantile(r->ours, r->n, 0.5) * 1e6, quantile(r->peer, r->n, 0.5) * 1e6,
           quantile(r->ratio, r->n, 0.5), quantile(r->ratio, r->n, 0.25), quantile(r->ratio, r->n, 0.75), r->our_error,
           r->peer_error, r->disturbed ? "  disturbed" : "");
    fflush(stdout);
}

static cJSON *build_row(int64_t n_head, int64_t n_key, int32_t n_thread, const outcome *r)
{
    cJSON *row = cJSON_CreateObject(), *ratio = cJSON_AddObjectToObject(row, "peer_times_ours");
    cJSON_AddNumberToObject(row, "heads", (double)n_head);
    cJSON_AddNumberToObject(row, "keys", (double)n_key);
    cJSON_AddNumberToObject(row, "threads", n_thread);
    static const char *const arithmetics[] = {"auto", "int16", "f32", "bf16"};
    cJSON_AddStringToObject(row, "arithmetic", arithmetics[r->arithmetic]);
    cJSON_AddNumberToObject(row, "flops", 2.0 * (double)(n_head * n_key * (D_K + D_V)));
    cJSON_AddNumberToObject(ratio, "median", quantile(r->ratio, r->n, 0.5));
    cJSON_AddNumberToObject(ratio, "low", quantile(r->ratio, r->n, 0.25));
    cJSON_AddNumberToObject(ratio, "high", quantile(r->ratio, r->n, 0.75));
    cJSON_AddNumberToObject(row, "discarded", r->n_discarded);
    cJSON_AddBoolToObject(row, "disturbed", r->disturbed);
    cJSON_AddNumberToObject(row, "our_error_normwise", r->our_error);
    cJSON_AddNumberToObject(row, "peer_error_normwise", r->peer_error);
    cJSON_AddItemToObject(row, "our_seconds", cJSON_CreateDoubleArray(r->ours, r->n));
    cJSON_AddItemToObject(row, "peer_seconds", cJSON_CreateDoubleArray(r->peer, r->n));
    return row;
}

/* rows is consumed. */
static bool write_json(const char *path, const char *name, const char *date, cJSON *rows)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "tool", "compare_ggml");
    cJSON_AddStringToObject(root, "peer", name);
    cJSON_AddStringToObject(root, "version", mla_version());
    cJSON_AddStringToObject(root, "isa", cli_selected_isa());
    cJSON_AddStringToObject(root, "date", date);
    cJSON_AddStringToObject(root, "cpu", machine_get()->cpu);
    cJSON_AddNumberToObject(root, "cpus", machine_get()->n_cpu);
    cJSON_AddNumberToObject(root, "load_average", cli_load());
    cJSON_AddItemToObject(root, "results", rows);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    FILE *stream = text != NULL ? fopen(path, "w") : NULL;
    bool good = stream != NULL && fprintf(stream, "%s\n", text) > 0;
    good = stream != NULL && fclose(stream) == 0 && good;
    cJSON_free(text);
    return good;
}

static int run(int argc, char **argv)
{
    static const struct option options[] = {{"peer", required_argument, NULL, 'p'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"samples", required_argument, NULL, 's'},
                                            {"json", required_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    const char *name = "ggml", *json = NULL;
    int64_t n_thread = 1, n_sample = 15;
    for (int c; (c = cli_next_option(argc, argv, ":p:t:s:j:h", options)) != -1;) {
        bool good = true;
        switch (c) {
        case 'p': name = optarg; break;
        case 't': good = cli_parse_int("--threads", optarg, 1, 1024, &n_thread); break;
        case 's': good = cli_parse_int("--samples", optarg, 3, MAX_SAMPLE, &n_sample); break;
        case 'j': json = optarg; break;
        case 'h': return CLI_OK;
        default: good = false; break;
        }
        if (!good) {
            return CLI_USAGE;
        }
    }
    if (!cli_apply_level(NULL, NULL)) {
        return CLI_USAGE;
    }
    char date[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    printf("%s, libmla %s %s against %s\n\n", machine_get()->cpu, mla_version(), cli_selected_isa(), name);
    printf("%-13s %3s %10s %10s   %-18s  %s\n", "shape", "thr", "ours us", "peer us", "peer / ours", "errors");
    cJSON *rows = cJSON_CreateArray();
    for (size_t i = 0; i < sizeof grid / sizeof grid[0]; i++) {
        outcome found;
        if (!measure(grid[i].n_head, grid[i].n_key, (int32_t)n_thread, (int32_t)n_sample, &found)) {
            cJSON_Delete(rows);
            return cli_fail("h%" PRId64 " s%" PRId64 ": one of the two does not run", grid[i].n_head, grid[i].n_key);
        }
        print_row(grid[i].n_head, grid[i].n_key, (int32_t)n_thread, &found);
        cJSON_AddItemToArray(rows, build_row(grid[i].n_head, grid[i].n_key, (int32_t)n_thread, &found));
    }
    if (json != NULL) {
        return write_json(json, name, date, rows) ? CLI_OK : cli_fail("--json = '%s': cannot write it", json);
    }
    cJSON_Delete(rows);
    return CLI_OK;
}

int main(int argc, char **argv)
{
    static const cli_command self =
        {"compare_ggml", "a decode step beside ggml's",
         "Usage: compare_ggml [--peer NAME] [--threads N] [--samples N] [--json FILE]\n"
         "\n"
         "Times a decode step of 576/512 over an fp16 cache beside the installed ggml's flash attention, in turn.\n",
         run};
    cli_current = &self;
    return run(argc, argv);
}
