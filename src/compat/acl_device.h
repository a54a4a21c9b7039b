/*
 * acl_device.h - what the runtime asks of the device behind it.
 *
 * One table per kind of device; the runtime above it knows no other difference. Today there is the CPU.
 */
#ifndef MLA_COMPAT_ACL_DEVICE_H
#define MLA_COMPAT_ACL_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "mla/mla_types.h"

typedef struct compat_device_ops {
    mla_device_type type;
    /* Zero-filled, aligned to COMPAT_ALIGN; NULL on failure. `base` is what release() gets. */
    void *(*allocate)(size_t size, void **base);
    void (*release)(void *base);
    bool (*copy)(void *dst, const void *src, size_t count); /* any memory to any memory; false on failure */
    bool (*fill)(void *dst, int value, size_t count);
} compat_device_ops;

#define COMPAT_ALIGN 64

/* The device of this process. */
const compat_device_ops *compat_device(void);

#endif
