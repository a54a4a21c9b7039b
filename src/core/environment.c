/*
 * environment.c - see environment.h.
 */
#include "environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mla_environment_word(const char *name, char word[MLA_WORD_BYTES])
{
    const char *value = getenv(name);
    int length = snprintf(word, MLA_WORD_BYTES, "%s", value ? value : "");
    if (length >= MLA_WORD_BYTES) {
        memcpy(word + MLA_WORD_BYTES - 4, "...", 4);
    }
}
