/*
 * atb_acl.h - ATB's functions that take aclTensors: AtbMLA and AtbMLAPreFill.
 *
 *     aclInit(nullptr); aclrtSetDevice(0); aclrtCreateStream(&stream);
 *     atb::CreateContext(&context); context->SetExecuteStream(stream);
 *     atb::Operation *op = nullptr; uint64_t size = 0;
 *     AtbMLAGetWorkspaceSize(qNope, ..., &size, &op, context);
 *     aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST);
 *     AtbMLA(workspace, size, op, context); aclrtSynchronizeStream(stream);
 *     atb::DestroyOperation(op); atb::DestroyContext(context);
 *
 * Every call returns an atb::ErrorType; after a failure aclGetRecentErrMsg() has the sentence.
 */
#ifndef MLA_COMPAT_ATB_ATB_ACL_H
#define MLA_COMPAT_ATB_ATB_ACL_H

#include "../acl/acl.h"
#include "../acl/acl_rt.h"
#include "../opdev/common_types.h"
#include "infer_op_params.h"
#include "operation.h"

extern "C" {

/*
 * Decode. T tokens, H = headNum heads, B rows of blockTables, NB blocks of 128 tokens; F: float16 throughout, or
 * bfloat16 throughout. Tensors are contiguous and, but for the two of lengths, in device memory.
 *
 *     qNope         F [T, H, 512]; int8 with cacheMode 2
 *     qRope         F [T, H, 64]
 *     ctKV, kRope   cacheMode 1: F [NB, 128, 1, 512], [NB, 128, 1, 64], ND
 *                   cacheMode 2: int8 [NB, 16, 128, 32], F [NB, 4, 128, 16], FRACTAL_NZ
 *                   cacheMode 3: F [NB, 32, 128, 16], F [NB, 4, 128, 16], FRACTAL_NZ
 *     blockTables   int32 [B, max blocks]
 *     contextLens   int32 [B], host
 *     mask          F, with maskType 1 [T, max keys], 2 [125 + 2q, 128] or [B, 125 + 2q, 128]
 *     qSeqLen       int32 [B], host, with calcType 1 and 3
 *     qkDescale, pvDescale  float [H], with cacheMode 2
 *     attenOut      F [T, H, 512]
 *     lse           F [T, H, 1], float with cacheMode 2; with calcType 2 and 3
 *
 * A tensor that the scalars do not call for is ignored. *op: null, or an operation of an earlier call, which keeps the
 * scalars that it was created with; the caller owns it, also after a failure. Lengths are copied; aclTensors may be
 * destroyed after the call, device memory must stay until the stream has finished. *workspaceSize depends on shapes
 * alone and is a multiple of 512.
 */
MLA_COMPAT_API atb::Status AtbMLAGetWorkspaceSize(const aclTensor *qNope, const aclTensor *qRope, const aclTensor *ctKV,
                                                  const aclTensor *kRope, const aclTensor *blockTables,
                                                  const aclTensor *contextLens, const aclTensor *mask,
                                                  const aclTensor *qSeqLen, const aclTensor *qkDescale,
                                                  const aclTensor *pvDescale, int32_t headNum, float qkScale,
                                                  int32_t kvHeadNum, int maskType, int calcType, uint8_t cacheMode,
                                                  aclTensor *attenOut, aclTensor *lse, uint64_t *workspaceSize,
                                                  atb::Operation **op, atb::Context *context);

/* Runs what the op's last GetWorkspaceSize planned, on the context's stream. May be repeated. */
MLA_COMPAT_API atb::Status AtbMLA(void *workspace, uint64_t workspaceSize, atb::Operation *op, atb::Context *context);

/*
 * Prefill: keys of 128 + 64 columns and values of 128 for each of N = kvHeadNum heads, nothing paged.
 *
 *     q, attenOut   F [T, H * 128] or [T, H, 128]
 *     qRope         F, as q with 64
 *     k, v          F [B, S, N * 128], or rows without padding [sum of kvSeqLen, N, 128]
 *     kRope         F, as k with half the columns
 *     qSeqLen, kvSeqLen  int32 [B], host, equal to each other
 *     mask          F [512, 512], with maskType 2: float16 is added, in bfloat16 1 hides a key
 */
MLA_COMPAT_API atb::Status AtbMLAPreFillGetWorkspaceSize(const aclTensor *q, const aclTensor *qRope, const aclTensor *k,
                                                         const aclTensor *kRope, const aclTensor *v,
                                                         const aclTensor *qSeqLen, const aclTensor *kvSeqLen,
                                                         const aclTensor *mask, int32_t headNum, float qkScale,
                                                         int32_t kvHeadNum, int maskType, uint8_t cacheMode,
                                                         aclTensor *attenOut, uint64_t *workspaceSize,
                                                         atb::Operation **op, atb::Context *context);
MLA_COMPAT_API atb::Status AtbMLAPreFill(void *workspace, uint64_t workspaceSize, atb::Operation *op,
                                         atb::Context *context);
}

#endif
