/*
 * acl.h - begin, end, and the sentence of the last error. Brings acl_base.h and acl_rt.h.
 */
#ifndef MLA_COMPAT_ACL_H
#define MLA_COMPAT_ACL_H

#include "acl_base.h"
#include "acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* configPath is not read and may be NULL. Errors: ACL_ERROR_REPEAT_INITIALIZE when a call came before, without
 * aclFinalize(). Nothing here needs it: it exists for programs that check its result. */
MLA_COMPAT_API aclError aclInit(const char *configPath);

/* Releases executors that were never run. Memory, tensors and streams stay usable, and can still be freed.
 * Errors: ACL_ERROR_UNINITIALIZE. */
MLA_COMPAT_API aclError aclFinalize(void);

/*
 * The sentence of the calling thread's last failure since the last call: argument, value, rule. "" if there was none.
 * Valid until the thread's next call of this function.
 */
MLA_COMPAT_API const char *aclGetRecentErrMsg(void);

#ifdef __cplusplus
}
#endif

#endif
