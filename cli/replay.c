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
#include "stopwatch.h"
#include "terminal.h"
#include "verify.h"

static void describe(const capture *c)
{
    char text[4][32];
    int32_t shortest = 0, longest = 0;
    const int32_t *length = c->cache_seqlens.data;
    for (int64_t s = 0; s < c->n_seq; s++) {
        shortest = s == 0 || length[s] < shortest ? length[s] : shortest;
        longest = s == 0 || length[s] > longest ? length[s] : longest;
    }
    if (c->source != NULL) {
        print_fact("source", "%s", c->source);
    }
    print_fact("queries", "%s request%s x %s token%s x %s heads of %s, %s", text_count(c->n_seq, text[0]),
               c->n_seq == 1 ? "" : "s", text_count(c->n_q, text[1]), c->n_q == 1 ? "" : "s",
               text_count(c->n_head, text[2]), text_count(c->d_k, text[3]), mla_dtype_name(c->q.dtype));
    char keys[80];
    if (shortest == longest) {
        snprintf(keys, sizeof keys, "%s", text_count(longest, text[0]));
    } else {
        snprintf(keys, sizeof keys, "%s to %s", text_count(shortest, text[0]), text_count(longest, text[1]));
    }
    print_fact("keys",
               "%s per request, pages of %" PRId64 ", %" PRId64 " kv head%s, values of %" PRId64 ", scale %.6g%s", keys,
               c->page_size, c->n_kv_head, c->n_kv_head == 1 ? "" : "s", c->d_v, (double)c->softmax_scale,
               c->causal ? ", causal" : "");
    if (c->n_ignored > 0) {
        print_fact("ignored", "%zu other tensor%s in the file", c->n_ignored, c->n_ignored == 1 ? "" : "s");
    }
}

static void report_speed(const capture *c, const mla_plan_info *info, const stopwatch_result *time)
{
    char text[4][32];
    print_fact("backend", "%s%s%s, %d thread%s, workspace %s", info->backend, info->isa[0] != '\0' ? " " : "",
               info->isa, (int)info->n_worker, info->n_worker == 1 ? "" : "s",
               text_bytes((double)info->workspace_bytes, text[0]));
    if (time->n_sample == 1) {
        print_fact("time", "%s, one run", text_seconds(time->median, text[0]));
    } else {
        print_fact("time", "%s, median of %d runs (middle half %s to %s, fastest %s)",
                   text_seconds(time->median, text[0]), time->n_sample, text_seconds(time->low, text[1]),
                   text_seconds(time->high, text[2]), text_seconds(time->least, text[3]));
    }
    double flops = 2 * capture_pairs(c) * (double)c->n_head * (double)(c->d_k + c->d_v);
    double keys = 0;
    for (int64_t s = 0; s < c->n_seq; s++) {
        int32_t length = ((const int32_t *)c->cache_seqlens.data)[s];
        keys += length > 0 ? length : 0;
    }
    double bytes = keys * (double)(c->n_kv_head * c->d_k) * (double)mla_dtype_size(c->q.dtype);
    print_fact("speed", "%.3g GFLOP/s, %.3g GB/s of key rows", flops / time->median * 1e-9,
               bytes / time->median * 1e-9);
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

/* Everything after the file was read and memory is there. */
static int replay(const capture *c, const replay_options *options, void *o, float *lse)
{
    mla_problem problem = capture_problem(c, o, c->q.dtype, lse);
    const mla_plan_options plan_options = {.backend = options->backend, .n_thread = options->n_thread};
    mla_plan_info info;
    stopwatch_result time;
    mla_status status = stopwatch_problem(&problem, &plan_options, 0.3, &info, &time);
    if (status != MLA_STATUS_OK) {
        return cli_fail_status("the captured call", status);
    }
    describe(c);
    report_speed(c, &info, &time);

    bool good = true;
    if (options->check) {
        verify_truth truth;
        status = verify_prepare(&problem, &truth);
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
    if (!__builtin_mul_overflow((size_t)c.n_seq, (size_t)c.n_q, &n_pair) &&
        !__builtin_mul_overflow(n_pair, (size_t)c.n_head, &n_pair) &&
        !__builtin_mul_overflow(n_pair, (size_t)c.d_v, &n_value)) {
        o = cli_alloc(n_value, mla_dtype_size(c.q.dtype));
        lse = cli_alloc(n_pair, sizeof *lse);
    }
    int code = o != NULL && lse != NULL ? replay(&c, options, o, lse)
                                        : cli_fail("%s: not enough memory for the results", path);
    free(o);
    free(lse);
    capture_close(&c);
    return code;
}
