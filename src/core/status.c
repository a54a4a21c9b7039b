/*
 * status.c - the names of statuses, the calling thread's last sentence, and the version.
 */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "mla/mla.h"

#define MLA_SENTENCE_BYTES 512

static _Thread_local char last_sentence[MLA_SENTENCE_BYTES];

mla_status mla_fail(mla_status status, const char *format, ...)
{
    char sentence[MLA_SENTENCE_BYTES]; /* apart, because an argument may be the last sentence itself */
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    if (length < 0) { /* an encoding error: say at least what kind of failure it was */
        snprintf(sentence, sizeof sentence, "%s", mla_status_name(status));
    }
    memcpy(last_sentence, sentence, strlen(sentence) + 1);
    return status;
}

const char *mla_last_error(void)
{
    return last_sentence;
}

const char *mla_status_name(mla_status status)
{
    switch (status) {
    case MLA_STATUS_OK: return "MLA_STATUS_OK";
    case MLA_STATUS_NULL_POINTER: return "MLA_STATUS_NULL_POINTER";
    case MLA_STATUS_BAD_VALUE: return "MLA_STATUS_BAD_VALUE";
    case MLA_STATUS_BAD_SHAPE: return "MLA_STATUS_BAD_SHAPE";
    case MLA_STATUS_BAD_STRIDE: return "MLA_STATUS_BAD_STRIDE";
    case MLA_STATUS_BAD_DTYPE: return "MLA_STATUS_BAD_DTYPE";
    case MLA_STATUS_BAD_DEVICE: return "MLA_STATUS_BAD_DEVICE";
    case MLA_STATUS_OUT_OF_RANGE: return "MLA_STATUS_OUT_OF_RANGE";
    case MLA_STATUS_UNSUPPORTED: return "MLA_STATUS_UNSUPPORTED";
    case MLA_STATUS_STALE_PLAN: return "MLA_STATUS_STALE_PLAN";
    case MLA_STATUS_WORKSPACE_TOO_SMALL: return "MLA_STATUS_WORKSPACE_TOO_SMALL";
    case MLA_STATUS_OUT_OF_MEMORY: return "MLA_STATUS_OUT_OF_MEMORY";
    case MLA_STATUS_INTERNAL: return "MLA_STATUS_INTERNAL";
    }
    return "MLA_STATUS_UNKNOWN";
}

const char *mla_version(void)
{
    return MLA_VERSION_STRING;
}
