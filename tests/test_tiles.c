/*
 * test_tiles.c - the process asks for the state of AMX tiles when a problem is to be computed with them, and not before.
 */
#define _GNU_SOURCE /* setenv(), syscall() */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cpu/features.h"
#include "problem_fixture.h"

#if defined(__x86_64__) && defined(__linux__)
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static bool may_use_tiles(void)
{
    enum { ARCH_GET_XCOMP_PERM = 0x1022, XFEATURE_XTILEDATA = 18 };
    uint64_t permitted = 0;
    return syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &permitted) == 0 && (permitted >> XFEATURE_XTILEDATA & 1);
}
#else
static bool may_use_tiles(void)
{
    return false;
}
#endif

static mla_arithmetic attend(mla_arithmetic arithmetic)
{
    fixture f;
    fixture_init(&f, PAGED);
    f.p.arithmetic = arithmetic;
    mla_plan *plan;
    mla_plan_info info;
    assert_int_equal(mla_plan_build(&f.p, NULL, &plan), MLA_STATUS_OK);
    assert_int_equal(mla_plan_describe(plan, &info), MLA_STATUS_OK);
    mla_plan_free(plan);
    assert_int_equal(mla_attention(&f.p, NULL), MLA_STATUS_OK);
    return info.arithmetic;
}

/* The first test: nothing has been asked for yet, and the environment has not been looked at. */
static void test_capped_level_asks_for_nothing(void **state)
{
    (void)state;
    setenv("MLA_ISA", "scalar", 1);
    attend(MLA_ARITHMETIC_AUTO);
    assert_false(may_use_tiles());
    assert_int_equal(mla_set_isa("scalar"), MLA_STATUS_OK);
    assert_int_equal(attend(MLA_ARITHMETIC_BF16), MLA_ARITHMETIC_F32);
    assert_false(may_use_tiles());
}

static void test_arithmetic_of_tiles_asks(void **state)
{
    (void)state;
    if (!mla_cpu_features_detect().amx) {
        print_message("no AMX here\n");
        skip();
    }
    assert_int_equal(mla_set_isa("amx"), MLA_STATUS_OK);
    assert_int_equal(attend(MLA_ARITHMETIC_F32), MLA_ARITHMETIC_F32);
    assert_true(mla_isa_list(NULL, 0) > 0 && mla_kernel_list(NULL, 0) > 0);
    assert_false(may_use_tiles());
    mla_arithmetic chosen = attend(MLA_ARITHMETIC_AUTO); /* all of the fixture is bf16 */
    assert_int_equal(chosen, may_use_tiles() ? MLA_ARITHMETIC_BF16X2 : MLA_ARITHMETIC_F32);
}

#if defined(__x86_64__) && defined(__linux__)
/* A signal stack that has no room for tiles makes the system refuse them, here in a child: it then computes in bf16 with the
 * level below. */
static void test_refused_tiles(void **state)
{
    (void)state;
    if (!mla_cpu_features_detect().amx) {
        print_message("no AMX here\n");
        skip();
    }
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        static char small[8192];
        bool good = sigaltstack(&(stack_t){.ss_sp = small, .ss_size = sizeof small}, NULL) == 0 &&
                    mla_set_isa("amx") == MLA_STATUS_OK && attend(MLA_ARITHMETIC_AUTO) == MLA_ARITHMETIC_F32 &&
                    attend(MLA_ARITHMETIC_BF16) == MLA_ARITHMETIC_BF16 && !may_use_tiles();
        _exit(!good);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}
#else
static void test_refused_tiles(void **state)
{
    (void)state;
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capped_level_asks_for_nothing),
        cmocka_unit_test(test_refused_tiles),
        cmocka_unit_test(test_arithmetic_of_tiles_asks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
