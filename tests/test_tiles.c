/*
 * test_tiles.c - the process asks for the state of AMX tiles when their level is meant to be used, and not before.
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
#include <sys/syscall.h>
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

static void attend(void)
{
    fixture f;
    fixture_init(&f, PAGED);
    assert_int_equal(mla_attention(&f.p, NULL), MLA_STATUS_OK);
}

/* The first test: nothing has been asked for yet, and the environment has not been looked at. */
static void test_capped_level_asks_for_nothing(void **state)
{
    (void)state;
    setenv("MLA_ISA", "scalar", 1);
    attend();
    assert_false(may_use_tiles());
    assert_int_equal(mla_set_isa("scalar"), MLA_STATUS_OK);
    attend();
    assert_false(may_use_tiles());
}

static void test_level_of_tiles_asks(void **state)
{
    (void)state;
    if (!mla_cpu_features_detect().amx) {
        print_message("no AMX here\n");
        skip();
    }
    bool usable = mla_set_isa("amx") == MLA_STATUS_OK;
    assert_int_equal(may_use_tiles(), usable);
    if (usable) {
        attend();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capped_level_asks_for_nothing),
        cmocka_unit_test(test_level_of_tiles_asks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
