/*
 * config.h - what programs ask about the machine.
 */
#ifndef MLA_COMPAT_ATB_UTILS_CONFIG_H
#define MLA_COMPAT_ATB_UTILS_CONFIG_H

#ifndef __cplusplus
#error "the headers of atb are C++"
#endif

namespace atb {

class Config {
  public:
    /* Everything here that needs such a chip works. */
    bool Is910B() const
    {
        return true;
    }
};

} // namespace atb

#endif
