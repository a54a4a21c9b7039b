/*
 * aclnn_executor.c - executors: captured arguments, used once.
 */
#include "aclnn_executor.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "acl_registry.h"
#include "acl_status.h"

typedef struct executor_state {
    compat_object object;
    const compat_operator *op;
    alignas(max_align_t) unsigned char capture[];
} executor_state;

aclnnStatus compat_executor_create(const compat_operator *op, const void *capture, size_t bytes,
                                   aclOpExecutor **executor)
{
    *executor = NULL;
    executor_state *state = malloc(sizeof *state + bytes);
    if (state == NULL) {
        return compat_fail(ACLNN_ERR_INNER_CREATE_EXECUTOR, "executor does not fit into memory");
    }
    state->op = op;
    memcpy(state->capture, capture, bytes);
    void *handle = compat_new_handle();
    compat_register(&state->object, COMPAT_EXECUTOR, handle);
    *executor = handle;
    return ACLNN_SUCCESS;
}

aclnnStatus compat_executor_run(const compat_operator *op, aclOpExecutor *executor, aclrtStream stream)
{
    if (executor == NULL) {
        return compat_fail(ACLNN_ERR_INNER_NULLPTR, "executor is NULL");
    }
    executor_state *state = compat_take(COMPAT_EXECUTOR, executor);
    if (state == NULL) {
        return compat_fail(
            ACLNN_ERR_INNER_NULLPTR,
            "executor = %p is not waiting to be run: it was used before, or never made by %sGetWorkspaceSize()",
            (void *)executor, op->name);
    }
    if (state->op != op) {
        const char *owner = state->op->name;
        compat_register(&state->object, COMPAT_EXECUTOR, executor);
        return compat_fail(ACLNN_ERR_INNER_NULLPTR, "executor = %p was made for %s(), not for %s()", (void *)executor,
                           owner, op->name);
    }
    if (compat_stream_launch(stream, op->run, state->capture) != ACL_SUCCESS) {
        compat_register(&state->object, COMPAT_EXECUTOR, executor);
        return ACLNN_ERR_RUNTIME_ERROR; /* with the stream's sentence */
    }
    free(state);
    return ACLNN_SUCCESS;
}

void compat_executor_release_all(void)
{
    for (executor_state *state; (state = compat_take_any(COMPAT_EXECUTOR)) != NULL;) {
        free(state);
    }
}
