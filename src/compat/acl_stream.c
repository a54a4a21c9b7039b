/*
 * acl_stream.c - streams: one piece of work after the other, and the first error of them.
 *
 * On the CPU work runs inside the call that brings it, under the stream's lock. To a client that keeps the rules of
 * streams this looks the same as work that runs later: it may not touch what the work uses before it has synchronised. On
 * a GPU the call queues it. An error of a call is kept here; one that the GPU meets is reported by the driver.
 */
#define _POSIX_C_SOURCE 200809L
#include "acl_stream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acl_device.h"
#include "acl_registry.h"
#include "acl_status.h"

typedef struct stream_state {
    compat_object object;
    pthread_mutex_t lock;
    compat_place place; /* of the default stream: the calling thread's device */
    int32_t error;
    char sentence[COMPAT_SENTENCE_BYTES];
} stream_state;

static stream_state default_stream = {.lock = PTHREAD_MUTEX_INITIALIZER};

static stream_state *find_stream(aclrtStream stream)
{
    return stream == NULL ? &default_stream : compat_find(COMPAT_STREAM, stream);
}

static compat_place place_of(const stream_state *state)
{
    return state == &default_stream ? (compat_place){.device = compat_current_device()} : state->place;
}

static aclError not_a_stream(aclrtStream stream)
{
    return compat_fail(ACL_ERROR_INVALID_PARAM,
                       "stream = %p is not a stream: it was not made by aclrtCreateStream(), or it was destroyed",
                       stream);
}

aclError aclrtCreateStream(aclrtStream *stream)
{
    if (stream == NULL) {
        return compat_fail(ACL_ERROR_INVALID_PARAM, "stream is NULL");
    }
    *stream = NULL;
    const compat_device_ops *ops;
    COMPAT_TRY(compat_device(&ops));
    stream_state *state = calloc(1, sizeof *state);
    if (state == NULL) {
        return compat_fail(ACL_ERROR_BAD_ALLOC, "stream does not fit into memory");
    }
    state->place.device = compat_current_device();
    aclError error = ops->stream_create(state->place.device, &state->place.stream);
    if (error != ACL_SUCCESS) {
        free(state);
        return error;
    }
    pthread_mutex_init(&state->lock, NULL);
    void *handle = compat_new_handle();
    compat_register(&state->object, COMPAT_STREAM, handle);
    *stream = handle;
    return ACL_SUCCESS;
}

aclError aclrtDestroyStream(aclrtStream stream)
{
    stream_state *state = compat_take(COMPAT_STREAM, stream);
    if (state == NULL) {
        return not_a_stream(stream);
    }
    pthread_mutex_lock(&state->lock); /* another thread's work may still run */
    compat_device_known()->stream_destroy(state->place.device, state->place.stream);
    pthread_mutex_unlock(&state->lock);
    pthread_mutex_destroy(&state->lock);
    free(state);
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeStream(aclrtStream stream)
{
    stream_state *state = find_stream(stream);
    if (state == NULL) {
        return not_a_stream(stream);
    }
    const compat_device_ops *ops;
    COMPAT_TRY(compat_device(&ops));
    const compat_place place = place_of(state);
    pthread_mutex_lock(&state->lock);
    int32_t error = state->error;
    char sentence[COMPAT_SENTENCE_BYTES];
    memcpy(sentence, state->sentence, sizeof sentence);
    state->error = ACL_SUCCESS;
    pthread_mutex_unlock(&state->lock); /* others may bring work while this thread waits */
    int32_t device_error = ops->synchronize(place.device, place.stream);
    return error != ACL_SUCCESS ? compat_fail(error, "%s", sentence) : device_error;
}

aclError aclrtSynchronizeDevice(void)
{
    const compat_device_ops *ops;
    COMPAT_TRY(compat_device(&ops));
    return ops->synchronize_all(compat_current_device());
}

aclError compat_stream_launch(aclrtStream stream, compat_work work, void *data)
{
    stream_state *state = find_stream(stream);
    if (state == NULL) {
        return not_a_stream(stream);
    }
    const compat_device_ops *ops;
    COMPAT_TRY(compat_device(&ops));
    const compat_place place = place_of(state);
    pthread_mutex_lock(&state->lock);
    if (state->error == ACL_SUCCESS) {
        state->error = work(data, &place);
        if (state->error != ACL_SUCCESS) {
            snprintf(state->sentence, sizeof state->sentence, "%s", compat_sentence());
        }
    }
    pthread_mutex_unlock(&state->lock);
    return ACL_SUCCESS;
}
