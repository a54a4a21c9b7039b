/*
 * arithmetic.c - what a problem is computed in on the CPU.
 */
#include "arithmetic.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char environment[32]; /* MLA_ARITH when it was first looked at */

static void look(void)
{
    const char *word = getenv("MLA_ARITH");
    snprintf(environment, sizeof environment, "%s", word ? word : "");
}

mla_status mla_arithmetic_wanted(const mla_problem *problem, mla_arithmetic *wanted)
{
    static const struct {
        const char *word;
        mla_arithmetic arithmetic;
    } known[] = {{"auto", MLA_ARITHMETIC_AUTO},
                 {"f32", MLA_ARITHMETIC_F32},
                 {"bf16", MLA_ARITHMETIC_BF16},
                 {"int16", MLA_ARITHMETIC_INT16}};
    *wanted = problem->arithmetic;
    if (*wanted != MLA_ARITHMETIC_AUTO) {
        return MLA_STATUS_OK;
    }
    pthread_once(&once, look);
    if (!environment[0]) {
        return MLA_STATUS_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(environment, known[i].word) == 0) {
            *wanted = known[i].arithmetic;
            return MLA_STATUS_OK;
        }
    }
    return mla_fail(MLA_STATUS_BAD_VALUE, "MLA_ARITH = \"%s\" must be auto, f32, bf16 or int16", environment);
}
