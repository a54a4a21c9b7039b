/*
 * sized.h - public structs that carry their size, so that a caller compiled against another header is noticed. The size
 * is the first member, a size_t.
 */
#ifndef MLA_CORE_SIZED_H
#define MLA_CORE_SIZED_H

#include <stdbool.h>

#include "status.h"

/* Clears a struct of `given` bytes and stores that size, as far as there is room. True when it is this library's
 * struct, of `own` bytes, whose defaults may now be set: the fields of another one lie elsewhere, and the check refuses
 * it. */
bool mla_sized_init(void *sized, size_t given, size_t own);

/* Refuses a size that is not `own`. name: of the argument; init: of the function that sets the size; header: of
 * both. */
mla_status mla_sized_check(size_t given, size_t own, const char *name, const char *init, const char *header);

#endif
