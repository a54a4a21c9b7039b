/*
 * replay.c - see replay.h.
 */
#include "replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "cli.h"
#include "gpu_problem.h"
#include "stopwatch.h"
#include "terminal.h"
#include "verify.h"

static int64_t dim_from_end(const mla_tensor *t, int32_t n)
{
    return t->dim[t->ndim - n];
}

/* "3 requests x 1 token x 16 heads of 576", or "40 tokens x ..." of a packed q. */
static void describe_queries(const mla_problem *p)
{
    char text[4][32], rope[48] = "";
    if (p->q_rope.ndim != 0) {
        snprintf(rope, sizeof rope, " + %s (%s)", text_count(dim_from_end(&p->q_rope, 1), text[0]),
                 mla_dtype_name(p->q_rope.dtype));
    }
    const char *dtype = mla_dtype_name(p->q.dtype);
    if (p->q.ndim == 4) {
        print_fact("queries", "%s request%s x %s token%s x %s heads of %s%s, %s", text_count(p->q.dim[0], text[0]),
                   p->q.dim[0] == 1 ? "" : "s", text_count(p->q.dim[1], text[1]), p->q.dim[1] == 1 ? "" : "s",
                   text_count(p->q.dim[2], text[2]), text_count(p->q.dim[3], text[3]), rope, dtype);
    } else {
        print_fact("queries", "%s token%s x %s heads of %s%s, %s", text_count(p->q.dim[0], text[0]),
                   p->q.dim[0] == 1 ? "" : "s", text_count(p->q.dim[1], text[1]), text_count(p->q.dim[2], text[2]),
                   rope, dtype);
    }
}

static void describe_keys(const mla_problem *p, int32_t g)
{
    static const char *const rules[] = {"", ", causal", ", windowed", ", compressed"};
    const mla_segment *segment = &p->segment[g];
    const mla_tensor *k = &segment->k;
    bool nz = segment->layout == MLA_KEY_LAYOUT_NZ;
    char text[2][32], keys[80], pages[48] = "", entries[48] = "", last[80] = "";
    int32_t shortest = 0, longest = 0;
    int64_t n = segment->length.ndim != 0 ? segment->length.dim[0] : 0;
    for (int64_t s = 0; s < n; s++) {
        int32_t length = ((const int32_t *)segment->length.data)[s];
        shortest = s == 0 || length < shortest ? length : shortest;
        longest = s == 0 || length > longest ? length : longest;
    }
    if (segment->length.ndim == 0) {
        snprintf(keys, sizeof keys, "as many as there are");
    } else if (shortest == longest) {
        snprintf(keys, sizeof keys, "%s per request", text_count(longest, text[0]));
    } else {
        snprintf(keys, sizeof keys, "%s to %s per request", text_count(shortest, text[0]),
                 text_count(longest, text[1]));
    }
    if (segment->page_table.ndim != 0) {
        snprintf(pages, sizeof pages, ", pages of %" PRId64, k->dim[nz ? 2 : 1]);
    }
    if (segment->list.ndim != 0) {
        snprintf(entries, sizeof entries, ", lists of %" PRId64, dim_from_end(&segment->list, 1));
    }
    int64_t n_kv_head = nz ? 1 : dim_from_end(k, 2);
    if (g == 0) {
        snprintf(last, sizeof last, ", values of %" PRId64 ", scale %.6g", p->d_v, (double)p->softmax_scale);
    }
    print_fact(g == 0 ? "keys" : "and keys", "%s%s%s, %s%s, %" PRId64 " kv head%s%s%s", keys, pages, entries,
               mla_dtype_name(k->dtype), nz ? " NZ" : "", n_kv_head, n_kv_head == 1 ? "" : "s", last,
               rules[segment->visible.rule]);
}

static void describe(const capture *c)
{
    static const char *const roundings[] = {"", "q's 16 bits", "int8", "hif8"};
    if (c->source != NULL) {
        print_fact("source", "%s", c->source);
    }
    describe_queries(&c->call);
    for (int32_t g = 0; g < c->call.n_segment; g++) {
        describe_keys(&c->call, g);
    }
    if (c->call.p_rounding != MLA_P_ROUND_NONE) {
        print_fact("rounding", "probabilities to %s, in tiles of %d keys", roundings[c->call.p_rounding],
                   (int)c->call.p_tile);
    }
    if (c->n_ignored > 0) {
        print_fact("ignored", "%zu other tensor%s in the file", c->n_ignored, c->n_ignored == 1 ? "" : "s");
    }
}

/* Query-key pairs that are computed and keys that are read, where lengths alone tell: the rules ALL and CAUSAL over all
 * of a batched q. False otherwise. */
static bool count_work(const mla_problem *p, double *pairs, double *keys)
{
    const mla_segment *segment = &p->segment[0];
    if (p->n_segment != 1 || p->q.ndim != 4 || p->q_length.ndim != 0 || segment->list.ndim != 0 ||
        segment->length.ndim == 0 || segment->visible.rule > MLA_VISIBLE_CAUSAL) {
        return false;
    }
    *pairs = *keys = 0;
    int64_t n_q = p->q.dim[1];
    for (int64_t s = 0; s < p->q.dim[0]; s++) {
        int64_t length = ((const int32_t *)segment->length.data)[s];
        *keys += length > 0 ? (double)length : 0;
        for (int64_t i = 0; i < n_q; i++) {
            int64_t seen = segment->visible.rule == MLA_VISIBLE_CAUSAL ? length - n_q + i + 1 : length;
            *pairs += seen > 0 ? (double)seen : 0;
        }
    }
    return true;
}

static void report_speed(const capture *c, const mla_plan_info *info, const stopwatch_result *time)
{
    char text[4][32];
    const mla_problem *p = &c->call;
    const char *worker = strcmp(info->backend, "cuda") == 0 ? "multiprocessor" : "thread";
    cli_print_backend(info, info->n_worker, worker);
    if (time->n_sample == 1) {
        print_fact("time", "%s, one run", text_seconds(time->median, text[0]));
    } else {
        print_fact("time", "%s, median of %d runs (middle half %s to %s, fastest %s)",
                   text_seconds(time->median, text[0]), time->n_sample, text_seconds(time->low, text[1]),
                   text_seconds(time->high, text[2]), text_seconds(time->least, text[3]));
    }
    double pairs, keys;
    if (!count_work(p, &pairs, &keys)) {
        return;
    }
    const mla_segment *segment = &p->segment[0];
    bool rope = p->q_rope.ndim != 0;
    int64_t d_nope = dim_from_end(&p->q, 1), d_rope = rope ? dim_from_end(&p->q_rope, 1) : 0;
    int64_t n_head = dim_from_end(&p->q, 2),
            n_kv_head = segment->layout == MLA_KEY_LAYOUT_NZ ? 1 : dim_from_end(&segment->k, 2);
    double flops = 2 * pairs * (double)n_head * (double)(d_nope + d_rope + p->d_v);
    double row = (double)d_nope * (double)mla_dtype_size(segment->k.dtype);
    row += (double)d_rope * (double)mla_dtype_size(segment->k_rope.dtype);
    row += segment->v.ndim != 0 ? (double)p->d_v * (double)mla_dtype_size(segment->v.dtype) : 0;
    print_fact("speed", "%.3g GFLOP/s, %.3g GB/s of key rows", flops / time->median * 1e-9,
               keys * (double)n_kv_head * row / time->median * 1e-9);
}

static bool check_oracle(const mla_problem *problem, const verify_truth *truth)
{
    char count[32], seconds[32], lead[64], tail[64];
    verify_report report;
    verify_compare(truth, &problem->o, &problem->lse, false, &report);
    if (report.passed) {
        snprintf(lead, sizeof lead, "%s values: ", text_count(report.n_value, count));
        snprintf(tail, sizeof tail, "; fp64 took %s", text_seconds(truth->seconds, seconds));
        verify_print("oracle", &report, lead, tail);
    } else {
        print_verdict("oracle", false, "%s (%.3g times the bound)", report.sentence, report.worst);
    }
    return report.passed;
}

/* The recorded result is held against the truth too: a bound between two approximations would be looser. */
static bool check_recorded(const capture *c, const verify_truth *truth)
{
    if (c->recorded_out.ndim == 0) {
        print_fact("recorded", "the file has no recorded result to compare with");
        return true;
    }
    char count[32], by[224] = "", lead[288];
    verify_report report;
    verify_compare(truth, &c->recorded_out, &c->recorded_lse, true, &report);
    if (c->recorded_by != NULL) {
        snprintf(by, sizeof by, "(by %.200s) ", c->recorded_by);
    }
    if (report.passed) {
        snprintf(lead, sizeof lead, "%s%s values: ", by, text_count(report.n_value, count));
        verify_print("recorded", &report, lead, "");
    } else {
        print_verdict("recorded", false, "%sthe recorded %s (%.3g times the bound)", by, report.sentence, report.worst);
    }
    return report.passed;
}

/* Runs and times the problem where the backend computes; the results are in host memory then. */
static mla_status measure(const mla_problem *problem, const mla_plan_options *options, mla_plan_info *info,
                          stopwatch_result *time)
{
    gpu_problem *twin = NULL;
    if (options->backend != MLA_BACKEND_CUDA) {
        return stopwatch_problem(problem, options, 0.3, info, time);
    }
    mla_status status = gpu_problem_make(problem, &twin);
    if (status == MLA_STATUS_OK) {
        status = stopwatch_problem(gpu_problem_of(twin), options, 0.3, info, time);
    }
    if (status == MLA_STATUS_OK) {
        status = gpu_problem_fetch(twin);
    }
    gpu_problem_release(twin);
    return status;
}

/* Everything after the file was read and memory is there. */
static int replay(const capture *c, const replay_options *options, void *o, float *lse)
{
    mla_problem problem = capture_problem(c, o, lse);
    const mla_plan_options plan_options = {.backend = options->backend, .n_thread = options->n_thread};
    mla_plan_info info;
    stopwatch_result time;
    mla_status status = measure(&problem, &plan_options, &info, &time);
    if (status != MLA_STATUS_OK) {
        return cli_fail_status("the captured call", status);
    }
    describe(c);
    report_speed(c, &info, &time);

    bool good = true;
    if (options->check) {
        verify_truth truth;
        status = verify_prepare(&problem, info.arithmetic, &truth);
        if (status != MLA_STATUS_OK) {
            return cli_fail_status("the oracle", status);
        }
        good = check_oracle(&problem, &truth);
        good = check_recorded(c, &truth) && good;
        verify_release(&truth);
    }
    if (options->out_path != NULL) {
        char error[256], by[96];
        snprintf(by, sizeof by, "libmla %s (%s%s%s)", mla_version(), info.backend, info.isa[0] != '\0' ? " " : "",
                 info.isa);
        if (!capture_write(c, options->out_path, by, o, lse, error, sizeof error)) {
            return cli_fail("--out = '%s': %s", options->out_path, error);
        }
        print_fact("written", "%s", options->out_path);
    }
    return good ? CLI_OK : CLI_FAILED;
}

int replay_capture(const char *path, const replay_options *options)
{
    capture c;
    char error[256];
    if (!capture_open(path, &c, error, sizeof error)) {
        capture_close(&c);
        return cli_fail("%s: %s", path, error);
    }
    if (options->out_path != NULL && !safetensors_can_write(options->out_path, error, sizeof error)) {
        capture_close(&c);
        return cli_fail("--out = '%s': %s", options->out_path, error);
    }
    if (options->show_file) {
        print_fact("capture", "%s", path);
        cli_note_load();
    }
    /* dims come from the file: count in size_t with a check */
    size_t n_pair, n_value;
    void *o = NULL;
    float *lse = NULL;
    if (capture_count(&c, &n_pair, &n_value)) {
        o = cli_alloc(n_value, mla_dtype_size(c.out_dtype));
        lse = cli_alloc(n_pair, sizeof *lse);
    }
    int code = o != NULL && lse != NULL ? replay(&c, options, o, lse)
                                        : cli_fail("%s: not enough memory for the results", path);
    free(o);
    free(lse);
    capture_close(&c);
    return code;
}
