/*
 * log.h - ATB_LOG(ERROR) << "text": accepted, and dropped.
 */
#ifndef MLA_COMPAT_ATB_UTILS_LOG_H
#define MLA_COMPAT_ATB_UTILS_LOG_H

#ifndef __cplusplus
#error "the headers of atb are C++"
#endif

namespace atb {

struct DroppedLog {
    template <typename T> const DroppedLog &operator<<(const T &) const
    {
        return *this;
    }
};

} // namespace atb

/* The level is a word and no expression: DEBUG, INFO, WARN, ERROR, FATAL. */
#define ATB_LOG(level) ::atb::DroppedLog()

#endif
