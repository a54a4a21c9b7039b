/*
 * aclnn_arguments.h - from an operator's arguments to a door's struct, and from its status to aclnn's.
 */
#ifndef MLA_COMPAT_ACLNN_ARGUMENTS_H
#define MLA_COMPAT_ACLNN_ARGUMENTS_H

#include "aclnn_executor.h"
#include "mla/mla.h"

/* One tensor argument and the view it becomes. */
typedef struct compat_argument {
    const aclTensor *tensor;
    const char *name;
    mla_tensor *view;
} compat_argument;

/* Views of all of them, or the first failure. */
aclnnStatus compat_arguments(const compat_argument *argument, size_t n);

/* A check's verdict, with its sentence: 161001 for a missing argument, 161002 for any other fault of the caller. */
aclnnStatus compat_check_status(mla_status status);

/* A run's verdict, as the stream's error: `exception` for a number that the run met in memory. */
int32_t compat_run_status(mla_status status, int32_t exception);

/* The same string in static storage; only for the names of layouts. NULL for NULL and for other strings. */
const char *compat_layout(const char *layout);

#endif
