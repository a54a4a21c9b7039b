/*
 * features.h - what the processor and the operating system allow.
 */
#ifndef MLA_CPU_FEATURES_H
#define MLA_CPU_FEATURES_H

#include <stdbool.h>

typedef struct mla_cpu_features {
    bool avx2;       /* AVX2 + FMA + F16C, with the registers saved by the system */
    bool avxvnni;    /* AVX-VNNI besides */
    bool avx512;     /* AVX-512 F + BW + DQ + VL besides AVX2 */
    bool avx512bf16; /* and products of bf16 pairs */
    bool amx;        /* and tiles of bf16, with their registers saved by the system once it has granted them */
    bool neonbf16;   /* 64-bit Arm: products of bf16 pairs */
} mla_cpu_features;

mla_cpu_features mla_cpu_features_detect(void);

/* Does the processor drop prefetches while its queue of requests to memory is full? AMD's do; nobody promises either. */
bool mla_cpu_forgets_fetches(void);

/* Whether the process may use tiles. Asks the system for them, the first time, which changes the process: the system saves
 * their 8 KiB in frames of signals from then on and refuses signal stacks that such a frame does not fit on. So it is for
 * those who mean to use them. */
bool mla_cpu_tiles_granted(void);

#endif
