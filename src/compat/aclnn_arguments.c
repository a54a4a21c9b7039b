/*
 * aclnn_arguments.c - from an operator's arguments to a door's struct, and from its status to aclnn's.
 */
#include "aclnn_arguments.h"

#include <string.h>

#include "acl_status.h"
#include "acl_tensor.h"

aclnnStatus compat_arguments(const compat_argument *argument, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        COMPAT_TRY(compat_tensor_view(argument[i].tensor, argument[i].name, argument[i].view));
    }
    return ACLNN_SUCCESS;
}

aclnnStatus compat_check_status(mla_status status)
{
    switch (status) {
    case MLA_STATUS_OK: return ACLNN_SUCCESS;
    case MLA_STATUS_NULL_POINTER: return compat_fail(ACLNN_ERR_PARAM_NULLPTR, "%s", mla_last_error());
    case MLA_STATUS_OUT_OF_MEMORY:
    case MLA_STATUS_INTERNAL: return compat_fail(ACLNN_ERR_INNER, "%s", mla_last_error());
    default: return compat_fail(ACLNN_ERR_PARAM_INVALID, "%s", mla_last_error());
    }
}

int32_t compat_run_status(mla_status status, int32_t exception)
{
    switch (status) {
    case MLA_STATUS_OK: return ACL_SUCCESS;
    case MLA_STATUS_OUT_OF_MEMORY: return compat_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "%s", mla_last_error());
    case MLA_STATUS_INTERNAL: return compat_fail(ACL_ERROR_FAILURE, "%s", mla_last_error());
    default: return compat_fail(exception, "%s", mla_last_error());
    }
}

const char *compat_layout(const char *layout)
{
    static const char *const known[] = {"BSND", "TND", "PA_BBND"};
    for (size_t i = 0; layout != NULL && i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(layout, known[i]) == 0) {
            return known[i];
        }
    }
    return NULL;
}
