/*
 * cmd_check.c - mla check: random problems against the oracle.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "cli_number.h"
#include "gpu_problem.h"
#include "random_case.h"
#include "terminal.h"
#include "verify.h"

static const char help[] =
    "Usage: mla check [options]\n"
    "\n"
    "Runs random problems (dtypes, 8-bit caches, NZ layout, head counts, page sizes, lengths, ragged batches, causal,\n"
    "windows, lists, masks, sinks, two segments, rounded probabilities ...) for some seconds. Each result must lie within\n"
    "an error bound that is computed for every element with the oracle (fp64), and must have the same bits with 1 and\n"
    "with 3 threads. Memory that no query may reach is filled with NaN. The first failure ends the run with exit status\n"
    "1 and the command that reproduces it.\n"
    "\n"
    "Options:\n"
    "  -s, --seconds N   how long to go on (default: 10)\n"
    "  -n, --cases N     stop after N problems, whatever the time\n"
    "      --seed S      seed of the first problem; the next one is S + 1 (default: from the clock)\n"
    "      --backend B   cpu, or cuda: on the first NVIDIA GPU, twice with the same bits (default: cpu)\n"
    "      --isa NAME    highest instruction set level, as listed by 'mla info' (default: the best usable)\n"
    "      --arith NAME  auto, f32, bf16, bf16x2 or int16: what CPU kernels compute in (default: auto)\n"
    "      --self-test   spoil one value of every result and demand that it is noticed\n"
    "  -v, --verbose     print every problem\n"
    "  -h, --help        show this help\n"
    "\n"
    "Examples:\n"
    "  mla check\n"
    "  mla check --seconds 600 --isa scalar\n"
    "  mla check --seed 4711 --cases 1 --verbose\n";

typedef struct tally {
    int64_t n_passed, n_refused, n_value;
    double worst; /* error / bound */
    uint64_t worst_seed;
    char refusal[256]; /* first sentence of an UNSUPPORTED */
} tally;

typedef enum verdict { VERDICT_PASSED, VERDICT_REFUSED, VERDICT_FAILED, VERDICT_ERROR } verdict;

static mla_backend backend = MLA_BACKEND_CPU;

/* Computes the problem, and says in what. */
static mla_status attend(const mla_problem *problem, int32_t n_thread, mla_arithmetic *arithmetic)
{
    if (backend == MLA_BACKEND_CUDA) {
        return gpu_attention(problem, arithmetic);
    }
    mla_plan_options options = {.backend = MLA_BACKEND_CPU, .n_thread = n_thread};
    *arithmetic = cli_arithmetic_of(problem, &options);
    return mla_attention(problem, &options);
}

/* Adds three bounds' worth to one element of o: the smallest fault that must be noticed wherever the element's error
 * lies in its bound. false: there is no element. */
static bool spoil(random_case *c, const verify_truth *truth, number_rng *rng)
{
    const mla_tensor *o = &c->problem.o;
    int64_t n_pair = truth->n_row * truth->n_head;
    if (n_pair == 0) {
        return false;
    }
    int64_t pair = number_range(rng, 0, n_pair - 1), column = number_range(rng, 0, truth->d_v - 1);
    int64_t at = pair * truth->d_v + column;
    verify_bound bound = verify_bound_of(truth, pair / truth->n_head, pair % truth->n_head, column, o->dtype, false);
    float fault = fmaxf((float)(3 * (bound.arithmetic + bound.output)),
                        1e-7f); /* a row without keys has bound 0; 1e-7 survives in fp16 */
    number_store(o->data, o->dtype, at, number_load(o->data, o->dtype, at) + fault);
    return true;
}

/* Runs one case; on failure `why` is the sentence. */
static verdict run_case(random_case *c, uint64_t seed, bool self_test, tally *t, char *why, size_t why_size)
{
    mla_problem again = c->problem;
    again.o.data = cli_alloc(c->o_bytes, 1);
    again.lse.data = cli_alloc(c->lse_bytes, 1);
    verify_truth truth = {0};
    verify_report report;
    mla_arithmetic arithmetic = MLA_ARITHMETIC_AUTO;
    verdict result = VERDICT_FAILED;
    mla_status status = MLA_STATUS_OUT_OF_MEMORY;
    if (again.o.data != NULL && again.lse.data != NULL) {
        status = attend(&c->problem, 1, &arithmetic);
    }
    if (status == MLA_STATUS_UNSUPPORTED) {
        snprintf(t->refusal, sizeof t->refusal, "%s", mla_last_error());
        result = VERDICT_REFUSED;
        goto done;
    }
    if (status != MLA_STATUS_OK) {
        snprintf(why, why_size, "the library refuses it: %s (%s)", mla_last_error(), mla_status_name(status));
        result = status == MLA_STATUS_OUT_OF_MEMORY ? VERDICT_ERROR : VERDICT_FAILED;
        goto done;
    }
    status = attend(&again, 3, &arithmetic);
    if (status != MLA_STATUS_OK) {
        snprintf(why, why_size, "the library refuses it the second time: %s", mla_last_error());
        goto done;
    }
    if (memcmp(again.o.data, c->problem.o.data, c->o_bytes) != 0 ||
        memcmp(again.lse.data, c->problem.lse.data, c->lse_bytes) != 0) {
        snprintf(why, why_size, "%s give different bits",
                 backend == MLA_BACKEND_CUDA ? "two runs on the GPU" : "1 and 3 threads");
        goto done;
    }
    status = verify_prepare(&c->problem, arithmetic, &truth);
    if (status != MLA_STATUS_OK) {
        snprintf(why, why_size, "the oracle refuses it: %s", mla_last_error());
        result = VERDICT_ERROR;
        goto done;
    }
    bool spoiled = self_test && spoil(c, &truth, &(number_rng){seed});
    verify_compare(&truth, &c->problem.o, &c->problem.lse, false, &report);
    t->n_value += report.n_value;
    if (report.passed == spoiled) {
        snprintf(why, why_size, spoiled ? "a spoiled value went unnoticed; %s" : "%s", report.sentence);
        goto done;
    }
    if (report.worst > t->worst && !spoiled) {
        t->worst = report.worst;
        t->worst_seed = seed;
    }
    result = VERDICT_PASSED;
done:
    verify_release(&truth);
    free(again.o.data);
    free(again.lse.data);
    return result;
}

static int report_failure(uint64_t seed, const random_case *c, const char *why, const char *isa, const char *arith,
                          bool self_test)
{
    progress_clear();
    print_verdict("seed", false, "%" PRIu64 ": %s", seed, why);
    print_fact("problem", "%s", c->description);
    print_fact("reproduce", "mla check --seed %" PRIu64 " --cases 1%s%s%s%s%s%s", seed,
               backend == MLA_BACKEND_CUDA ? " --backend cuda" : "", isa != NULL ? " --isa " : "",
               isa != NULL ? isa : "", arith != NULL ? " --arith " : "", arith != NULL ? arith : "",
               self_test ? " --self-test" : "");
    return CLI_FAILED;
}

static int check(double seconds, int64_t n_case, uint64_t seed, const char *isa, const char *arith, bool self_test,
                 bool verbose)
{
    tally t = {0};
    double begin = cli_now();
    int64_t done = 0;
    char text[2][32];
    for (; done < n_case && (cli_now() - begin < seconds); done++, seed++) {
        random_case c;
        char why[512];
        if (!random_case_make(seed, &c)) {
            return cli_fail("not enough memory for the problem of seed %" PRIu64, seed);
        }
        verdict v = run_case(&c, seed, self_test, &t, why, sizeof why);
        if (v == VERDICT_FAILED || v == VERDICT_ERROR) {
            int code = report_failure(seed, &c, why, isa, arith, self_test);
            random_case_release(&c);
            return v == VERDICT_ERROR ? CLI_USAGE : code;
        }
        t.n_passed += v == VERDICT_PASSED;
        t.n_refused += v == VERDICT_REFUSED;
        if (verbose) {
            printf("  %s%" PRIu64 "%s %s %s\n", style(STYLE_FAINT), seed, style(STYLE_PLAIN),
                   v == VERDICT_PASSED ? "passed" : "refused", c.description);
        }
        random_case_release(&c);
        double fraction = isfinite(seconds) ? (cli_now() - begin) / seconds : (double)done / (double)n_case;
        progress(fraction, "%" PRId64 " problems, arithmetic uses at most %.1f %% of its bound", done + 1,
                 100 * t.worst);
    }
    progress_clear();
    print_verdict("problems", true, "%s %s%s, seeds %" PRIu64 " to %" PRIu64 ", %s kernels",
                  text_count(t.n_passed, text[0]), self_test ? "spoiled and noticed" : "passed",
                  t.n_passed > 0 ? "" : " (nothing was run)", seed - (uint64_t)done, done > 0 ? seed - 1 : seed,
                  backend == MLA_BACKEND_CUDA ? "CUDA" : cli_selected_isa());
    if (!self_test) {
        print_fact("values", "%s: arithmetic uses at most %.1f %% of its bound (seed %" PRIu64 ")",
                   text_count(t.n_value, text[1]), 100 * t.worst, t.worst_seed);
    }
    if (t.n_refused > 0) {
        print_fact("refused", "%" PRId64 " as unsupported, for instance: %s", t.n_refused, t.refusal);
    }
    return t.n_passed > 0 || n_case == 0 ? CLI_OK : CLI_USAGE;
}

static bool parse_backend(const char *word)
{
    if (!cli_parse_backend(word, &backend)) {
        return false;
    }
    if (backend == MLA_BACKEND_REF) {
        cli_fail("--backend = 'ref' is what the others are checked against");
        return false;
    }
    return true;
}

static int run(int argc, char **argv)
{
    enum { OPT_SEED = 256, OPT_BACKEND, OPT_ISA, OPT_ARITH, OPT_SELF_TEST };
    static const struct option options[] = {{"seconds", required_argument, NULL, 's'},
                                            {"cases", required_argument, NULL, 'n'},
                                            {"seed", required_argument, NULL, OPT_SEED},
                                            {"backend", required_argument, NULL, OPT_BACKEND},
                                            {"isa", required_argument, NULL, OPT_ISA},
                                            {"arith", required_argument, NULL, OPT_ARITH},
                                            {"self-test", no_argument, NULL, OPT_SELF_TEST},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    double seconds = 10;
    bool seconds_given = false, self_test = false, verbose = false;
    int64_t n_case = INT64_MAX;
    uint64_t seed = (uint64_t)time(NULL) % 1000000 * 1000; /* short enough to type */
    const char *isa = NULL, *arith = NULL;
    for (int c; (c = cli_next_option(argc, argv, ":hs:n:v", options)) != -1;) {
        bool good = true;
        switch (c) {
        case 's':
            good = cli_parse_double("--seconds", optarg, 0.001, 1e9, &seconds);
            seconds_given = true;
            break;
        case 'n': good = cli_parse_int("--cases", optarg, 1, INT64_MAX, &n_case); break;
        case OPT_SEED: good = cli_parse_u64("--seed", optarg, &seed); break;
        case OPT_BACKEND: good = parse_backend(optarg); break;
        case OPT_ISA: isa = optarg; break;
        case OPT_ARITH: arith = optarg; break;
        case OPT_SELF_TEST: self_test = true; break;
        case 'v': verbose = true; break;
        case 'h': return CLI_OK;
        default: good = false; break;
        }
        if (!good) {
            return CLI_USAGE;
        }
    }
    if (optind != argc) {
        return cli_fail("'%s' is one argument too many; see 'mla check --help'", argv[optind]);
    }
    if (!cli_apply_level(isa, arith)) {
        return CLI_USAGE;
    }
    if (n_case != INT64_MAX && !seconds_given) {
        seconds = INFINITY;
    }
    return check(seconds, n_case, seed, isa, arith, self_test, verbose);
}

const cli_command cli_check = {"check", "compare random problems with the oracle for some seconds", help, run};
