/*
 * hash.h - the step of every fingerprint in the library. Not for data that somebody could choose to collide.
 */
#ifndef MLA_CORE_HASH_H
#define MLA_CORE_HASH_H

#include <stdint.h>

/* Kernels evaluate the same code. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline uint64_t
    mla_hash_mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    hash *= 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 32);
}

#endif
