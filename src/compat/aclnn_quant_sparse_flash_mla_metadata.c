/*
 * aclnn_quant_sparse_flash_mla_metadata.c - both metadata operators with aclnn's signatures.
 */
#include "aclnnop/aclnn_quant_sparse_flash_mla_metadata.h"

#include "acl_status.h"
#include "aclnn_arguments.h"
#include "aclnnop/aclnn_mixed_quant_sparse_flash_mla_metadata.h"
#include "mla/quant_sparse_flash_mla.h"

static int32_t run(void *capture, const compat_place *place)
{
    return compat_run_status(mla_quant_sparse_flash_mla_metadata_on(place->stream, capture),
                             ACL_ERROR_RT_AICPU_EXCEPTION);
}

static const compat_operator metadata_operator = {"aclnnQuantSparseFlashMlaMetadata", run};

aclnnStatus aclnnQuantSparseFlashMlaMetadataGetWorkspaceSize(const aclTensor *cuSeqlensQOptional,
                                                             const aclTensor *cuSeqlensOriKvOptional,
                                                             const aclTensor *cuSeqlensCmpKvOptional,
                                                             const aclTensor *sequsedQOptional,
                                                             const aclTensor *sequsedOriKvOptional,
                                                             const aclTensor *sequsedCmpKvOptional,
                                                             const aclTensor *cmpResidualKvOptional,
                                                             const aclTensor *oriTopkLengthOptional,
                                                             const aclTensor *cmpTopkLengthOptional, int64_t numHeadsQ,
                                                             int64_t numHeadsKv, int64_t headDim, int64_t quantMode,
                                                             int64_t batchSize, int64_t maxSeqlenQ,
                                                             int64_t maxSeqlenOriKv, int64_t maxSeqlenCmpKv,
                                                             int64_t oriTopk, int64_t cmpTopk, int64_t cmpRatio,
                                                             int64_t oriMaskMode, int64_t cmpMaskMode,
                                                             int64_t oriWinLeft, int64_t oriWinRight,
                                                             const char *layoutQOptional, const char *layoutKvOptional,
                                                             bool hasOriKv, bool hasCmpKv, const aclTensor *metadata,
                                                             uint64_t *workspaceSize, aclOpExecutor **executor)
{
    if (workspaceSize == NULL || executor == NULL) {
        return compat_fail(ACLNN_ERR_INNER_NULLPTR, "%s is NULL", workspaceSize == NULL ? "workspaceSize" : "executor");
    }
    *workspaceSize = 0;
    *executor = NULL;
    mla_quant_sparse_flash_mla_metadata_args args;
    mla_quant_sparse_flash_mla_metadata_init(&args);
    const compat_argument argument[] = {
        {cuSeqlensQOptional, "cu_seqlens_q", &args.cu_seqlens_q},
        {cuSeqlensOriKvOptional, "cu_seqlens_ori_kv", &args.cu_seqlens_ori_kv},
        {cuSeqlensCmpKvOptional, "cu_seqlens_cmp_kv", &args.cu_seqlens_cmp_kv},
        {sequsedQOptional, "seqused_q", &args.seqused_q},
        {sequsedOriKvOptional, "seqused_ori_kv", &args.seqused_ori_kv},
        {sequsedCmpKvOptional, "seqused_cmp_kv", &args.seqused_cmp_kv},
        {cmpResidualKvOptional, "cmp_residual_kv", &args.cmp_residual_kv},
        {oriTopkLengthOptional, "ori_topk_length", &args.ori_topk_length},
        {cmpTopkLengthOptional, "cmp_topk_length", &args.cmp_topk_length},
        {metadata, "metadata", &args.metadata},
    };
    COMPAT_TRY(compat_arguments(argument, sizeof argument / sizeof argument[0]));
    args.num_heads_q = numHeadsQ;
    args.num_heads_kv = numHeadsKv;
    args.head_dim = headDim;
    args.quant_mode = quantMode;
    args.batch_size = batchSize;
    args.max_seqlen_q = maxSeqlenQ;
    args.max_seqlen_ori_kv = maxSeqlenOriKv;
    args.max_seqlen_cmp_kv = maxSeqlenCmpKv;
    args.ori_topk = oriTopk;
    args.cmp_topk = cmpTopk;
    args.cmp_ratio = cmpRatio;
    args.ori_mask_mode = oriMaskMode;
    args.cmp_mask_mode = cmpMaskMode;
    args.ori_win_left = oriWinLeft;
    args.ori_win_right = oriWinRight;
    args.layout_q = layoutQOptional;
    args.layout_kv = layoutKvOptional;
    args.has_ori_kv = hasOriKv;
    args.has_cmp_kv = hasCmpKv;
    mla_status status = mla_quant_sparse_flash_mla_metadata_check(&args);
    if (status == MLA_STATUS_NULL_POINTER) { /* a tensor without memory: this operator has one code for all of it */
        return compat_fail(ACLNN_ERR_PARAM_INVALID, "%s", mla_last_error());
    }
    COMPAT_TRY(compat_check_status(status));
    args.layout_q = compat_layout(layoutQOptional); /* the client's strings may go */
    args.layout_kv = compat_layout(layoutKvOptional);
    return compat_executor_create(&metadata_operator, &args, sizeof args, executor);
}

aclnnStatus aclnnQuantSparseFlashMlaMetadata(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                             aclrtStream stream)
{
    (void)workspace;
    (void)workspaceSize;
    return compat_executor_run(&metadata_operator, executor, stream);
}

/* ---- the Mixed operator is the same one, told one more number ---------------------------------------------------- */

aclnnStatus
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
                                                      uint64_t *workspaceSize, aclOpExecutor **executor)
{
    (void)ropeHeadDim;
    return aclnnQuantSparseFlashMlaMetadataGetWorkspaceSize(cuSeqlensQOptional, cuSeqlensOriKvOptional,
                                                            cuSeqlensCmpKvOptional, sequsedQOptional,
                                                            sequsedOriKvOptional, sequsedCmpKvOptional,
                                                            cmpResidualKvOptional, oriTopkLengthOptional,
                                                            cmpTopkLengthOptional, numHeadsQ, numHeadsKv, headDim,
                                                            quantMode, batchSize, maxSeqlenQ, maxSeqlenOriKv,
                                                            maxSeqlenCmpKv, oriTopk, cmpTopk, cmpRatio, oriMaskMode,
                                                            cmpMaskMode, oriWinLeft, oriWinRight, layoutQOptional,
                                                            layoutKvOptional, hasOriKv, hasCmpKv, metadata,
                                                            workspaceSize, executor);
}

aclnnStatus aclnnMixedQuantSparseFlashMlaMetadata(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                                  aclrtStream stream)
{
    return aclnnQuantSparseFlashMlaMetadata(workspace, workspaceSize, executor, stream);
}
