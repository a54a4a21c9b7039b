/*
 * cpu_quota.c - see cpu_quota.h.
 */
#include "cpu_quota.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PATH_SIZE = 4096, LINE_SIZE = 4096 };

/* The first words of a small file. */
static bool read_line(const char *path, char line[LINE_SIZE])
{
    FILE *file = fopen(path, "r");
    bool good = file != NULL && fgets(line, LINE_SIZE, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    return good;
}

/* CPUs of one group, by v2's file or v1's two; 0: no limit. */
static double quota_of(const char *group)
{
    char path[PATH_SIZE + 32], line[LINE_SIZE];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", group); /* "200000 100000", "max 100000" */
    if (read_line(path, line)) {
        return sscanf(line, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0
                   ? (double)quota / (double)period
                   : 0;
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", group); /* -1: none */
    if (!read_line(path, line) || sscanf(line, "%lld", &quota) != 1) {
        return 0;
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", group);
    return read_line(path, line) && sscanf(line, "%lld", &period) == 1 && quota > 0 && period > 0
               ? (double)quota / (double)period
               : 0;
}

/* The least of a group and all above it. A container may see its own group as the top, under a path that it cannot
 * see; going up ends there too. */
static double quota_along(const char *mount, const char *path)
{
    char group[PATH_SIZE];
    size_t top = strlen(mount);
    int length = snprintf(group, sizeof group, "%s%s", mount, path);
    if (length < 0 || (size_t)length >= sizeof group) {
        return 0;
    }
    double least = 0;
    for (;;) {
        double quota = quota_of(group);
        least = quota > 0 && (least == 0 || quota < least) ? quota : least;
        char *last = strrchr(group, '/');
        if (last == NULL || strlen(group) <= top) {
            return least;
        }
        *(last < group + top ? group + top : last) = '\0';
    }
}

/* Does a list of controllers, "cpu,cpuacct", name `cpu`? */
static bool names_cpu(const char *list, size_t length)
{
    for (size_t i = 0; i < length;) {
        size_t n = strcspn(list + i, ",:");
        if (n == 3 && strncmp(list + i, "cpu", 3) == 0) {
            return true;
        }
        i += n + 1;
    }
    return false;
}

int32_t mla_cpu_quota(const char *root)
{
    char name[PATH_SIZE], line[LINE_SIZE], mount[PATH_SIZE];
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *file = fopen(name, "r");
    double least = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) { /* "number:controllers:path" */
        char *controllers = strchr(line, ':'), *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL) {
            continue;
        }
        controllers++;
        bool unified = controllers == path;
        if (!unified && !names_cpu(controllers, (size_t)(path - controllers))) {
            continue;
        }
        path++;
        path[strcspn(path, "\n")] = '\0';
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, unified ? "" : "/cpu");
        double quota = quota_along(mount, strcmp(path, "/") == 0 ? "" : path);
        least = quota > 0 && (least == 0 || quota < least) ? quota : least;
    }
    if (file != NULL) {
        fclose(file);
    }
    int32_t whole = least < 1 << 20 ? (int32_t)least : 1 << 20;
    return whole + (least > whole);
}
