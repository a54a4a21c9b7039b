/*
 * cli_support.c - messages, option parsing and the other small things of cli.h.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "terminal.h"

const cli_command *cli_current;

int cli_fail(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    make_printable(text);
    progress_clear();
    fflush(stdout);
    fprintf(stderr, "mla%s%s: %s\n", cli_current != NULL ? " " : "", cli_current != NULL ? cli_current->name : "",
            text);
    return CLI_USAGE;
}

int cli_fail_status(const char *doing, mla_status status)
{
    const char *sentence = mla_last_error();
    bool said = strncmp(sentence, doing, strlen(doing)) == 0; /* "MLA_ISA: MLA_ISA = ..." would say it twice */
    return cli_fail("%s%s%s (%s)", said ? "" : doing, said ? "" : ": ",
                    sentence[0] != '\0' ? sentence : "no sentence given", mla_status_name(status));
}

bool cli_can_write(const char *path, char *error, size_t error_size)
{
    struct stat status;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool good = fd >= 0;
    if (good) {
        close(fd);
        unlink(path);
    } else if (errno == EEXIST) {
        if (stat(path, &status) != 0) {
            good = errno == ENOENT; /* a link to what is not there yet: only writing can tell */
        } else if (S_ISDIR(status.st_mode)) {
            errno = EISDIR;
        } else {
            good = access(path, W_OK) == 0;
        }
    }
    if (!good) {
        snprintf(error, error_size, "cannot write it: %s", strerror(errno));
    }
    return good;
}

void *cli_alloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - 64) {
        return NULL;
    }
    bytes = (bytes + 64) / 64 * 64; /* at least one line, so that NULL always means failure */
    void *memory = aligned_alloc(64, bytes);
    if (memory != NULL) {
        memset(memory, 0, bytes);
    }
    return memory;
}

double cli_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int cli_next_option(int argc, char **argv, const char *letters, const struct option *options)
{
    opterr = 0;
    int c = getopt_long(argc, argv, letters, options, NULL);
    if (c == 'h') {
        fputs(cli_current->help, stdout);
    } else if (c == ':' || c == '?') {
        const char *word = argv[optind - 1];
        char letter[3] = {'-', (char)optopt, '\0'};
        bool is_long = strncmp(word, "--", 2) == 0;
        const char *fault = c == ':' ? "needs a value" : is_long && optopt != 0 ? "takes no value" : "is not known";
        cli_fail("option '%s' %s; see 'mla %s --help'", is_long ? word : letter, fault, cli_current->name);
        c = '?';
    }
    return c;
}

bool cli_parse_int(const char *option, const char *text, int64_t low, int64_t high, int64_t *value)
{
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno == ERANGE || parsed < low || parsed > high) {
        if (high == INT64_MAX || high == INT32_MAX) {
            cli_fail("%s = '%s' must be a whole number, at least %" PRId64, option, text, low);
        } else {
            cli_fail("%s = '%s' must be a whole number from %" PRId64 " to %" PRId64, option, text, low, high);
        }
        return false;
    }
    *value = parsed;
    return true;
}

bool cli_parse_u64(const char *option, const char *text, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long parsed = strtoull(text, &end, 0);
    if (end == text || *end != '\0' || errno == ERANGE || strchr(text, '-') != NULL) {
        cli_fail("%s = '%s' must be a whole number from 0 to 2^64 - 1", option, text);
        return false;
    }
    *value = parsed;
    return true;
}

bool cli_parse_double(const char *option, const char *text, double low, double high, double *value)
{
    char *end;
    double parsed = strtod(text, &end);
    if (end == text || *end != '\0' || !(parsed >= low && parsed <= high)) {
        cli_fail("%s = '%s' must be a number from %g to %g", option, text, low, high);
        return false;
    }
    *value = parsed;
    return true;
}

bool cli_parse_int_list(const char *option, const char *text, int64_t low, int64_t high, int64_t *value,
                        size_t capacity, size_t *count)
{
    *count = 0;
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        long long parsed = strtoll(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || errno == ERANGE || parsed < low || parsed > high) {
            cli_fail("%s = '%s' must be whole numbers from %" PRId64 " to %" PRId64 ", separated by commas", option,
                     text, low, high);
            return false;
        }
        if (*count == capacity) {
            cli_fail("%s = '%s' must not have more than %zu numbers", option, text, capacity);
            return false;
        }
        value[(*count)++] = parsed;
        if (*end == '\0') {
            return true;
        }
        at = end + 1;
    }
}

bool cli_parse_backend(const char *text, mla_backend *backend)
{
    static const struct {
        const char *name;
        mla_backend backend;
    } known[] = {{"auto", MLA_BACKEND_AUTO},
                 {"cpu", MLA_BACKEND_CPU},
                 {"ref", MLA_BACKEND_REF},
                 {"cuda", MLA_BACKEND_CUDA}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(text, known[i].name) == 0) {
            *backend = known[i].backend;
            return true;
        }
    }
    cli_fail("--backend = '%s' must be auto, cpu, cuda or ref", text);
    return false;
}

const char *cli_selected_isa(void)
{
    mla_isa_info info[32];
    size_t count = mla_isa_list(info, 32);
    const char *name = "";
    for (size_t i = 0; i < count && i < 32; i++) {
        if (info[i].selected) {
            name = info[i].name;
        }
    }
    return name;
}

/* Builds a plan without options, which is when the library looks at its environment variables. */
static mla_status probe(void)
{
    static uint16_t row;
    static float out;
    mla_problem p;
    mla_problem_init(&p);
    p.q = mla_tensor_make(&row, MLA_DTYPE_BF16, 3, (int64_t[]){1, 1, 1});
    p.segment[0].k = mla_tensor_make(&row, MLA_DTYPE_BF16, 4, (int64_t[]){1, 1, 1, 1});
    p.d_v = 1;
    p.softmax_scale = 1;
    p.o = mla_tensor_make(&out, MLA_DTYPE_F32, 3, (int64_t[]){1, 1, 1});
    mla_plan *plan;
    mla_status status = mla_plan_build(&p, NULL, &plan);
    if (status == MLA_STATUS_OK) {
        mla_plan_free(plan);
    }
    return status;
}

bool cli_apply_level(const char *isa, const char *arith)
{
    if (arith != NULL && setenv("MLA_ARITH", arith, 1) != 0) {
        cli_fail("not enough memory");
        return false;
    }
    mla_status status = mla_set_isa(isa);
    if (status != MLA_STATUS_OK) {
        cli_fail_status("--isa", status);
        return false;
    }
    status = probe();
    if (status != MLA_STATUS_OK) {
        bool about_arith = strncmp(mla_last_error(), "MLA_ARITH", strlen("MLA_ARITH")) == 0;
        cli_fail_status(!about_arith ? "MLA_ISA" : arith != NULL ? "--arith" : "MLA_ARITH", status);
        return false;
    }
    return true;
}

mla_arithmetic cli_arithmetic_of(const mla_problem *problem, const mla_plan_options *options)
{
    mla_plan *plan;
    mla_plan_info info;
    if (mla_plan_build(problem, options, &plan) != MLA_STATUS_OK) {
        return MLA_ARITHMETIC_F32;
    }
    mla_plan_describe(plan, &info);
    mla_plan_free(plan);
    return info.arithmetic;
}

const char *cli_arithmetic_name(mla_arithmetic arithmetic)
{
    switch (arithmetic) {
    case MLA_ARITHMETIC_AUTO: return "auto";
    case MLA_ARITHMETIC_INT16: return "int16";
    case MLA_ARITHMETIC_F32: return "f32";
    case MLA_ARITHMETIC_BF16: return "bf16";
    case MLA_ARITHMETIC_F16: return "f16";
    case MLA_ARITHMETIC_BF16X2: return "bf16x2";
    }
    return "unknown";
}

void cli_print_backend(const mla_plan_info *info, int32_t n_worker, const char *worker)
{
    char text[32];
    bool oracle = strcmp(info->backend, "ref") == 0; /* fp64, of which mla_arithmetic knows nothing */
    print_fact("backend", "%s%s%s in %s, %d %s%s, workspace %s", info->backend, info->isa[0] != '\0' ? " " : "",
               info->isa, oracle ? "fp64" : cli_arithmetic_name(info->arithmetic), (int)n_worker, worker,
               n_worker == 1 ? "" : "s", text_bytes((double)info->workspace_bytes, text));
}

double cli_load(void)
{
    double load;
    return getloadavg(&load, 1) == 1 ? load : -1;
}

void cli_note_load(void)
{
    double load = cli_load();
    long n_cpu = sysconf(_SC_NPROCESSORS_ONLN); /* the load counts the whole machine's work */
    if (load > 0.5 * (double)n_cpu) {
        print_fact("note",
                   "other work is running here (load %.1f on %ld CPU%s): figures are lower and vary, for "
                   "threads wait for any that lost its CPU; OMP_WAIT_POLICY=passive or --threads 1 spares much of it",
                   load, n_cpu, n_cpu == 1 ? "" : "s");
    }
}
