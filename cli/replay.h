/*
 * replay.h - runs a captured call, times it, verifies it and tells: the body of `mla run`, and the first half of `mla
 * demo`.
 */
#ifndef MLA_CLI_REPLAY_H
#define MLA_CLI_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "mla/mla.h"

typedef struct replay_options {
    bool check;
    bool show_file;       /* begin with the name of the file */
    const char *out_path; /* NULL: write nothing */
    mla_backend backend;
    int32_t n_thread; /* 0: OpenMP's choice */
} replay_options;

/* CLI_OK, CLI_FAILED after a mismatch, or CLI_USAGE. */
int replay_capture(const char *path, const replay_options *options);

#endif
