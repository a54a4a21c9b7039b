/*
 * checkkernel.c - runs the tests, each in a process of its own, and counts.
 *
 *     checkkernel                     every test, at every ISA level this machine can run
 *     checkkernel --test attention    tests whose name contains the word; or one of them: --test plan/,kernel/
 *     checkkernel --self-test         plants known bugs and demands that each is caught
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/plan.h"
#include "cpu/kernels.h"
#include "subject_cuda.h"

double ck_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- inside a test ----------------------------------------------------------------------------------------------- */

enum { EXIT_PASSED = 0, EXIT_FAILED = 81, EXIT_SKIPPED = 82 };

#define TEST_TIMEOUT_SECONDS 600

const ck_test *ck_test_now;

static char context[256];
static int report_fd = -1; /* where the sentence goes */

static void say(const char *text)
{
    size_t n = strlen(text);
    while (n > 0) {
        ssize_t written = write(report_fd, text, n);
        if (written <= 0) {
            return;
        }
        text += written;
        n -= (size_t)written;
    }
}

void ck_context(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
}

static void end_test(int code, const char *format, va_list args)
{
    char sentence[512], text[1024];
    vsnprintf(sentence, sizeof sentence, format, args);
    snprintf(text, sizeof text, "%s%s%s", context, context[0] ? ": " : "", sentence);
    say(text);
    _exit(code);
}

void ck_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    end_test(EXIT_FAILED, format, args);
    va_end(args);
    abort(); /* not reached */
}

void ck_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    end_test(EXIT_SKIPPED, format, args);
    va_end(args);
    abort(); /* not reached */
}

static void on_crash(int signal_number, siginfo_t *info, void *machine)
{
    (void)machine;
    char text[512];
    const char *where = ck_explain_address(info->si_addr);
    snprintf(text, sizeof text, "%s%s%s at %p: %s", context, context[0] ? ": " : "", strsignal(signal_number),
             info->si_addr, where ? where : "none of the test's buffers");
    say(text);
    _exit(EXIT_FAILED);
}

static void on_timeout(int signal_number)
{
    (void)signal_number;
    say(context);
    say(" still running after the time limit");
    _exit(EXIT_FAILED);
}

static void run_child(const ck_test *test, const ck_subject *subject)
{
    static char stack[64 * 1024];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    struct sigaction crash = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND};
    sigaction(SIGSEGV, &crash, NULL);
    sigaction(SIGBUS, &crash, NULL);
    sigaction(SIGFPE, &crash, NULL);
    sigaction(SIGILL, &crash, NULL);
    sigaction(SIGABRT, &crash, NULL);
    signal(SIGALRM, on_timeout);
    alarm(TEST_TIMEOUT_SECONDS);
    ck_subject_now = subject;
    ck_test_now = test;
    const char *why;
    if (subject->backend == MLA_BACKEND_CUDA && !ck_cuda_device(&why)) {
        ck_skip("%s", why);
    }
    if (subject->isa && mla_set_isa(subject->isa) != MLA_STATUS_OK) {
        ck_fail("mla_set_isa: %s", mla_last_error());
    }
    test->run();
    char text[128] = "";
    if (ck_worst_ratio > 0) {
        snprintf(text, sizeof text, "worst error/bound %.3f, loose bounds %.1f %%", ck_worst_ratio,
                 ck_n_judged ? 100 * (double)ck_n_loose / (double)ck_n_judged : 0.0);
    }
    if (ck_n_loose * 4 > ck_n_judged) {
        ck_fail("%lld of %lld bounds are wider than a hundredth of what they are about: the test says little",
                (long long)ck_n_loose, (long long)ck_n_judged);
    }
    say(text);
    _exit(EXIT_PASSED);
}

/* ---- around a test ----------------------------------------------------------------------------------------------- */

typedef struct outcome {
    int code;
    char text[1100];
    double seconds;
} outcome;

static outcome run_test(const ck_test *test, const ck_subject *subject)
{
    outcome result = {.code = EXIT_FAILED};
    double start = ck_clock();
    int ends[2];
    if (pipe(ends) != 0) {
        snprintf(result.text, sizeof result.text, "pipe: %s", strerror(errno));
        return result;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) {
        snprintf(result.text, sizeof result.text, "fork: %s", strerror(errno));
        return result;
    }
    if (child == 0) {
        close(ends[0]);
        report_fd = ends[1];
        run_child(test, subject);
    }
    close(ends[1]);
    size_t n = 0;
    ssize_t got;
    while (n < sizeof result.text - 1 && (got = read(ends[0], result.text + n, sizeof result.text - 1 - n)) > 0) {
        n += (size_t)got;
    }
    result.text[n] = 0;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    result.seconds = ck_clock() - start;
    if (WIFEXITED(status)) {
        result.code = WEXITSTATUS(status);
    } else {
        snprintf(result.text + n, sizeof result.text - n, "%sdied of signal %d", n ? ", " : "", WTERMSIG(status));
    }
    if (result.code != EXIT_PASSED && result.code != EXIT_SKIPPED && n == 0) {
        snprintf(result.text, sizeof result.text, "ended with exit code %d", result.code);
    }
    return result;
}

/* ---- all tests --------------------------------------------------------------------------------------------------- */

typedef struct options {
    const char *test, *isa, *backend;
    mla_arithmetic arithmetic;
    bool list, self_test;
} options;

static int n_passed, n_failed, n_skipped;

/* Does the name contain one of the wanted words? */
static bool is_wanted(const options *wanted, const char *name)
{
    size_t length;
    for (const char *word = wanted->test; word; word = word[length] ? word + length + 1 : NULL) {
        length = strcspn(word, ",");
        if (length > 0 && memmem(name, strlen(name), word, length)) {
            return true;
        }
    }
    return !wanted->test;
}

static void count(const char *name, const char *subject, const outcome *o)
{
    bool failed = o->code != EXIT_PASSED && o->code != EXIT_SKIPPED;
    const char *verdict = failed ? "FAILED " : o->code == EXIT_SKIPPED ? "skipped" : "ok     ";
    printf("%s %s [%s]  %.1f s%s%s\n", verdict, name, subject, o->seconds, o->text[0] ? "  " : "", o->text);
    fflush(stdout);
    n_passed += o->code == EXIT_PASSED;
    n_skipped += o->code == EXIT_SKIPPED;
    n_failed += failed;
}

static void skip_level(const char *isa, const char *reason)
{
    outcome o = {.code = EXIT_SKIPPED};
    snprintf(o.text, sizeof o.text, "%s", reason);
    char subject[64];
    snprintf(subject, sizeof subject, "cpu/%s", isa);
    count("all tests of the level", subject, &o);
}

/* Behind the level in a subject's name; of AUTO, nothing. */
static const struct {
    const char *word;
    mla_arithmetic arithmetic;
} arithmetics[] = {{"f32", MLA_ARITHMETIC_F32},
                   {"bf16", MLA_ARITHMETIC_BF16},
                   {"bf16x2", MLA_ARITHMETIC_BF16X2},
                   {"int16", MLA_ARITHMETIC_INT16}};
enum { N_ARITHMETIC = sizeof arithmetics / sizeof *arithmetics };

static const char *arithmetic_name(mla_arithmetic arithmetic)
{
    static char name[16];
    name[0] = 0;
    for (int i = 0; i < N_ARITHMETIC; i++) {
        if (arithmetics[i].arithmetic == arithmetic) {
            snprintf(name, sizeof name, "/%s", arithmetics[i].word);
        }
    }
    return name;
}

static bool choose_arithmetic(const char *word, options *wanted)
{
    for (int i = 0; i < N_ARITHMETIC; i++) {
        if (strcmp(arithmetics[i].word, word) == 0) {
            wanted->arithmetic = arithmetics[i].arithmetic;
        }
    }
    return wanted->arithmetic != MLA_ARITHMETIC_AUTO;
}

#define MAX_SUBJECT 16
static ck_subject subjects[MAX_SUBJECT];
static char subject_names[MAX_SUBJECT][32];
static size_t n_subject;

static void add_subject(mla_backend backend, const char *isa, mla_arithmetic arithmetic)
{
    if (n_subject == MAX_SUBJECT) {
        return;
    }
    static const char *const names[] =
        {[MLA_BACKEND_CPU] = "cpu", [MLA_BACKEND_REF] = "ref", [MLA_BACKEND_CUDA] = "cuda"};
    snprintf(subject_names[n_subject], sizeof subject_names[0], "%s%s%s%s", names[backend], isa ? "/" : "",
             isa ? isa : "", arithmetic_name(arithmetic));
    subjects[n_subject] =
        (ck_subject){.name = subject_names[n_subject], .backend = backend, .isa = isa, .arithmetic = arithmetic};
    n_subject++;
}

static bool differs_in_fixed_point_only(const char *isa, const char *below)
{
    const mla_cpu_kernels *kernels = mla_cpu_kernels_of(isa), *base = below ? mla_cpu_kernels_of(below) : NULL;
    if (!kernels || !base || kernels->fixed == base->fixed) {
        return false;
    }
    mla_cpu_kernels other = *base;
    other.isa = kernels->isa;
    other.fixed = kernels->fixed;
    return memcmp(&other, kernels, sizeof other) == 0;
}

/* The ISA levels from low to high; false when the wanted one does not exist or cannot run here. */
static bool find_subjects(const options *wanted)
{
    if (wanted->backend && strcmp(wanted->backend, "ref") == 0) {
        add_subject(MLA_BACKEND_REF, NULL, MLA_ARITHMETIC_AUTO);
        return true;
    }
    if (wanted->backend && strcmp(wanted->backend, "cuda") == 0) {
        add_subject(MLA_BACKEND_CUDA, NULL, MLA_ARITHMETIC_AUTO);
        return true;
    }
    mla_isa_info info[MAX_SUBJECT];
    size_t n = mla_isa_list(info, MAX_SUBJECT);
    bool found = wanted->isa == NULL;
    for (size_t i = 0; i < n && i < MAX_SUBJECT; i++) {
        if (wanted->isa && strcmp(wanted->isa, info[i].name) != 0) {
            continue;
        }
        found = found || info[i].usable;
        if (info[i].usable) {
            if (mla_cpu_kernels_of(info[i].name)->bf16.qk && wanted->arithmetic == MLA_ARITHMETIC_AUTO) {
                /* every problem that suits it, not only those of AUTO */
                add_subject(MLA_BACKEND_CPU, info[i].name, MLA_ARITHMETIC_BF16);
                add_subject(MLA_BACKEND_CPU, info[i].name, MLA_ARITHMETIC_BF16X2);
            }
            add_subject(MLA_BACKEND_CPU, info[i].name, wanted->arithmetic);
            subjects[n_subject - 1].fixed_only =
                !wanted->isa && differs_in_fixed_point_only(info[i].name, i > 0 ? info[i - 1].name : NULL);
        } else {
            skip_level(info[i].name, "this machine cannot run it");
        }
    }
    return found && n_subject > 0;
}

static bool level_runs(const char *isa)
{
    for (size_t i = 0; i < n_subject; i++) {
        if (subjects[i].isa && strcmp(subjects[i].isa, isa) == 0) {
            return true;
        }
    }
    return false;
}

static int run_all(const options *wanted)
{
    if (!find_subjects(wanted)) {
        printf("no ISA level %s that this machine can run\n", wanted->isa ? wanted->isa : "");
        n_failed++;
    }
    int n_run = 0;
    for (size_t i = 0; ck_test_at(i); i++) {
        const ck_test *test = ck_test_at(i);
        if (!is_wanted(wanted, test->name)) {
            continue;
        }
        if (wanted->arithmetic != MLA_ARITHMETIC_AUTO &&
            (test->library || test->once || strncmp(test->name, "case/", strlen("case/")) == 0)) {
            continue; /* about something else, or with results that are stated to the accuracy of fp32 */
        }
        bool cuda = n_subject > 0 && subjects[0].backend == MLA_BACKEND_CUDA;
        if (cuda ? test->host : test->cuda) {
            continue;
        }
        /* what does not depend on the level is tested once, at the highest */
        if (test->isa && !level_runs(test->isa) && !wanted->isa && !wanted->backend) {
            outcome o = {.code = EXIT_SKIPPED, .text = "this machine cannot run it"};
            count(test->name, test->isa, &o);
            n_run++;
        }
        for (size_t x = test->once && n_subject ? n_subject - 1 : 0; x < n_subject; x++) {
            if (test->isa && (!subjects[x].isa || strcmp(test->isa, subjects[x].isa) != 0)) {
                continue;
            }
            if (subjects[x].arithmetic != MLA_ARITHMETIC_AUTO &&
                (test->library ||
                 (subjects[x].arithmetic != MLA_ARITHMETIC_INT16 && strncmp(test->name, "fixed/", 6) == 0))) {
                continue; /* about something else */
            }
            bool about_fixed = wanted->arithmetic == MLA_ARITHMETIC_INT16 || strncmp(test->name, "fixed/", 6) == 0;
            if (subjects[x].fixed_only && !test->isa && !about_fixed) {
                continue; /* the same kernels have run it */
            }
            outcome o = run_test(test, &subjects[x]);
            count(test->name, subjects[x].name, &o);
            n_run++;
        }
    }
    if (n_run == 0) {
        printf("no test has '%s' in its name\n", wanted->test ? wanted->test : "");
        n_failed++;
    }
    printf("seed %llu\n", (unsigned long long)ck_seed);
    printf("%d passed, %d failed, %d skipped\n", n_passed, n_failed, n_skipped);
    return n_failed ? 1 : 0;
}

/* ---- the self-test ----------------------------------------------------------------------------------------------- */

/* The test of that name; a name that ends in _ stands for the first kernel of any level that this machine can run. */
static const ck_test *test_named(const char *name)
{
    bool prefix = name[strlen(name) - 1] == '_';
    for (size_t i = 0; ck_test_at(i); i++) {
        const ck_test *test = ck_test_at(i);
        bool same = prefix ? strncmp(test->name, name, strlen(name)) == 0 : strcmp(test->name, name) == 0;
        if (same && (!test->isa || mla_set_isa(test->isa) == MLA_STATUS_OK)) {
            return ck_test_at(i);
        }
    }
    return NULL;
}

/* A bug is caught when the test that is named for it fails; the same attention without a bug must pass them all. */
static int self_test(const options *wanted)
{
    ck_subject healthy = {.name = "no bug", .broken = true};
    for (size_t i = 0; ck_test_at(i); i++) {
        const ck_test *test = ck_test_at(i);
        if (test->library || test->cuda || !is_wanted(wanted, test->name)) {
            continue;
        }
        outcome o = run_test(test, &healthy);
        count(test->name, healthy.name, &o);
    }
    for (uint32_t bug = 1; ck_bug_at(bug); bug++) {
        const ck_bug_info *info = ck_bug_at(bug);
        const ck_test *test = test_named(info->caught_by);
        if (!is_wanted(wanted, info->caught_by)) {
            continue;
        }
        ck_subject subject = {.name = info->name, .broken = true, .bug = bug};
        outcome o = {.code = EXIT_PASSED};
        if (test) {
            o = run_test(test, &subject);
        } else if (strncmp(info->caught_by, "kernel/", 7) == 0) {
            printf("skipped bug: %s\n        %s: no such kernel that this machine can run\n", info->name,
                   info->caught_by);
            n_skipped++;
            continue;
        }
        bool caught = o.code == EXIT_FAILED;
        printf("%s bug: %s\n        %s [%s]  %.1f s  %s\n", caught ? "caught " : "MISSED ", info->name,
               test ? "by" : "no such test:", info->caught_by, o.seconds, o.text);
        fflush(stdout);
        n_passed += caught;
        n_failed += !caught;
    }
    printf("seed %llu\n", (unsigned long long)ck_seed);
    printf("%d passed, %d failed, %d skipped\n", n_passed, n_failed, n_skipped);
    return n_failed ? 1 : 0;
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

static const char usage[] =
    "usage: checkkernel [options]\n"
    "  --test WORDS     only tests whose name contains one of WORDS, separated by commas\n"
    "  --isa LEVEL      only this ISA level (scalar, avx2, ...)\n"
    "  --arith NAME     f32, bf16, bf16x2 or int16: what CPU kernels compute in, for the tests that do not say;\n"
    "                   those of single kernels and of cases with known results are left out\n"
    "  --backend NAME   cpu (default); cuda: on the first GPU; ref: the oracle against itself, to\n"
    "                   test the tests\n"
    "  --seed N         seed of all random data (default: 1)\n"
    "  --seconds N      how long the tests of random problems run (default: 4)\n"
    "  --list           names of all tests of the backend\n"
    "  --self-test      plant known bugs and demand that each is caught\n";

int main(int argc, char **argv)
{
    options wanted = {0};
    ck_seed = 1;
    ck_seconds = 4;
    mla_plan_worker_cost = 1; /* small problems are shared out too */
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--list") == 0) {
            wanted.list = true;
        } else if (strcmp(argv[i], "--self-test") == 0) {
            wanted.self_test = true;
        } else if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return 0;
        } else if (value && strcmp(argv[i], "--test") == 0) {
            wanted.test = argv[++i];
        } else if (value && strcmp(argv[i], "--isa") == 0) {
            wanted.isa = argv[++i];
        } else if (value && strcmp(argv[i], "--arith") == 0 && choose_arithmetic(value, &wanted)) {
            i++;
        } else if (value && strcmp(argv[i], "--backend") == 0) {
            wanted.backend = argv[++i];
        } else if (value && strcmp(argv[i], "--seed") == 0) {
            ck_seed = strtoull(argv[++i], NULL, 0);
        } else if (value && strcmp(argv[i], "--seconds") == 0) {
            ck_seconds = strtod(argv[++i], NULL);
        } else {
            fprintf(stderr, "checkkernel: cannot use '%s'\n%s", argv[i], usage);
            return 2;
        }
    }
    if (wanted.backend && strcmp(wanted.backend, "ref") != 0 && strcmp(wanted.backend, "cpu") != 0 &&
        strcmp(wanted.backend, "cuda") != 0) {
        fprintf(stderr, "checkkernel: there is no backend '%s'\n", wanted.backend);
        return 2;
    }
    if (wanted.list) {
        bool cuda = wanted.backend && strcmp(wanted.backend, "cuda") == 0;
        for (size_t i = 0; ck_test_at(i); i++) {
            if (!(cuda ? ck_test_at(i)->host : ck_test_at(i)->cuda)) {
                puts(ck_test_at(i)->name);
            }
        }
        return 0;
    }
    printf("seed %llu\n", (unsigned long long)ck_seed);
    return wanted.self_test ? self_test(&wanted) : run_all(&wanted);
}
