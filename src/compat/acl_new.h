/*
 * acl_new.h - memory that C++ clients release with delete[].
 */
#ifndef MLA_COMPAT_ACL_NEW_H
#define MLA_COMPAT_ACL_NEW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As new int64_t[n]; NULL without memory. */
int64_t *compat_new_dims(size_t n);

#ifdef __cplusplus
}
#endif

#endif
