/*
 * context.h - where operations are executed.
 */
#ifndef MLA_COMPAT_ATB_CONTEXT_H
#define MLA_COMPAT_ATB_CONTEXT_H

#include <cstddef>
#include <functional>
#include <vector>

#include "types.h"

namespace atb {

/* Not to be used by two threads at once, but for the execute type, of which each thread has its own. */
class Context {
  public:
    Context() = default;
    virtual ~Context() = default;

    virtual Status SetExecuteStream(aclrtStream stream) = 0; /* the first of the streams */
    virtual aclrtStream GetExecuteStream() const = 0;        /* nullptr: none yet */
    virtual Status SetAsyncTilingCopyStatus(bool enable) = 0;
    virtual bool GetAsyncTilingCopyStatus() const = 0;
    virtual Status SetExecuteStreams(const std::vector<aclrtStream> &streams) = 0; /* 1 if empty */
    virtual std::vector<aclrtStream> GetExecuteStreams() = 0;
    virtual Status SetExecuteType(ExecuteType type) = 0; /* PRELAUNCH: Execute() checks; LAUNCH: it runs */
    virtual ExecuteType GetExecuteType() = 0;
    virtual Status SetLaunchMode(LaunchMode mode) = 0;
    virtual LaunchMode GetLaunchMode() = 0;
};

/* *context is released with DestroyContext(). 1: a null pointer, one function of a pair without the other, or a number
 * out of range; *context is then nullptr where there is one. The functions and numbers are checked and not used: here
 * operations need no memory of the context. */
MLA_COMPAT_API Status CreateContext(Context **context);
MLA_COMPAT_API Status CreateContext(Context **context, const std::function<void *(size_t)> &alloc,
                                    const std::function<void(void *)> &dealloc);
MLA_COMPAT_API Status CreateContext(Context **context, uint32_t hostTilingBlockNum, /* 128 .. 1024 */
                                    uint32_t deviceTilingBlockNum);                 /* 32 .. 1024 */

MLA_COMPAT_API Status DestroyContext(Context *context); /* nullptr is fine; 0 */

} // namespace atb

#endif
