/*
 * cpu_quota.h - how much CPU time a control group leaves this process. Containers are limited like that ("two CPUs" on a
 * machine of 64), and OpenMP, which counts the CPUs that a process may run on, does not notice.
 */
#ifndef MLA_CORE_CPU_QUOTA_H
#define MLA_CORE_CPU_QUOTA_H

#include <stdint.h>

/* CPUs that the process's control groups (v2, v1) grant at most, rounded up; 0: no limit, or none to be found. root: where
 * /proc and /sys are, "" outside tests. */
int32_t mla_cpu_quota(const char *root);

#endif
