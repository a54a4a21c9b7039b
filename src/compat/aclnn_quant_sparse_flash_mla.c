/*
 * aclnn_quant_sparse_flash_mla.c - the operator with aclnn's signature.
 */
#include "aclnnop/aclnn_quant_sparse_flash_mla.h"

#include "acl_status.h"
#include "aclnn_arguments.h"
#include "mla/quant_sparse_flash_mla.h"

static int32_t run(void *capture, const compat_place *place)
{
    const mla_plan_options options = {.stream = place->stream};
    return compat_run_status(mla_quant_sparse_flash_mla(capture, &options), ACL_ERROR_RT_AICORE_EXCEPTION);
}

static const compat_operator quant_sparse_flash_mla = {"aclnnQuantSparseFlashMla", run};

aclnnStatus
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
                                         aclOpExecutor **executor)
{
    if (workspaceSize == NULL || executor == NULL) {
        return compat_fail(ACLNN_ERR_PARAM_NULLPTR, "%s is NULL", workspaceSize == NULL ? "workspaceSize" : "executor");
    }
    *workspaceSize = 0;
    *executor = NULL;
    mla_quant_sparse_flash_mla_args args;
    mla_quant_sparse_flash_mla_init(&args);
    const compat_argument argument[] = {
        {q, "q", &args.q},
        {oriKvOptional, "ori_kv", &args.ori_kv},
        {cmpKvOptional, "cmp_kv", &args.cmp_kv},
        {qDescaleOptional, "q_descale", &args.q_descale},
        {oriKvDescaleOptional, "ori_kv_descale", &args.ori_kv_descale},
        {cmpKvDescaleOptional, "cmp_kv_descale", &args.cmp_kv_descale},
        {oriSparseIndicesOptional, "ori_sparse_indices", &args.ori_sparse_indices},
        {cmpSparseIndicesOptional, "cmp_sparse_indices", &args.cmp_sparse_indices},
        {oriBlockTableOptional, "ori_block_table", &args.ori_block_table},
        {cmpBlockTableOptional, "cmp_block_table", &args.cmp_block_table},
        {cuSeqlensQOptional, "cu_seqlens_q", &args.cu_seqlens_q},
        {cuSeqlensOriKvOptional, "cu_seqlens_ori_kv", &args.cu_seqlens_ori_kv},
        {cuSeqlensCmpKvOptional, "cu_seqlens_cmp_kv", &args.cu_seqlens_cmp_kv},
        {sequsedQOptional, "seqused_q", &args.seqused_q},
        {sequsedOriKvOptional, "seqused_ori_kv", &args.seqused_ori_kv},
        {sequsedCmpKvOptional, "seqused_cmp_kv", &args.seqused_cmp_kv},
        {cmpResidualKvOptional, "cmp_residual_kv", &args.cmp_residual_kv},
        {oriTopkLengthOptional, "ori_topk_length", &args.ori_topk_length},
        {cmpTopkLengthOptional, "cmp_topk_length", &args.cmp_topk_length},
        {sinksOptional, "sinks", &args.sinks},
        {metadataOptional, "metadata", &args.metadata},
        {attnOutOut, "attn_out", &args.attn_out},
        {returnSoftmaxLse ? softmaxLseOutOptional : NULL, "softmax_lse", &args.softmax_lse},
    };
    COMPAT_TRY(compat_arguments(argument, sizeof argument / sizeof argument[0]));
    args.quant_mode = quantMode;
    args.softmax_scale = softmaxScale;
    args.cmp_ratio = cmpRatio;
    args.ori_mask_mode = oriMaskMode;
    args.cmp_mask_mode = cmpMaskMode;
    args.ori_win_left = oriWinLeft;
    args.ori_win_right = oriWinRight;
    args.layout_q = layoutQOptional;
    args.layout_kv = layoutKvOptional;
    args.topk_value_mode = topkValueMode;
    args.return_softmax_lse = returnSoftmaxLse;
    COMPAT_TRY(compat_check_status(mla_quant_sparse_flash_mla_check(&args)));
    args.layout_q = compat_layout(layoutQOptional); /* the client's strings may go */
    args.layout_kv = compat_layout(layoutKvOptional);
    return compat_executor_create(&quant_sparse_flash_mla, &args, sizeof args, executor);
}

aclnnStatus aclnnQuantSparseFlashMla(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                     aclrtStream stream)
{
    (void)workspace;
    (void)workspaceSize;
    return compat_executor_run(&quant_sparse_flash_mla, executor, stream);
}
