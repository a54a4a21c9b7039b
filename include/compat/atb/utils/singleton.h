/*
 * singleton.h - one object of a class per program.
 */
#ifndef MLA_COMPAT_ATB_UTILS_SINGLETON_H
#define MLA_COMPAT_ATB_UTILS_SINGLETON_H

#ifndef __cplusplus
#error "the headers of atb are C++"
#endif

namespace atb {

template <class T> T &GetSingleton()
{
    static T instance;
    return instance;
}

} // namespace atb

#endif
