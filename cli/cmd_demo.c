/*
 * cmd_demo.c - mla demo: a real call and a DeepSeek-V3-shaped batch, verified, with their speed.
 */
#include <errno.h> /* program_invocation_name */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "bench_pool.h"
#include "ceiling.h"
#include "cli.h"
#include "machine.h"
#include "paged_case.h"
#include "replay.h"
#include "stopwatch.h"
#include "terminal.h"
#include "verify.h"

static const char help[] =
    "Usage: mla demo [options]\n"
    "\n"
    "Shows the library at work, in a few seconds:\n"
    "  1. replays a decode step that was captured from a DeepSeek-V3 architecture running on real text;\n"
    "  2. runs a batch shaped like DeepSeek-V3 serving: 8 requests of about 4096 keys, 128 heads, 576/512, pages of\n"
    "     64;\n"
    "  3. where there is an NVIDIA GPU, replays the step there and runs a batch of 32 such requests.\n"
    "Each result is verified against the oracle (fp64, straight from the formula) with an error bound computed for\n"
    "every element. The speed stands beside what this machine's arithmetic units, or the GPU's memory, can do, measured in\n"
    "the same second.\n"
    "\n"
    "Options:\n"
    "      --capture FILE  replay this file instead of the one that comes with libmla\n"
    "  -t, --threads N     use N threads (default: what OpenMP decides)\n"
    "  -h, --help          show this help\n"
    "\n"
    "Examples:\n"
    "  mla demo\n"
    "  mla demo --threads 1\n"
    "  MLA_ISA=scalar mla demo\n";

#define CAPTURE_NAME "deepseek_decode.safetensors"
#define HEAD_SAMPLE 32 /* every 32nd head of the batch goes through the oracle */

static void print_heading(int number, const char *text)
{
    printf("\n%s%d  %s%s\n", style(STYLE_STRONG), number, text, style(STYLE_PLAIN));
}

/* The capture that comes with libmla: in the source tree beside a build folder, or in the share folder of an
 * installation. */
static bool find_capture(char *path, size_t size)
{
    static const char *const places[] = {"../tests/data/" CAPTURE_NAME, "../../tests/data/" CAPTURE_NAME,
                                         "../share/mla/" CAPTURE_NAME, "tests/data/" CAPTURE_NAME};
    char folder[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (length > 0) {
        folder[length] = '\0';
        char *slash = strrchr(folder, '/');
        if (slash != NULL) {
            slash[1] = '\0';
        }
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            if (snprintf(path, size, "%s%s", folder, places[i]) < (int)size && access(path, R_OK) == 0) {
                char *real = realpath(path, NULL);
                if (real != NULL) {
                    snprintf(path, size, "%s", real);
                    free(real);
                }
                return true;
            }
        }
    }
    return false;
}

/* Speed of the batch and of the FMA units on the same threads, in turns. */
typedef struct batch_speed {
    mla_plan_info info;
    int n_sample;
    double seconds, low, high; /* median and quartiles of a run */
    double of_peak, peak;      /* medians: share of the FMA peak, GFLOP/s */
} batch_speed;

#define N_SAMPLE 9

static int time_batch(const mla_problem *problem, double flops, int32_t n_thread, batch_speed *speed)
{
    bench_pool *pool = bench_pool_new(n_thread);
    if (pool == NULL) {
        return cli_fail("cannot start %d threads", (int)n_thread);
    }
    mla_executor executor = bench_pool_executor(pool);
    mla_plan *plan = NULL;
    void *workspace = NULL;
    double seconds[N_SAMPLE], peak[N_SAMPLE], share[N_SAMPLE];
    mla_status status = mla_plan_build(problem, &(mla_plan_options){.executor = &executor}, &plan);
    if (status == MLA_STATUS_OK) {
        mla_plan_describe(plan, &speed->info);
        workspace = cli_alloc(speed->info.workspace_bytes, 1);
        status = workspace != NULL ? MLA_STATUS_OK : MLA_STATUS_OUT_OF_MEMORY;
    }
    double begin = cli_now();
    int n = 0;
    for (int i = -1; status == MLA_STATUS_OK && i < N_SAMPLE && (n < 3 || cli_now() - begin < 4); i++) {
        double before = ceiling_flops(pool, cli_selected_isa(), 4e-3), start = cli_now();
        status = mla_run(plan, problem, workspace, speed->info.workspace_bytes, NULL);
        double took = cli_now() - start, after = ceiling_flops(pool, cli_selected_isa(), 4e-3);
        if (i >= 0) { /* the first one warms up */
            seconds[n] = took;
            peak[n] = (before + after) / 2;
            share[n++] = flops / took * 1e-9 / ((before + after) / 2);
        }
        progress((i + 1.0) / N_SAMPLE, "running ...");
    }
    progress_clear();
    if (status == MLA_STATUS_OK) {
        speed->n_sample = n;
        speed->seconds = stopwatch_quantile(seconds, (size_t)n, 0.5);
        speed->low = stopwatch_quantile(seconds, (size_t)n, 0.25);
        speed->high = stopwatch_quantile(seconds, (size_t)n, 0.75);
        speed->peak = stopwatch_quantile(peak, (size_t)n, 0.5);
        speed->of_peak = stopwatch_quantile(share, (size_t)n, 0.5);
    }
    free(workspace);
    mla_plan_free(plan);
    bench_pool_free(pool);
    return status == MLA_STATUS_OK ? CLI_OK : cli_fail_status("the batch", status);
}

static int verify_batch(const mla_problem *problem, mla_arithmetic arithmetic)
{
    char text[2][32], lead[96], tail[64];
    mla_problem sample = paged_case_sample(problem, HEAD_SAMPLE);
    verify_truth truth;
    progress(-1, "verifying with the oracle ...");
    mla_status status = verify_prepare(&sample, arithmetic, &truth);
    progress_clear();
    if (status != MLA_STATUS_OK) {
        return cli_fail_status("the oracle", status);
    }
    verify_report report;
    verify_compare(&truth, &sample.o, &sample.lse, false, &report);
    if (report.passed) {
        snprintf(lead, sizeof lead, "%s values (every %dnd head): ", text_count(report.n_value, text[0]), HEAD_SAMPLE);
        snprintf(tail, sizeof tail, "; fp64 took %s", text_seconds(truth.seconds, text[1]));
        verify_print("oracle", &report, lead, tail);
    } else {
        print_verdict("oracle", false, "%s (%.3g times the bound)", report.sentence, report.worst);
    }
    verify_release(&truth);
    return report.passed ? CLI_OK : CLI_FAILED;
}

/* A decode step of DeepSeek-V3. */
static paged_shape batch_of(int64_t n_seq)
{
    return (paged_shape){.n_seq = n_seq,
                         .n_q = 1,
                         .n_head = 128,
                         .d_k = 576,
                         .d_v = 512,
                         .page_size = 64,
                         .n_key = 4096,
                         .ragged = true,
                         .dtype = MLA_DTYPE_BF16};
}

static int run_batch(int32_t n_thread)
{
    const paged_shape shape = batch_of(8);
    paged_case c;
    progress(-1, "filling a cache ...");
    if (!paged_case_make(&shape, 1, 1, &c)) {
        return cli_fail("not enough memory for a batch of %.0f MB", paged_case_bytes(&shape, 1) * 1e-6);
    }
    progress_clear();
    mla_problem problem = paged_case_problem(&c, 0, MLA_DTYPE_BF16);
    batch_speed speed;
    int code = time_batch(&problem, paged_case_flops(&c), n_thread, &speed);
    if (code != CLI_OK) {
        paged_case_release(&c);
        return code;
    }
    char text[4][32];
    print_fact("queries", "%" PRId64 " requests x 1 token x %" PRId64 " heads of %" PRId64 ", bf16", shape.n_seq,
               shape.n_head, shape.d_k);
    print_fact("keys", "%s in all, %s in pages of %" PRId64 ", values of %" PRId64,
               text_count((int64_t)c.keys, text[0]), text_bytes(paged_case_key_bytes(&c), text[1]), shape.page_size,
               shape.d_v);
    cli_print_backend(&speed.info, n_thread, "thread");
    print_fact("time", "%s, median of %d runs (middle half %s to %s)", text_seconds(speed.seconds, text[0]),
               speed.n_sample, text_seconds(speed.low, text[1]), text_seconds(speed.high, text[2]));
    double rate = paged_case_flops(&c) / speed.seconds * 1e-9;
    if (speed.info.arithmetic == MLA_ARITHMETIC_F32 && speed.of_peak > 1.02) { /* it cannot be */
        print_fact("speed", "%.1f GFLOP/s; other work disturbed the measurement of what %s reaches in registers", rate,
                   ceiling_name(cli_selected_isa()));
    } else {
        print_fact("speed", "%.1f GFLOP/s, %.0f %% of the %.1f that %s reaches in registers, measured in turns", rate,
                   100 * speed.of_peak, speed.peak, ceiling_name(cli_selected_isa()));
    }
    code = verify_batch(&problem, speed.info.arithmetic);
    paged_case_release(&c);
    return code;
}

static void print_gpu_batch(const bench_result *r)
{
    char text[4][32];
    const paged_shape *s = &r->what->shape;
    progress_clear();
    print_fact("batch",
               "%" PRId64 " requests x 1 token x %" PRId64 " heads of %" PRId64 ", about %s keys each, kernel %s",
               s->n_seq, s->n_head, s->d_k, text_count(s->n_key, text[0]), r->kernel);
    print_fact("time", "%s, median of %d samples (middle half %s to %s)", text_seconds(r->seconds.median, text[0]),
               (int)r->n_sample, text_seconds(r->seconds.low, text[1]), text_seconds(r->seconds.high, text[2]));
    print_fact("speed", "%.1f TFLOP/s; %.2f TB/s, %.0f %% of the %.2f that copying within its memory moves, in turns",
               r->flops / r->seconds.median * 1e-12, r->bytes / r->seconds.median * 1e-12, 100 * r->of_read.median,
               r->read.median * 1e-3);
    if (r->correct) {
        print_verdict("oracle", true, "norm-wise error %.1e on a sample of heads", r->error);
    } else {
        print_verdict("oracle", false, "%s", r->fault);
    }
}

static void show_gpu_progress(double fraction)
{
    progress(fraction, "running ...");
}

static int run_gpu_batch(void)
{
    const bench_case batch = {.kind = BENCH_GPU, .shape = batch_of(32)};
    const bench_settings settings = {.n_sample = N_SAMPLE, .budget = 4, .progress = show_gpu_progress};
    static bench_result result;
    progress(-1, "filling a cache ...");
    int code = bench_measure_gpu(&batch, &settings, &result, print_gpu_batch);
    progress_clear();
    return code == CLI_OK && !result.correct ? CLI_FAILED : code;
}

static int run(int argc, char **argv)
{
    enum { OPT_CAPTURE = 256 };
    static const struct option options[] = {{"capture", required_argument, NULL, OPT_CAPTURE},
                                            {"threads", required_argument, NULL, 't'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    char found[PATH_MAX];
    const char *path = NULL;
    int64_t threads = 0; /* not said */
    for (int c; (c = cli_next_option(argc, argv, ":ht:", options)) != -1;) {
        switch (c) {
        case OPT_CAPTURE: path = optarg; break;
        case 't':
            if (!cli_parse_int("--threads", optarg, 1, 4096, &threads)) {
                return CLI_USAGE;
            }
            break;
        case 'h': return CLI_OK;
        default: return CLI_USAGE;
        }
    }
    if (optind != argc) {
        return cli_fail("'%s' is one argument too many; see 'mla demo --help'", argv[optind]);
    }
    if (!cli_apply_level(NULL, NULL)) {
        return CLI_USAGE;
    }
    printf("%slibmla %s%s on %s, %s kernels\n", style(STYLE_STRONG), mla_version(), style(STYLE_PLAIN),
           machine_get()->cpu, cli_selected_isa());
    cli_note_load();

    int code = CLI_OK;
    print_heading(1, "A real decode step, replayed");
    if (path == NULL && find_capture(found, sizeof found)) {
        path = found;
    }
    if (path != NULL) {
        const char *slash = strrchr(path, '/');
        print_fact("capture", "%s", slash != NULL ? slash + 1 : path);
        code = replay_capture(path, &(replay_options){.check = true, .n_thread = (int32_t)threads});
        if (code == CLI_USAGE && path != found) {
            return code; /* the file that was asked for: nobody waits for the rest */
        }
    } else {
        code =
            cli_fail(CAPTURE_NAME " is neither in tests/data of the source tree around this command nor in share/mla "
                                  "beside it; --capture FILE names another");
    }
    print_heading(2, "A batch shaped like DeepSeek-V3 serving");
    int batch = run_batch(threads > 0 ? (int32_t)threads : mla_default_threads());
    code = batch > code ? batch : code;
    mla_gpu_info gpu;
    if (path != NULL && mla_gpu_list(&gpu, 1) > 0 && gpu.compute_capability >= 75) {
        char heading[128];
        snprintf(heading, sizeof heading, "The decode step on %s", gpu.name);
        print_heading(3, heading);
        int on_gpu = replay_capture(path, &(replay_options){.check = true, .backend = MLA_BACKEND_CUDA});
        code = on_gpu > code ? on_gpu : code;
        on_gpu = run_gpu_batch();
        code = on_gpu > code ? on_gpu : code;
    }
    if (code == CLI_OK) {
        printf("\nAll results agree with the oracle. Next: %s bench --quick, %s --help.\n", program_invocation_name,
               program_invocation_name);
    } else {
        printf("\n%s\n", code == CLI_FAILED ? "A result is WRONG: please report the lines above."
                                            : "The demo is incomplete: see above.");
    }
    return code;
}

const cli_command cli_demo = {"demo", "replay a real decode step and a DeepSeek-V3 batch, verified, with speed", help,
                              run};
