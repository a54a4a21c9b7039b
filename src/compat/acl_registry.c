/*
 * acl_registry.c - a table of live handles under one lock.
 */
#define _POSIX_C_SOURCE 200809L
#include "acl_registry.h"

#include <pthread.h>
#include <stdlib.h>

/* Chains, so that registering never fails; when there is no memory for more chains, they only get longer. */
#define FIRST_CHAINS 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static compat_object *first_chains[FIRST_CHAINS];
static compat_object **chain = first_chains;
static size_t n_chain = FIRST_CHAINS, n_object;
static uintptr_t next_handle = 1;

static size_t chain_of(uintptr_t handle, size_t n)
{
    uint64_t mixed = (uint64_t)handle * 0x9e3779b97f4a7c15u; /* addresses differ in their middle bits only */
    return (size_t)(mixed >> 32) & (n - 1);
}

static void grow(void)
{
    size_t n = n_chain * 2;
    compat_object **wider = calloc(n, sizeof *wider);
    if (wider == NULL) {
        return;
    }
    for (size_t i = 0; i < n_chain; i++) {
        for (compat_object *object = chain[i], *next; object != NULL; object = next) {
            next = object->next;
            compat_object **head = &wider[chain_of(object->handle, n)];
            object->next = *head;
            *head = object;
        }
    }
    if (chain != first_chains) {
        free(chain);
    }
    chain = wider;
    n_chain = n;
}

/* Where the object's chain points to it; the end of the chain when there is none. */
static compat_object **find_link(compat_kind kind, const void *handle)
{
    compat_object **link = &chain[chain_of((uintptr_t)handle, n_chain)];
    while (*link != NULL && ((*link)->handle != (uintptr_t)handle || (*link)->kind != kind)) {
        link = &(*link)->next;
    }
    return link;
}

static compat_object *unlink_object(compat_object **link)
{
    compat_object *object = *link;
    if (object != NULL) {
        *link = object->next;
        n_object--;
    }
    return object;
}

void *compat_new_handle(void)
{
    pthread_mutex_lock(&lock);
    uintptr_t handle = next_handle;
    next_handle += 2;
    pthread_mutex_unlock(&lock);
    return (void *)handle; /* NOLINT(performance-no-int-to-ptr): never followed */
}

void compat_register(compat_object *object, compat_kind kind, const void *handle)
{
    object->kind = kind;
    object->handle = (uintptr_t)handle;
    pthread_mutex_lock(&lock);
    if (n_object >= n_chain) {
        grow();
    }
    compat_object **head = &chain[chain_of(object->handle, n_chain)];
    object->next = *head;
    *head = object;
    n_object++;
    pthread_mutex_unlock(&lock);
}

void *compat_find(compat_kind kind, const void *handle)
{
    pthread_mutex_lock(&lock);
    compat_object *object = *find_link(kind, handle);
    pthread_mutex_unlock(&lock);
    return object;
}

void *compat_take(compat_kind kind, const void *handle)
{
    pthread_mutex_lock(&lock);
    compat_object *object = unlink_object(find_link(kind, handle));
    pthread_mutex_unlock(&lock);
    return object;
}

void *compat_take_any(compat_kind kind)
{
    compat_object *object = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_chain && object == NULL; i++) {
        compat_object **link = &chain[i];
        while (*link != NULL && (*link)->kind != kind) {
            link = &(*link)->next;
        }
        object = unlink_object(link);
    }
    pthread_mutex_unlock(&lock);
    return object;
}
