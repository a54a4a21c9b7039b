/*
 * acl_runtime.c - begin, end, device and context.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "acl/acl.h"
#include "acl_registry.h"
#include "acl_status.h"
#include "aclnn_executor.h"

static atomic_bool initialised;

aclError aclInit(const char *configPath)
{
    (void)configPath;
    if (atomic_exchange(&initialised, true)) {
        return compat_fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit() was called before, without aclFinalize()");
    }
    return ACL_SUCCESS;
}

aclError aclFinalize(void)
{
    if (!atomic_exchange(&initialised, false)) {
        return compat_fail(ACL_ERROR_UNINITIALIZE, "aclFinalize() was called without aclInit()");
    }
    compat_executor_release_all();
    return ACL_SUCCESS;
}

static aclError check_device(int32_t device)
{
    if (device != 0) {
        return compat_fail(ACL_ERROR_RT_INVALID_DEVICEID, "deviceId = %" PRId32 " must be 0: there is one device",
                           device);
    }
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceCount(uint32_t *count)
{
    if (count == NULL) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "count is NULL");
    }
    *count = 1;
    return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t deviceId)
{
    return check_device(deviceId);
}

aclError aclrtGetDevice(int32_t *deviceId)
{
    if (deviceId == NULL) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "deviceId is NULL");
    }
    *deviceId = 0;
    return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t deviceId)
{
    return check_device(deviceId);
}

aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId)
{
    if (context == NULL) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "context is NULL");
    }
    *context = NULL;
    COMPAT_TRY(check_device(deviceId));
    compat_object *object = calloc(1, sizeof *object);
    if (object == NULL) {
        return compat_fail(ACL_ERROR_BAD_ALLOC, "context does not fit into memory");
    }
    void *handle = compat_new_handle();
    compat_register(object, COMPAT_CONTEXT, handle);
    *context = handle;
    return ACL_SUCCESS;
}

static aclError not_a_context(aclrtContext context)
{
    return compat_fail(ACL_ERROR_INVALID_PARAM,
                       "context = %p is not a context: it was not made by aclrtCreateContext(), or it was destroyed",
                       context);
}

aclError aclrtSetCurrentContext(aclrtContext context)
{
    return compat_find(COMPAT_CONTEXT, context) != NULL ? ACL_SUCCESS : not_a_context(context);
}

aclError aclrtDestroyContext(aclrtContext context)
{
    compat_object *object = compat_take(COMPAT_CONTEXT, context);
    if (object == NULL) {
        return not_a_context(context);
    }
    free(object);
    return ACL_SUCCESS;
}
