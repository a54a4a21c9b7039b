/*
 * environment.h - what an environment variable says, kept to be compared with known words and quoted in sentences.
 */
#ifndef MLA_CORE_ENVIRONMENT_H
#define MLA_CORE_ENVIRONMENT_H

enum { MLA_WORD_BYTES = 64 };

/* The variable's value; "" when it is not set. A value that does not fit ends in "...", so that a sentence that quotes
 * it shows that there was more, and it equals no word that means something. */
void mla_environment_word(const char *name, char word[MLA_WORD_BYTES]);

#endif
