/*
 * machine.h - what the machine is, for reports.
 */
#ifndef MLA_CLI_MACHINE_H
#define MLA_CLI_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct machine {
    char cpu[128];      /* "AMD EPYC 7763 64-Core Processor (family 25 model 1)"; of different cores one */
    char features[512]; /* those that attention kernels care about and the system has enabled, separated by spaces */
    bool avx2;          /* with fma and f16c */
    bool avx512;        /* f, bw, dq, vl */
    int32_t n_cpu;      /* that this process may use */
    int32_t n_core;     /* that these belong to, 0: unknown */
    int64_t l1d_bytes, l2_bytes, l3_bytes; /* of cpu 0, 0: unknown */
    int64_t memory_bytes, available_bytes;
    char system[128]; /* "Linux 6.1.0 x86_64" */
} machine;

/* The machine, asked once. Not for use by several threads at a time. */
const machine *machine_get(void);

#endif
