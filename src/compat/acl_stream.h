/*
 * acl_stream.h - giving work to a stream.
 */
#ifndef MLA_COMPAT_ACL_STREAM_H
#define MLA_COMPAT_ACL_STREAM_H

#include <stdint.h>

#include "acl/acl_rt.h"

/* Where a piece of work goes: the device, and the device's own queue (a CUstream; NULL on the CPU). */
typedef struct compat_place {
    int32_t device;
    void *stream;
} compat_place;

/* A piece of work, done or queued when it returns. Returns 0, or the stream's error after compat_fail(). */
typedef int32_t (*compat_work)(void *data, const compat_place *place);

/*
 * Runs work(data, place) as the stream's next piece, or not at all while the stream has an error that nobody asked for yet.
 * Returns ACL_SUCCESS once the stream has taken it, whatever comes of it: errors of work are aclrtSynchronizeStream()'s
 * to report, as on a device that works on its own. ACL_ERROR_INVALID_PARAM for a handle that is not a stream.
 * NULL: the default stream, on the thread's current device.
 */
aclError compat_stream_launch(aclrtStream stream, compat_work work, void *data);

#endif
