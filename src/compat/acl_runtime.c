/*
 * acl_runtime.c - begin, end, device and context.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "acl/acl.h"
#include "acl_device.h"
#include "acl_registry.h"
#include "acl_status.h"
#include "aclnn_executor.h"

static atomic_bool initialised;
static _Thread_local int32_t current_device;

typedef struct context_state {
    compat_object object;
    int32_t device;
} context_state;

int32_t compat_current_device(void)
{
    return current_device;
}

aclError aclInit(const char *configPath)
{
    const compat_device_ops *ops;
    (void)configPath;
    COMPAT_TRY(compat_device(&ops));
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

static aclError count_devices(int32_t *n)
{
    const compat_device_ops *ops;
    COMPAT_TRY(compat_device(&ops));
    return ops->count(n);
}

static aclError check_device(int32_t device)
{
    int32_t n;
    COMPAT_TRY(count_devices(&n));
    if (n == 1 && device != 0) {
        return compat_fail(ACL_ERROR_RT_INVALID_DEVICEID, "deviceId = %" PRId32 " must be 0: there is one device",
                           device);
    }
    if (device < 0 || device >= n) {
        return compat_fail(ACL_ERROR_RT_INVALID_DEVICEID,
                           "deviceId = %" PRId32 " must be between 0 and %" PRId32 ": there are %" PRId32 " devices",
                           device, n - 1, n);
    }
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceCount(uint32_t *count)
{
    int32_t n;
    if (count == NULL) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "count is NULL");
    }
    *count = 0;
    COMPAT_TRY(count_devices(&n));
    *count = (uint32_t)n;
    return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t deviceId)
{
    COMPAT_TRY(check_device(deviceId));
    current_device = deviceId;
    return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t *deviceId)
{
    if (deviceId == NULL) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "deviceId is NULL");
    }
    *deviceId = current_device;
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
    context_state *state = calloc(1, sizeof *state);
    if (state == NULL) {
        return compat_fail(ACL_ERROR_BAD_ALLOC, "context does not fit into memory");
    }
    void *handle = compat_new_handle();
    state->device = deviceId;
    compat_register(&state->object, COMPAT_CONTEXT, handle);
    *context = handle;
    current_device = deviceId; /* a new context is the thread's own at once */
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
    const context_state *state = compat_find(COMPAT_CONTEXT, context);
    if (state == NULL) {
        return not_a_context(context);
    }
    current_device = state->device;
    return ACL_SUCCESS;
}

aclError aclrtDestroyContext(aclrtContext context)
{
    context_state *state = compat_take(COMPAT_CONTEXT, context);
    if (state == NULL) {
        return not_a_context(context);
    }
    free(state);
    return ACL_SUCCESS;
}
