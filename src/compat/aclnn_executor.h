/*
 * aclnn_executor.h - what the first phase of an operator leaves for the second.
 */
#ifndef MLA_COMPAT_ACLNN_EXECUTOR_H
#define MLA_COMPAT_ACLNN_EXECUTOR_H

#include <stddef.h>

#include "acl_stream.h"
#include "aclnn/acl_meta.h"

typedef struct compat_operator {
    const char *name; /* "aclnnQuantSparseFlashMla" */
    compat_work run;  /* on the captured arguments; what it returns becomes the stream's error */
} compat_operator;

/* A new executor with a copy of `bytes` bytes of captured arguments, which hold no pointer into the client's memory
 * except those of the tensors' data. ACLNN_ERR_INNER_CREATE_EXECUTOR without memory; *executor is then NULL. */
aclnnStatus compat_executor_create(const compat_operator *op, const void *capture, size_t bytes,
                                   aclOpExecutor **executor);

/*
 * The second phase: takes the executor and gives its work to the stream. ACLNN_ERR_INNER_NULLPTR for one that is NULL,
 * unknown, used up or another operator's; ACLNN_ERR_RUNTIME_ERROR for what is not a stream. The executor is used up
 * only by success.
 */
aclnnStatus compat_executor_run(const compat_operator *op, aclOpExecutor *executor, aclrtStream stream);

void compat_executor_release_all(void);

#endif
