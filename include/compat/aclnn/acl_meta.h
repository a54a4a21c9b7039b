/*
 * acl_meta.h - tensors and executors of the aclnn operators.
 *
 * A tensor is a description: it does not own the memory it points to, and an operator's first phase copies what it
 * needs of it. An executor is what the first phase hands to the second; it is used up there.
 */
#ifndef MLA_COMPAT_ACL_META_H
#define MLA_COMPAT_ACL_META_H

#include "aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct aclTensor aclTensor;
typedef struct aclOpExecutor aclOpExecutor;

/*
 * viewDims, stride   [viewDimsNum], at most 25 of them, dims >= 0; stride in elements, NULL: contiguous
 * offset             of the first element from data, in elements
 * storageDims        [storageDimsNum], not used: the view says it all; may be NULL with 0
 * data               may be NULL; read when an operator is launched
 *
 * Returns NULL on failure, see aclGetRecentErrMsg(). Release with aclDestroyTensor(); one that is not released costs
 * its own memory and nothing else.
 */
MLA_COMPAT_API aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                                          const int64_t *stride, int64_t offset, aclFormat format,
                                          const int64_t *storageDims, uint64_t storageDimsNum, void *data);
MLA_COMPAT_API aclnnStatus aclDestroyTensor(const aclTensor *tensor); /* NULL is fine */

/* *viewDims is a new array of *viewDimsNum entries, which the caller releases with delete[]; a C program, with free().
 * Errors, also of the next two: ACLNN_ERR_PARAM_NULLPTR, ACLNN_ERR_PARAM_INVALID for a foreign tensor. */
MLA_COMPAT_API aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims, uint64_t *viewDimsNum);
MLA_COMPAT_API aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType);
MLA_COMPAT_API aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format);

#ifdef __cplusplus
}
#endif

#endif
