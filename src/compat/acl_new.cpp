/*
 * acl_new.cpp - memory that C++ clients release with delete[].
 */
#include "acl_new.h"

#include <new>

int64_t *compat_new_dims(size_t n)
{
    return new (std::nothrow) int64_t[n];
}
