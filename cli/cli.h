/*
 * cli.h - what every subcommand of `mla` shares: exit codes, messages, option parsing.
 */
#ifndef MLA_CLI_H
#define MLA_CLI_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mla/mla.h"

/* Exit status of the program. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1, /* the work was done and the answer is bad: a mismatch */
    CLI_USAGE = 2   /* the work could not be done: a wrong command line, an unusable file, no memory */
};

typedef struct cli_command {
    const char *name;
    const char *summary; /* one line for `mla --help` */
    const char *help;    /* whole text of `mla <name> --help` */
    int (*run)(int argc, char **argv);
} cli_command;

extern const cli_command cli_info;
extern const cli_command cli_demo;
extern const cli_command cli_run;
extern const cli_command cli_check;
extern const cli_command cli_bench;

/* The running subcommand, for messages and --help. */
extern const cli_command *cli_current;

/* Prints "mla run: <message>" on stderr and returns CLI_USAGE, so that a command can `return cli_fail(...)`. */
__attribute__((format(printf, 1, 2))) int cli_fail(const char *format, ...);

/* cli_fail() with what the library said: "mla run: <doing>: <mla_last_error()>", without <doing> where the library's
 * sentence begins with it. */
int cli_fail_status(const char *doing, mla_status status);

/* Allocates zeroed memory, aligned to 64 bytes; NULL when count * size overflows or memory is short. free() it. */
void *cli_alloc(size_t count, size_t size);

/* Can a file of this name be written? Asked before long work; leaves nothing behind and changes nothing. false with a
 * sentence. */
bool cli_can_write(const char *path, char *error, size_t error_size);

/* Seconds on a clock that only goes forward. */
double cli_now(void);

/* ---- options ----------------------------------------------------------------------------------------------------- */

/*
 * getopt_long() that says in one sentence what is wrong. Returns the option's character, -1 at the end, '?' after an
 * error (already reported). letters begin with ':' and contain 'h'; --help is handled here: it prints the help and
 * returns 'h'; callers then return CLI_OK.
 */
int cli_next_option(int argc, char **argv, const char *letters, const struct option *options);

/* Whole-string numbers within [low, high]; otherwise a sentence on stderr that names the option, and false. */
bool cli_parse_int(const char *option, const char *text, int64_t low, int64_t high, int64_t *value);
bool cli_parse_u64(const char *option, const char *text, uint64_t *value);
bool cli_parse_double(const char *option, const char *text, double low, double high, double *value);

/* "1,2,8" into values; *count is how many. */
bool cli_parse_int_list(const char *option, const char *text, int64_t low, int64_t high, int64_t *value,
                        size_t capacity, size_t *count);

/* "cpu", "cuda", "ref" or "auto" */
bool cli_parse_backend(const char *text, mla_backend *backend);

/* Applies --isa and --arith; NULL leaves the choice to the library. Also makes sure that MLA_ISA names a usable level and
 * MLA_ARITH an arithmetic. */
bool cli_apply_level(const char *isa, const char *arith);

/* The level whose kernels are in use, "avx2". */
const char *cli_selected_isa(void);

/* What the library computes a problem in; F32 when it refuses it. */
mla_arithmetic cli_arithmetic_of(const mla_problem *problem, const mla_plan_options *options);

/* "f32", "bf16x2", ...: the words of --arith, and "f16", which a GPU's plan may say. */
const char *cli_arithmetic_name(mla_arithmetic arithmetic);

/* Prints the fact "backend": who computes, in which arithmetic, with how many workers of that kind ("thread"). */
void cli_print_backend(const mla_plan_info *info, int32_t n_worker, const char *worker);

/* The machine's load average over a minute; < 0: unknown. */
double cli_load(void);

/* Figures are only as quiet as the machine: prints a note when it is busy. */
void cli_note_load(void);

#endif
