/*
 * sized.c - public structs that carry their size.
 */
#include "sized.h"

#include <string.h>

bool mla_sized_init(void *sized, size_t given, size_t own)
{
    if (sized == NULL) {
        return false;
    }
    memset(sized, 0, given);
    if (given >= sizeof given) {
        memcpy(sized, &given, sizeof given);
    }
    return given == own;
}

mla_status mla_sized_check(size_t given, size_t own, const char *name, const char *init, const char *header)
{
    if (given == own) {
        return MLA_STATUS_OK;
    }
    return mla_fail(MLA_STATUS_BAD_VALUE,
                    "%s.struct_size = %zu differs from this library's %zu: it is not set by %s(), or %s is of another "
                    "version",
                    name, given, own, init, header);
}
