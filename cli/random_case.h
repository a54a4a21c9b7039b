/*
 * random_case.h - random problems, drawn to hurt: edge lengths, odd page sizes, garbage where nobody may look.
 */
#ifndef MLA_CLI_RANDOM_CASE_H
#define MLA_CLI_RANDOM_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mla/mla.h"

#define RANDOM_CASE_MAX_OWNED 48

typedef struct random_case {
    mla_problem problem; /* outputs filled with NaN */
    size_t o_bytes, lse_bytes;
    void *owned[RANDOM_CASE_MAX_OWNED];
    size_t n_owned;
    char description[640]; /* everything that matters, on one line */
} random_case;

/* The same seed gives the same problem on every machine. false: no memory. Every problem that it makes is valid. */
bool random_case_make(uint64_t seed, random_case *c);
void random_case_release(random_case *c);

#endif
