/*
 * cmd_bench.c - mla bench: speed beside the machine's limits and beside rivals.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "ceiling.h"
#include "cli.h"
#include "machine.h"
#include "terminal.h"

static const char help[] =
    "Usage: mla bench [options]\n"
    "\n"
    "Measures decode steps of production shapes. Every sample stands between two measurements of what this machine\n"
    "can do at that moment on the same threads: independent multiply-adds in registers (FMA peak) and, where keys\n"
    "come from memory, reading the same cache front to back (read peak). Percentages and ratios are formed from\n"
    "neighbours, and their median is shown with the quartiles in brackets. Each shape's fp32 result is verified\n"
    "first; 'error' is its norm-wise distance from the oracle (fp64). A wrong result gives exit status 1; slowness\n"
    "does not.\n"
    "\n"
    "Samples during which the threads did not have a core each are discarded; a row where none was left keeps them\n"
    "all, without ratios, and is marked 'disturbed'.\n"
    "'threads share cores': at their best, all threads together reached less than 85 % of so many times one's peak.\n"
    "\n"
    "FLOPs are counted as 2 * heads * (d_k + d_v) per visible query-key pair, bytes as unique key rows.\n"
    "In names: b requests, h heads, q query tokens, s keys (~: about, ragged), d_k/d_v, dtype, dram: keys from\n"
    "memory. 'cann' and 'atb' rows have the formats of Ascend's operators; 'x plain bf16' is their time divided by\n"
    "that of as many bf16 keys of the same width. All samples are on threads that this program lends to the library;\n"
    "'x OpenMP' is the time on the library's own threads divided by that.\n"
    "\n"
    "With --backend cuda decode steps on the first NVIDIA GPU instead: calls queued on a stream, over copies of the\n"
    "cache that no cache of the GPU holds, each sample between two measurements of copying within the GPU's memory.\n"
    "TB/s and '% of copying' count key rows, queries and outputs once. The ceiling of its multipliers is not measured.\n"
    "\n"
    "Options:\n"
    "      --backend B       cpu or cuda (default: cpu)\n"
    "      --compare         also time the best composition of BLAS calls, through OpenBLAS and oneDNN where\n"
    "                        installed; shown is their time divided by ours\n"
    "      --rival-isa WHICH limit the BLAS to the instruction set level of our kernels ('ours'), or let it choose\n"
    "                        ('native') (default: ours)\n"
    "  -t, --threads LIST    thread counts, for instance 1,2,8 (default: 1 and all CPUs)\n"
    "  -f, --filter TEXT     only shapes whose kind and name contain TEXT, for instance 'h16' or 'scaling b1 h128';\n"
    "                        'TEXT|TEXT': one or the other\n"
    "  -q, --quick           a few shapes, fewer samples: half a minute\n"
    "      --samples N       samples wanted per measurement (default: 15; quick: 7)\n"
    "      --seconds S       after so many 5 samples are enough for a measurement, after three times as many any\n"
    "                        number is (default: 6; quick: 1.5)\n"
    "      --json FILE       write everything as JSON too\n"
    "      --isa NAME        highest instruction set level, as listed by 'mla info' (default: the best usable)\n"
    "      --arith NAME      auto, f32, bf16, bf16x2 or int16: what CPU kernels compute in (default: auto)\n"
    "      --list            print the names of the shapes and stop\n"
    "  -h, --help            show this help\n"
    "\n"
    "Examples:\n"
    "  mla bench --quick\n"
    "  mla bench --compare --json bench.json\n"
    "  mla bench --filter 'b1 h128 s4096' --threads 1 --compare\n"
    "  mla bench --backend cuda --quick\n";

#define MAX_THREAD_COUNT 16

static struct {
    const bench_settings *settings;
    int32_t n_step, step; /* measurements in all, finished ones */
    char name[96];
} so_far;

static void show_progress(double fraction)
{
    progress(((double)so_far.step + fraction) / so_far.n_step, "%s", so_far.name);
}

static void show_result(const bench_result *result)
{
    progress_clear();
    bench_print_row(result, so_far.settings);
    so_far.step++;
    show_progress(0);
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Which shapes. */
typedef struct selection {
    bool gpu, quick;
    const char *filter; /* parts of "kind name", one of which must be there, with '|' between them; NULL: any */
} selection;

static bool passes_filter(const char *name, const char *filter)
{
    for (const char *at = filter, *end; filter != NULL; at = end + 1) {
        char part[128];
        end = at + strcspn(at, "|");
        snprintf(part, sizeof part, "%.*s", (int)(end - at), at);
        if (part[0] != '\0' && strstr(name, part) != NULL) {
            return true;
        }
        if (*end == '\0') {
            return false;
        }
    }
    return true;
}

static bool is_selected(const bench_case *c, const selection *s)
{
    char name[128];
    int used = snprintf(name, sizeof name, "%s ", bench_kind_name(c->kind));
    bench_case_name(c, name + used, sizeof name - (size_t)used);
    return s->gpu == (c->kind == BENCH_GPU) && (!s->quick || c->quick) && passes_filter(name, s->filter);
}

static bool multiplies_bf16(const char *isa, const char *arith)
{
    bool wanted = arith != NULL && strncmp(arith, "bf16", 4) == 0;
    bool automatic = arith == NULL || strcmp(arith, "auto") == 0;
    return strcmp(isa, "amx") == 0 ? wanted || automatic : strcmp(isa, "avx512bf16") == 0 && wanted;
}

/* bf16: beside ours in that arithmetic one that multiplies bf16 matrices too, where there are units for it. */
static void open_rivals(bench_settings *settings, bool native, bool bf16)
{
    static const rival_blas blas[BENCH_MAX_RIVAL] = {RIVAL_OPENBLAS, RIVAL_ONEDNN, RIVAL_ONEDNN_BF16};
    for (int32_t i = 0; i < (bf16 ? BENCH_MAX_RIVAL : BENCH_MAX_RIVAL - 1); i++) {
        char why[160];
        settings->rival[i] = rival_open(blas[i], native ? NULL : settings->isa, why, sizeof why);
        if (settings->rival[i] != NULL) {
            print_fact("rival", "%s %s (%s), one single-threaded copy per thread", rival_name(settings->rival[i]),
                       rival_detail(settings->rival[i]), native ? "its own choice" : "limited to our level");
        } else {
            print_fact("rival", "%s", why);
        }
    }
}

/* Thread counts [*first, *last) that a case is measured with here; false: none. */
static bool is_measured(const bench_case *c, const selection *s, const int32_t *threads, int32_t n_count,
                        int32_t *first, int32_t *last)
{
    bench_case_threads(c, threads, n_count, first, last);
    return is_selected(c, s) && *first < *last;
}

static int refuse_filter(const selection *s)
{
    return cli_fail("no %sshape's name contains '%s'; see 'mla bench%s --list'", s->quick ? "quick " : "",
                    s->filter != NULL ? s->filter : "", s->gpu ? " --backend cuda" : "");
}

/* How many measurements there will be, into *n_step; none is a wrong command line. */
static int count_steps(const int32_t *threads, int32_t n_count, const selection *s, int32_t *n_step)
{
    bool any = false;
    *n_step = 0;
    for (int32_t i = 0; i < bench_grid_size; i++) {
        int32_t first, last;
        any = any || is_selected(&bench_grid[i], s);
        if (is_measured(&bench_grid[i], s, threads, n_count, &first, &last)) {
            *n_step += last - first;
        }
    }
    if (!any) {
        return refuse_filter(s);
    }
    return *n_step > 0 ? CLI_OK : cli_fail("scaling and lent threads need two threads or more, see --threads");
}

static int run_grid(const bench_settings *settings, const int32_t *threads, int32_t n_count, const selection *s,
                    bench_result *result, int32_t *n_result)
{
    int kind = -1;
    so_far.settings = settings;
    for (int32_t i = 0; i < bench_grid_size; i++) {
        const bench_case *c = &bench_grid[i];
        int32_t first, last;
        if (!is_measured(c, s, threads, n_count, &first, &last)) {
            continue;
        }
        if ((int)c->kind != kind) {
            progress_clear();
            bench_print_header(c->kind, settings);
            kind = (int)c->kind;
        }
        bench_case_name(c, so_far.name, sizeof so_far.name);
        show_progress(0);
        int code = c->kind == BENCH_GPU
                       ? bench_measure_gpu(c, settings, result + *n_result, show_result)
                       : bench_measure(c, threads + first, last - first, settings, result + *n_result, show_result);
        if (code != CLI_OK) {
            return code;
        }
        *n_result += last - first;
    }
    progress_clear();
    return CLI_OK;
}

/* The command line in one string, for the JSON file. */
static char *join_command(int argc, char **argv)
{
    size_t length = sizeof "mla";
    for (int i = 0; i < argc; i++) {
        length += strlen(argv[i]) + 3;
    }
    char *text = cli_alloc(length, 1);
    size_t used = text != NULL ? (size_t)snprintf(text, length, "mla") : 0;
    for (int i = 0; text != NULL && i < argc; i++) {
        const char *quote = argv[i][strcspn(argv[i], " ~*|")] != '\0' ? "'" : ""; /* as in the names of shapes */
        used += (size_t)snprintf(text + used, length - used, " %s%s%s", quote, argv[i], quote);
    }
    return text;
}

static int list_names(const selection *s)
{
    bool any = false;
    for (int32_t i = 0; i < bench_grid_size; i++) {
        if (is_selected(&bench_grid[i], s)) {
            any = true;
            char name[96];
            bench_case_name(&bench_grid[i], name, sizeof name);
            printf("%-8s %s\n", bench_kind_name(bench_grid[i].kind), name);
        }
    }
    return any ? CLI_OK : refuse_filter(s);
}

static void print_machine(const bench_settings *settings)
{
    const machine *m = machine_get();
    char text[32];
    if (settings->gpu != NULL) {
        printf("%slibmla %s%s on %s\n", style(STYLE_STRONG), mla_version(), style(STYLE_PLAIN), settings->gpu);
        return;
    }
    printf("%slibmla %s%s, %s kernels\n\n", style(STYLE_STRONG), mla_version(), style(STYLE_PLAIN), settings->isa);
    print_fact("cpu", "%s, L3 %s", m->cpu, text_bytes((double)m->l3_bytes, text));
    print_fact("ceiling", "%s of the level '%s'; reading with the widest loads of that kind",
               ceiling_name(settings->isa), settings->isa);
}

static int run(int argc, char **argv)
{
    enum {
        OPT_BACKEND = 256,
        OPT_COMPARE,
        OPT_RIVAL_ISA,
        OPT_SAMPLES,
        OPT_SECONDS,
        OPT_JSON,
        OPT_ISA,
        OPT_ARITH,
        OPT_LIST
    };
    static const struct option options[] = {{"backend", required_argument, NULL, OPT_BACKEND},
                                            {"compare", no_argument, NULL, OPT_COMPARE},
                                            {"rival-isa", required_argument, NULL, OPT_RIVAL_ISA},
                                            {"threads", required_argument, NULL, 't'},
                                            {"filter", required_argument, NULL, 'f'},
                                            {"quick", no_argument, NULL, 'q'},
                                            {"samples", required_argument, NULL, OPT_SAMPLES},
                                            {"seconds", required_argument, NULL, OPT_SECONDS},
                                            {"json", required_argument, NULL, OPT_JSON},
                                            {"isa", required_argument, NULL, OPT_ISA},
                                            {"arith", required_argument, NULL, OPT_ARITH},
                                            {"list", no_argument, NULL, OPT_LIST},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    selection chosen = {0};
    bool compare = false, native = false, list = false;
    const char *json = NULL, *isa = NULL, *arith = NULL, *of_cpus = NULL; /* an option that says nothing to a GPU */
    int64_t wanted[MAX_THREAD_COUNT] = {1, machine_get()->n_cpu}, samples = 0;
    size_t n_wanted = wanted[1] > 1 ? 2 : 1;
    double seconds = 0;
    char *command = join_command(argc, argv);
    if (command == NULL) {
        return cli_fail("not enough memory");
    }
    int code = CLI_OK;
    for (int c; code == CLI_OK && (c = cli_next_option(argc, argv, ":ht:f:q", options)) != -1;) {
        bool good = true;
        switch (c) {
        case OPT_BACKEND:
            chosen.gpu = strcmp(optarg, "cuda") == 0;
            good = chosen.gpu || strcmp(optarg, "cpu") == 0;
            if (!good) {
                cli_fail("--backend = '%s' must be cpu or cuda", optarg);
            }
            break;
        case OPT_COMPARE:
            of_cpus = "--compare";
            compare = true;
            break;
        case OPT_RIVAL_ISA:
            of_cpus = "--rival-isa";
            native = strcmp(optarg, "native") == 0;
            good = native || strcmp(optarg, "ours") == 0;
            if (!good) {
                cli_fail("--rival-isa = '%s' must be ours or native", optarg);
            }
            break;
        case 't':
            of_cpus = "--threads";
            good = cli_parse_int_list("--threads", optarg, 1, 4096, wanted, MAX_THREAD_COUNT, &n_wanted);
            break;
        case 'f': chosen.filter = optarg; break;
        case 'q': chosen.quick = true; break;
        case OPT_SAMPLES: good = cli_parse_int("--samples", optarg, 3, 64, &samples); break;
        case OPT_SECONDS: good = cli_parse_double("--seconds", optarg, 0.001, 1e6, &seconds); break;
        case OPT_JSON: json = optarg; break;
        case OPT_ISA:
            of_cpus = "--isa";
            isa = optarg;
            break;
        case OPT_ARITH:
            of_cpus = "--arith";
            arith = optarg;
            break;
        case OPT_LIST: list = true; break;
        case 'h': free(command); return CLI_OK;
        default: good = false; break;
        }
        code = good ? CLI_OK : CLI_USAGE;
    }
    if (code == CLI_OK && optind != argc) {
        code = cli_fail("'%s' is one argument too many; see 'mla bench --help'", argv[optind]);
    }
    if (code == CLI_OK && chosen.gpu && of_cpus != NULL) {
        code = cli_fail("%s is about CPUs, and --backend cuda measures a GPU", of_cpus);
    }
    if (code != CLI_OK || list) {
        free(command);
        return code == CLI_OK ? list_names(&chosen) : code;
    }

    bench_settings settings = {.n_sample = samples > 0    ? (int32_t)samples
                                           : chosen.quick ? 7
                                                          : 15,
                               .budget = seconds > 0    ? seconds
                                         : chosen.quick ? 1.5
                                                        : 6,
                               .progress = show_progress};
    qsort(wanted, n_wanted, sizeof *wanted, by_number);
    int32_t threads[MAX_THREAD_COUNT], n_count = 0, n_result = 0;
    for (size_t i = 0; i < n_wanted; i++) {
        if (n_count == 0 || threads[n_count - 1] != wanted[i]) {
            threads[n_count++] = (int32_t)wanted[i];
        }
    }
    char error[160];
    bench_result *result = cli_alloc((size_t)bench_grid_size * (size_t)n_count, sizeof *result);
    code = result != NULL ? CLI_OK : cli_fail("not enough memory");
    code = code == CLI_OK && !cli_apply_level(isa, arith) ? CLI_USAGE : code;
    code = code == CLI_OK ? count_steps(threads, n_count, &chosen, &so_far.n_step) : code;
    mla_gpu_info gpu;
    if (code == CLI_OK && chosen.gpu) {
        settings.gpu = gpu.name;
        code = mla_gpu_list(&gpu, 1) > 0 ? CLI_OK : cli_fail("--backend cuda: %s", mla_last_error());
    }
    if (code == CLI_OK && json != NULL && !cli_can_write(json, error, sizeof error)) {
        code = cli_fail("--json = '%s': %s", json, error);
    }
    if (code == CLI_OK) {
        time_t now = time(NULL);
        struct tm utc;
        strftime(settings.date, sizeof settings.date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
        settings.load = cli_load();
        settings.isa = cli_selected_isa();
        print_machine(&settings);
        if (!chosen.gpu) {
            cli_note_load();
        }
        if (compare) {
            open_rivals(&settings, native, multiplies_bf16(settings.isa, arith));
        }
        code = run_grid(&settings, threads, n_count, &chosen, result, &n_result);
    }
    if (code == CLI_OK && json != NULL &&
        !bench_write_json(json, command, &settings, result, n_result, error, sizeof error)) {
        code = cli_fail("--json = '%s': %s", json, error);
    }
    for (int32_t i = 0; code == CLI_OK && i < n_result; i++) {
        code = result[i].correct ? CLI_OK : CLI_FAILED;
    }
    for (int32_t i = 0; i < BENCH_MAX_RIVAL; i++) {
        rival_close(settings.rival[i]);
    }
    free(result);
    free(command);
    return code;
}

const cli_command cli_bench = {"bench", "speed beside this machine's limits, and beside BLAS with --compare", help,
                               run};
