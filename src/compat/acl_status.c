/*
 * acl_status.c - the calling thread's last sentence.
 */
#include "acl_status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "acl/acl.h"

static _Thread_local char last_sentence[COMPAT_SENTENCE_BYTES];
static _Thread_local char read_sentence[COMPAT_SENTENCE_BYTES]; /* what aclGetRecentErrMsg() returned last */

int32_t compat_fail(int32_t code, const char *format, ...)
{
    char sentence[COMPAT_SENTENCE_BYTES]; /* apart, because an argument may be the last sentence itself */
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    if (length < 0) {
        snprintf(sentence, sizeof sentence, "error %d", (int)code);
    }
    memcpy(last_sentence, sentence, strlen(sentence) + 1);
    return code;
}

const char *compat_sentence(void)
{
    return last_sentence;
}

const char *aclGetRecentErrMsg(void)
{
    memcpy(read_sentence, last_sentence, sizeof read_sentence);
    last_sentence[0] = '\0';
    return read_sentence;
}
