/*
 * test_aclnn_validation.c - every rule of the operator and of its metadata operator, with its code and its sentence.
 */
#include <math.h>

#include "aclnn_validation_table.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static void apply(void *to, const patch *patches)
{
    for (int i = 0; i < MAX_PATCH && patches[i].size != 0; i++) {
        char *at = (char *)to + patches[i].offset;
        if (patches[i].size == PATCH_REAL) {
            memcpy(at, &patches[i].real, sizeof patches[i].real);
        } else if (patches[i].text != NULL) {
            strcpy(at, patches[i].text);
        } else if (patches[i].size == 4) {
            int32_t value = (int32_t)patches[i].value;
            memcpy(at, &value, sizeof value);
        } else {
            assert_int_equal(patches[i].size, 8);
            memcpy(at, &patches[i].value, 8);
        }
    }
}

static void expect(const char *table, size_t i, const row *r, aclnnStatus status, uint64_t size,
                   const aclOpExecutor *executor)
{
    const char *said = aclGetRecentErrMsg();
    bool good = status == r->code && (status == ACLNN_SUCCESS || strncmp(said, r->words, strlen(r->words)) == 0);
    if (!good) {
        fail_msg("%s[%zu]: %d \"%s\" instead of %d \"%s\"", table, i, (int)status, said, (int)r->code, r->words);
    }
    assert_int_equal(size, 0);
    assert_true((executor != NULL) == (status == ACLNN_SUCCESS));
    assert_true(status == ACLNN_SUCCESS || said[strlen(said) - 1] != '.');
}

static call shared_call; /* too large for a stack */
static metadata_call shared_metadata;

static void check_main(const char *table, const row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t size = 99;
        aclOpExecutor *executor = NULL;
        open_call(&shared_call, rows[i].mode, rows[i].layout);
        assert_int_equal(first_phase(&shared_call, &size, &executor), ACLNN_SUCCESS); /* legal before it is broken */
        apply(&shared_call, rows[i].patches);
        size = 99;
        aclnnStatus status = first_phase(&shared_call, &size, &executor);
        expect(table, i, &rows[i], status, size, executor);
    }
}

static void test_operator_refuses(void **state)
{
    (void)state;
    check_main("REFUSED", REFUSED, COUNT(REFUSED));
}

static void test_operator_accepts(void **state)
{
    (void)state;
    check_main("ACCEPTED", ACCEPTED, COUNT(ACCEPTED));
}

static void check_metadata(const char *table, const row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (int mixed = 0; mixed <= 1; mixed++) {
            uint64_t size = 99;
            aclOpExecutor *executor = NULL;
            open_call(&shared_call, rows[i].mode, rows[i].layout);
            open_metadata(&shared_metadata, &shared_call);
            shared_metadata.mixed = mixed;
            assert_int_equal(first_metadata_phase(&shared_metadata, &size, &executor), ACLNN_SUCCESS);
            apply(&shared_metadata, rows[i].patches);
            size = 99;
            aclnnStatus status = first_metadata_phase(&shared_metadata, &size, &executor);
            expect(table, i, &rows[i], status, size, executor);
        }
    }
}

static void test_metadata_refuses(void **state)
{
    (void)state;
    check_metadata("METADATA_REFUSED", METADATA_REFUSED, COUNT(METADATA_REFUSED));
}

static void test_metadata_accepts(void **state)
{
    (void)state;
    check_metadata("METADATA_ACCEPTED", METADATA_ACCEPTED, COUNT(METADATA_ACCEPTED));
}

/* Every mode in every layout, with every number of heads at the ends of its range. */
static void test_all_modes_are_legal(void **state)
{
    (void)state;
    for (int mode = SWA; mode <= HCA; mode++) {
        for (int layout = BSND_BSND; layout <= TND_PA; layout++) {
            for (int64_t heads = 1; heads <= 128; heads += 127) {
                uint64_t size = 99;
                aclOpExecutor *executor = NULL;
                open_call(&shared_call, (call_mode)mode, (call_layout)layout);
                bool tnd = layout == TND_TND || layout == TND_PA;
                shared_call.t[Q].dim[tnd ? 1 : 2] = shared_call.t[OUT].dim[tnd ? 1 : 2] = heads;
                shared_call.t[LSE].dim[tnd ? 2 : 3] = shared_call.t[SINKS].dim[0] = heads;
                if (first_phase(&shared_call, &size, &executor) != ACLNN_SUCCESS) {
                    fail_msg("mode %d, layout %d: %s", mode, layout, aclGetRecentErrMsg());
                }
            }
        }
    }
}

static void test_result_pointers(void **state)
{
    (void)state;
    uint64_t size = 99;
    aclOpExecutor *executor = NULL;
    open_call(&shared_call, CSA, TND_PA);
    open_metadata(&shared_metadata, &shared_call);
    assert_int_equal(first_phase(&shared_call, NULL, &executor), ACLNN_ERR_PARAM_NULLPTR);
    assert_string_equal(aclGetRecentErrMsg(), "workspaceSize is NULL");
    assert_int_equal(first_phase(&shared_call, &size, NULL), ACLNN_ERR_PARAM_NULLPTR);
    assert_string_equal(aclGetRecentErrMsg(), "executor is NULL");
    for (int mixed = 0; mixed <= 1; mixed++) {
        shared_metadata.mixed = mixed;
        assert_int_equal(first_metadata_phase(&shared_metadata, NULL, &executor), ACLNN_ERR_INNER_NULLPTR);
        assert_string_equal(aclGetRecentErrMsg(), "workspaceSize is NULL");
        assert_int_equal(first_metadata_phase(&shared_metadata, &size, NULL), ACLNN_ERR_INNER_NULLPTR);
        assert_string_equal(aclGetRecentErrMsg(), "executor is NULL");
    }
}

static int finish(void **state)
{
    (void)state; /* executors that no second phase followed */
    return aclInit(NULL) != ACL_SUCCESS || aclFinalize() != ACL_SUCCESS;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operator_refuses),    cmocka_unit_test(test_operator_accepts),
        cmocka_unit_test(test_metadata_refuses),    cmocka_unit_test(test_metadata_accepts),
        cmocka_unit_test(test_all_modes_are_legal), cmocka_unit_test(test_result_pointers),
    };
    return cmocka_run_group_tests(tests, NULL, finish);
}
