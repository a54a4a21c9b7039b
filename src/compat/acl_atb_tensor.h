/*
 * acl_atb_tensor.h - an aclTensor as the ATB door takes it. C, because only C sees what an aclTensor consists of.
 */
#ifndef MLA_COMPAT_ACL_ATB_TENSOR_H
#define MLA_COMPAT_ACL_ATB_TENSOR_H

#include "aclnn/acl_meta.h"
#include "mla/atb_mla.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills in *view and returns it; NULL for a handle that is not a tensor. */
const mla_atb_tensor *compat_atb_view(const aclTensor *tensor, mla_atb_tensor *view);

/* Where the calling thread's device memory is. */
mla_device compat_atb_device(void);

/* Keeps a sentence of libmla for aclGetRecentErrMsg(). */
void compat_atb_keep_sentence(void);

#ifdef __cplusplus
}
#endif

#endif
