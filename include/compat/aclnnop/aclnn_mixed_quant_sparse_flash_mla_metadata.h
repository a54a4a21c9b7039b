/*
 * aclnn_mixed_quant_sparse_flash_mla_metadata.h - MixedQuantSparseFlashMlaMetadata in two phases: the metadata tensor
 * of QuantSparseFlashMla.
 *
 * It writes what QuantSparseFlashMlaMetadata writes; ropeHeadDim is not used.
 * The tensor's contents are opaque. It belongs to the parameters and lengths that it was made from, may be used again
 * while these stay the same, and is a hint: a stale, foreign or empty one does not change a result.
 */
#ifndef MLA_COMPAT_ACLNN_MIXED_QUANT_SPARSE_FLASH_MLA_METADATA_H
#define MLA_COMPAT_ACLNN_MIXED_QUANT_SPARSE_FLASH_MLA_METADATA_H

#include <stdbool.h>

#include "../aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * First phase; arguments as those of the operator, metadata int32 [1024]. A tensor is absent when it is NULL, has no
 * dims or has a dim 0 of 0; its type does not matter then. *workspaceSize is 0. Capture as in the operator's first
 * phase. Errors: ACLNN_ERR_INNER_NULLPTR for NULL workspaceSize or executor, ACLNN_ERR_PARAM_INVALID for anything else,
 * NULL metadata included.
 */
MLA_COMPAT_API aclnnStatus
aclnnMixedQuantSparseFlashMlaMetadataGetWorkspaceSize(const aclTensor *cuSeqlensQOptional,
                                                      const aclTensor *cuSeqlensOriKvOptional,
                                                      const aclTensor *cuSeqlensCmpKvOptional,
                                                      const aclTensor *sequsedQOptional,
                                                      const aclTensor *sequsedOriKvOptional,
                                                      const aclTensor *sequsedCmpKvOptional,
                                                      const aclTensor *cmpResidualKvOptional,
                                                      const aclTensor *oriTopkLengthOptional,
                                                      const aclTensor *cmpTopkLengthOptional, int64_t numHeadsQ,
                                                      int64_t numHeadsKv, int64_t headDim, int64_t quantMode,
                                                      int64_t batchSize, int64_t maxSeqlenQ, int64_t maxSeqlenOriKv,
                                                      int64_t maxSeqlenCmpKv, int64_t oriTopk, int64_t cmpTopk,
                                                      int64_t ropeHeadDim, int64_t cmpRatio, int64_t oriMaskMode,
                                                      int64_t cmpMaskMode, int64_t oriWinLeft, int64_t oriWinRight,
                                                      const char *layoutQOptional, const char *layoutKvOptional,
                                                      bool hasOriKv, bool hasCmpKv, const aclTensor *metadata,
                                                      uint64_t *workspaceSize, aclOpExecutor **executor);

/* Second phase, as the operator's; a bad number inside a tensor gives ACL_ERROR_RT_AICPU_EXCEPTION. */
MLA_COMPAT_API aclnnStatus aclnnMixedQuantSparseFlashMlaMetadata(void *workspace, uint64_t workspaceSize,
                                                                 aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
