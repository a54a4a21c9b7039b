/*
 * acl_stream.h - giving work to a stream.
 */
#ifndef MLA_COMPAT_ACL_STREAM_H
#define MLA_COMPAT_ACL_STREAM_H

#include <stdint.h>

#include "acl/acl_rt.h"

/* A piece of work. Returns 0, or the stream's error after compat_fail(). */
typedef int32_t (*compat_work)(void *data);

/*
 * Runs work(data) as the stream's next piece, or not at all while the stream has an error that nobody asked for yet.
 * Returns ACL_SUCCESS once the stream has taken it, whatever comes of it: errors of work are aclrtSynchronizeStream()'s
 * to report, as on a device that works on its own. ACL_ERROR_INVALID_PARAM for a handle that is not a stream.
 * NULL: the default stream.
 */
aclError compat_stream_launch(aclrtStream stream, compat_work work, void *data);

#endif
