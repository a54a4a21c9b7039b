/*
 * infer_op_params.h - parameters of the operations that libmla_compat has: multi-head latent attention.
 */
#ifndef MLA_COMPAT_ATB_INFER_OP_PARAMS_H
#define MLA_COMPAT_ATB_INFER_OP_PARAMS_H

#include "operation.h"

namespace atb {
namespace infer {

/*
 * Decode over a paged latent cache (calcType 0 .. 3) or prefill (4). docs/atb.md of libmla describes tensors, rules and
 * refusals; mla/atb_mla.h has shapes and dtypes.
 */
struct MultiLatentAttentionParam {
    int32_t headNum = 0;
    float qkScale = 1;
    int32_t kvHeadNum = 0;

    enum MaskType : int {
        UNDEFINED = 0,
        MASK_TYPE_SPEC = 1,
        MASK_TYPE_MASK_FREE = 2,
        MASK_TYPE_CAUSAL_MASK = 3,
        MASK_TYPE_SWA_NORM = 4
    };
    MaskType maskType = UNDEFINED;

    enum CalcType : int {
        CALC_TYPE_UNDEFINED = 0,
        CALC_TYPE_SPEC = 1,
        CALC_TYPE_RING = 2,
        CALC_TYPE_SPEC_AND_RING = 3,
        CALC_TYPE_PREFILL = 4
    };
    CalcType calcType = CALC_TYPE_UNDEFINED;

    enum CacheMode : uint8_t { KVCACHE = 0, KROPE_CTKV = 1, INT8_NZCACHE = 2, NZCACHE = 3 };
    CacheMode cacheMode = KVCACHE;

    uint32_t windowSize = 0; /* MASK_TYPE_SWA_NORM */

    enum MaskUseStatusType : int { MASK_USE_STATUS_UNDEFINED = 0, BATCH_MASK = 1, MASK_USE_STATUS_MAX = 2 };
    MaskUseStatusType maskUseStatusType = MASK_USE_STATUS_UNDEFINED;

    uint8_t rsv[32] = {0}; /* 0 */
};

} // namespace infer

/* 1: parameters that no call could be legal with; *operation is then nullptr. */
template <>
MLA_COMPAT_API Status CreateOperation(const infer::MultiLatentAttentionParam &opParam, Operation **operation);

} // namespace atb

#endif
