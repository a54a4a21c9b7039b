/*
 * share.c - see share.h.
 */
#define _POSIX_C_SOURCE 200809L /* sched_yield() */
#include "share.h"

#include <sched.h>

static uint64_t both(int64_t low, int64_t high)
{
    return (uint64_t)low | (uint64_t)high << 32;
}

static int64_t first_of(uint64_t left)
{
    return (int64_t)(left & 0xffffffffu);
}

static int64_t end_of(uint64_t left)
{
    return (int64_t)(left >> 32);
}

void mla_share_init(mla_share *share, int64_t n_worker)
{
    for (int64_t i = 0; i < n_worker; i++) {
        share[i].item = NULL;
        atomic_init(&share[i].left, 0);
        for (int s = 0; s < MLA_SPARES; s++) {
            atomic_init(&share[i].spare[s], 0);
        }
    }
}

void mla_share_open(mla_share *own, const mla_work_item *item, int64_t n_chunk)
{
    own->item = item;
    atomic_store_explicit(&own->left, both(1, n_chunk), memory_order_release);
}

bool mla_share_next(mla_share *own, int64_t chunk)
{
    uint_fast64_t left = atomic_load_explicit(&own->left, memory_order_relaxed);
    do {
        if (chunk >= end_of(left)) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&own->left, &left, both(chunk + 1, end_of(left)),
                                                    memory_order_release, memory_order_relaxed));
    return true;
}

int64_t mla_share_wait(const mla_share *share, int64_t n_worker, int64_t owner, int64_t chunk)
{
    for (uint64_t wanted = both(chunk, owner + 1);; sched_yield()) { /* somebody is computing it */
        for (int64_t i = 0; i < n_worker * MLA_SPARES; i++) {
            const mla_share *other = &share[i / MLA_SPARES];
            if (atomic_load_explicit(&other->spare[i % MLA_SPARES], memory_order_acquire) == wanted) {
                return i;
            }
        }
    }
}

void mla_share_folded(mla_share *share, int64_t place)
{
    atomic_store_explicit(&share[place / MLA_SPARES].spare[place % MLA_SPARES], 0, memory_order_release);
}

int64_t mla_share_take(mla_share *other)
{
    uint_fast64_t left = atomic_load_explicit(&other->left, memory_order_relaxed);
    do {
        if (first_of(left) >= end_of(left)) {
            return -1;
        }
        /* acquire: the item was written before its chunks were there to be taken */
    } while (!atomic_compare_exchange_weak_explicit(&other->left, &left, both(first_of(left), end_of(left) - 1),
                                                    memory_order_acq_rel, memory_order_relaxed));
    return end_of(left) - 1;
}

void mla_share_hand_in(mla_share *own, int64_t spare, int64_t owner, int64_t chunk)
{
    atomic_store_explicit(&own->spare[spare], both(chunk, owner + 1), memory_order_release);
}

int64_t mla_share_spare(const mla_share *own)
{
    for (int64_t i = 0; i < MLA_SPARES; i++) {
        if (atomic_load_explicit(&own->spare[i], memory_order_acquire) == 0) {
            return i;
        }
    }
    return -1;
}
