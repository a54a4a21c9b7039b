/*
 * aclnn_quant_sparse_flash_mla.h - QuantSparseFlashMla in two phases.
 *
 * What the arguments mean, their shapes and rules, is said in libmla's mla/quant_sparse_flash_mla.h, under the same
 * names in snake case. An optional tensor is absent when it is NULL, has no dims, or has a dim 0 of 0.
 */
#ifndef MLA_COMPAT_ACLNN_QUANT_SPARSE_FLASH_MLA_H
#define MLA_COMPAT_ACLNN_QUANT_SPARSE_FLASH_MLA_H

#include <stdbool.h>

#include "../aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * First phase: checks everything that needs no look into a tensor's memory and makes an executor. It keeps copies of
 * all arguments except the memory that tensors point to, which is read and written when the executor runs; tensors may
 * be destroyed, and strings may go, as soon as this returns. *workspaceSize is 0. softmaxLseOutOptional is not looked
 * at unless returnSoftmaxLse is true.
 *
 * Errors: ACLNN_ERR_PARAM_NULLPTR for a mandatory argument that is NULL (q, oriKv, qDescale, oriKvDescale, sinks,
 * metadata, attnOut, softmaxLse when it is asked for, workspaceSize, executor); ACLNN_ERR_PARAM_INVALID for anything
 * else against the rules; *executor is then NULL, and aclGetRecentErrMsg() names argument, value and rule.
 */
MLA_COMPAT_API aclnnStatus
aclnnQuantSparseFlashMlaGetWorkspaceSize(const aclTensor *q, const aclTensor *oriKvOptional,
                                         const aclTensor *cmpKvOptional, const aclTensor *qDescaleOptional,
                                         const aclTensor *oriKvDescaleOptional, const aclTensor *cmpKvDescaleOptional,
                                         const aclTensor *oriSparseIndicesOptional,
                                         const aclTensor *cmpSparseIndicesOptional,
                                         const aclTensor *oriBlockTableOptional, const aclTensor *cmpBlockTableOptional,
                                         const aclTensor *cuSeqlensQOptional, const aclTensor *cuSeqlensOriKvOptional,
                                         const aclTensor *cuSeqlensCmpKvOptional, const aclTensor *sequsedQOptional,
                                         const aclTensor *sequsedOriKvOptional, const aclTensor *sequsedCmpKvOptional,
                                         const aclTensor *cmpResidualKvOptional, const aclTensor *oriTopkLengthOptional,
                                         const aclTensor *cmpTopkLengthOptional, const aclTensor *sinksOptional,
                                         const aclTensor *metadataOptional, int64_t quantMode, double softmaxScale,
                                         int64_t cmpRatio, int64_t oriMaskMode, int64_t cmpMaskMode, int64_t oriWinLeft,
                                         int64_t oriWinRight, char *layoutQOptional, char *layoutKvOptional,
                                         int64_t topkValueMode, bool returnSoftmaxLse, const aclTensor *attnOutOut,
                                         const aclTensor *softmaxLseOutOptional, uint64_t *workspaceSize,
                                         aclOpExecutor **executor);

/*
 * Second phase: gives the executor's work to the stream (NULL: the default one) and uses the executor up. workspace and
 * workspaceSize are not used. A bad number inside a tensor (a length beyond its sequence, a page that is not there) is
 * the stream's error, ACL_ERROR_RT_AICORE_EXCEPTION from aclrtSynchronizeStream(); outputs are then not written.
 *
 * Errors: ACLNN_ERR_INNER_NULLPTR for an executor that is NULL, used before, or another operator's;
 * ACLNN_ERR_RUNTIME_ERROR for what is not a stream, the executor then stays.
 */
MLA_COMPAT_API aclnnStatus aclnnQuantSparseFlashMla(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                                    aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
