/*
 * status.h - how a failure becomes a status and one sentence.
 */
#ifndef MLA_CORE_STATUS_H
#define MLA_CORE_STATUS_H

#include "mla/mla_types.h"

/* Stores the sentence for mla_last_error() in the calling thread and returns `status`, so that a check reads
 *
 *     return mla_fail(MLA_STATUS_BAD_VALUE, "d_v = %lld must be between 1 and d_k = %lld", ...);
 *
 * A sentence names argument, value and rule, starts in lower case with the argument and ends without a full stop. */
__attribute__((format(printf, 2, 3))) mla_status mla_fail(mla_status status, const char *format, ...);

/* Forwards a failure: `MLA_TRY(f(x));` returns from the caller unless f succeeds. */
#define MLA_TRY(call)                          \
    do {                                       \
        mla_status mla_try_status = (call);    \
        if (mla_try_status != MLA_STATUS_OK) { \
            return mla_try_status;             \
        }                                      \
    } while (0)

#endif
