/*
 * acl_registry.h - which handles are alive.
 *
 * Clients pass handles of tensors, streams, contexts, executors and memory. They are looked up here before anything
 * behind them is read, so a freed or invented one is an error and not a crash. A tensor's or a block's handle is its
 * address; the other kinds get numbers that are never used twice, so that a late use of one cannot mean its successor.
 */
#ifndef MLA_COMPAT_ACL_REGISTRY_H
#define MLA_COMPAT_ACL_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum compat_kind {
    COMPAT_TENSOR,
    COMPAT_STREAM,
    COMPAT_CONTEXT,
    COMPAT_EXECUTOR,
    COMPAT_DEVICE_MEMORY,
    COMPAT_HOST_MEMORY,
    COMPAT_KIND_COUNT
} compat_kind;

/* First member of everything that has a handle. */
typedef struct compat_object {
    compat_kind kind;
    uintptr_t handle;
    struct compat_object *next;
} compat_object;

/* A number for a new handle: odd, so never the address of an object. */
void *compat_new_handle(void);

/* From now on `handle` means this object. Its memory must stay until it was taken out. */
void compat_register(compat_object *object, compat_kind kind, const void *handle);

/* The object, or NULL. */
void *compat_find(compat_kind kind, const void *handle);

/* The object, which is no longer registered and belongs to the caller now, or NULL. */
void *compat_take(compat_kind kind, const void *handle);

/* As compat_take() for any object of a kind; NULL when there is none. */
void *compat_take_any(compat_kind kind);

#endif
