/*
 * acl_device_cpu.c - the CPU as a device: its memory is the process's own.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "acl_device.h"

/* calloc() rather than aligned_alloc() and memset(): pages that nobody touches then cost nothing. */
static void *allocate(size_t size, void **base)
{
    *base = size <= SIZE_MAX - COMPAT_ALIGN ? calloc(1, size + COMPAT_ALIGN) : NULL;
    if (*base == NULL) {
        return NULL;
    }
    return (char *)*base + (COMPAT_ALIGN - (uintptr_t)*base % COMPAT_ALIGN);
}

static bool copy(void *dst, const void *src, size_t count)
{
    memmove(dst, src, count);
    return true;
}

static bool fill(void *dst, int value, size_t count)
{
    memset(dst, value, count);
    return true;
}

static const compat_device_ops cpu = {.type = MLA_DEVICE_CPU,
                                      .allocate = allocate,
                                      .release = free,
                                      .copy = copy,
                                      .fill = fill};

const compat_device_ops *compat_device(void)
{
    return &cpu;
}
