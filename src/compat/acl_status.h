/*
 * acl_status.h - how a failure of the Ascend doors becomes a code and one sentence.
 */
#ifndef MLA_COMPAT_ACL_STATUS_H
#define MLA_COMPAT_ACL_STATUS_H

#include <stdint.h>

/* Keeps the sentence for aclGetRecentErrMsg() in the calling thread and returns `code`. Sentences are written as those
 * of mla_fail(): they start with the argument and end without a full stop. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int32_t
compat_fail(int32_t code, const char *format, ...);

#define COMPAT_SENTENCE_BYTES 512

/* The thread's sentence; "" if there is none. Valid until the next failure. */
const char *compat_sentence(void);

/* Forwards a failure. */
#define COMPAT_TRY(call)                  \
    do {                                  \
        int32_t compat_try_code = (call); \
        if (compat_try_code != 0) {       \
            return compat_try_code;       \
        }                                 \
    } while (0)

#endif
