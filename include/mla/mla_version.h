/*
 * mla_version.h - the version of libmla, also read by the build.
 *
 * The soname follows MAJOR while MAJOR >= 1; before 1.0 every MINOR may change the binary interface.
 */
#ifndef MLA_VERSION_H
#define MLA_VERSION_H

#define MLA_VERSION_MAJOR 0
#define MLA_VERSION_MINOR 1
#define MLA_VERSION_PATCH 0
#define MLA_VERSION_STRING "0.1.0"

#endif
