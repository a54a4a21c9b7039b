/*
 * test_cpu_quota.c - CPU quotas of control groups, in trees of files like those of a kernel.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "core/cpu_quota.h"

static char root[256];

/* A file below root, with its folders. */
static void put(const char *path, const char *text)
{
    char name[sizeof root + 256];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *slash = strchr(name + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(name, 0777);
        *slash = '/';
    }
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int new_root(void **state)
{
    (void)state;
    const char *folder = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/mla_quota_XXXXXX", folder ? folder : P_tmpdir);
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    (void)state;
    char command[sizeof root + 8];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void test_nothing_there(void **state)
{
    (void)state;
    assert_int_equal(mla_cpu_quota(root), 0);
    put("/proc/self/cgroup", "not a line\n\n0::\n");
    assert_int_equal(mla_cpu_quota(root), 0);
}

static void test_v2(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a.slice/b.scope\n");
    put("/sys/fs/cgroup/a.slice/b.scope/cpu.max", "max 100000\n");
    assert_int_equal(mla_cpu_quota(root), 0);
    put("/sys/fs/cgroup/a.slice/b.scope/cpu.max", "250000 100000\n");
    assert_int_equal(mla_cpu_quota(root), 3);                 /* 2.5 */
    put("/sys/fs/cgroup/a.slice/cpu.max", "200000 100000\n"); /* a group above has less */
    assert_int_equal(mla_cpu_quota(root), 2);
    put("/sys/fs/cgroup/a.slice/b.scope/cpu.max", "10000 100000\n");
    assert_int_equal(mla_cpu_quota(root), 1);
    put("/sys/fs/cgroup/a.slice/b.scope/cpu.max", "nonsense\n");
    assert_int_equal(mla_cpu_quota(root), 2);
}

/* A container sees its own group as the top, under "/" or under a path from outside. */
static void test_container(void **state)
{
    (void)state;
    put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    put("/proc/self/cgroup", "0::/\n");
    assert_int_equal(mla_cpu_quota(root), 4);
    put("/proc/self/cgroup", "0::/docker/0123456789abcdef\n");
    assert_int_equal(mla_cpu_quota(root), 4);
}

static void test_v1(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "5:cpuset:/other\n4:cpuacct,cpu:/group\n3:memory:/group\n0::/\n");
    put("/sys/fs/cgroup/cpu/group/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/group/cpu.cfs_period_us", "100000\n");
    assert_int_equal(mla_cpu_quota(root), 0);
    put("/sys/fs/cgroup/cpu/group/cpu.cfs_quota_us", "700000\n");
    assert_int_equal(mla_cpu_quota(root), 7);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "600000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(mla_cpu_quota(root), 6);
    put("/proc/self/cgroup", "5:cpuset:/group\n4:cpuacct:/group\n"); /* not the controller that grants time */
    assert_int_equal(mla_cpu_quota(root), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_there, new_root, remove_root),
        cmocka_unit_test_setup_teardown(test_v2, new_root, remove_root),
        cmocka_unit_test_setup_teardown(test_container, new_root, remove_root),
        cmocka_unit_test_setup_teardown(test_v1, new_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
