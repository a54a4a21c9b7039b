/*
 * acl_tensor.h - an aclTensor, and how it becomes a mla_tensor.
 */
#ifndef MLA_COMPAT_ACL_TENSOR_H
#define MLA_COMPAT_ACL_TENSOR_H

#include "acl_registry.h"
#include "aclnn/acl_meta.h"
#include "mla/mla_types.h"

#define COMPAT_MAX_DIM 25

struct aclTensor {
    compat_object object;
    aclDataType dtype;
    aclFormat format;
    uint64_t n_dim;
    int64_t dim[COMPAT_MAX_DIM];
    int64_t stride[COMPAT_MAX_DIM]; /* in elements */
    int64_t offset;                 /* in elements */
    void *data;
};

/* The tensor behind a handle; NULL when there is none (never followed). */
const aclTensor *compat_tensor_find(const aclTensor *tensor);

/*
 * The view of a tensor, called `name` in sentences; of NULL an absent one. A tensor without elements because its rank
 * or its dim 0 is 0 becomes a view of dims [0] of no type: clients pass such placeholders in any type.
 * ACLNN_ERR_PARAM_INVALID, with a sentence, for a handle that is not a tensor, a format other than ND, a type that
 * libmla does not know, more dims than a mla_tensor has, or an offset before the data.
 */
aclnnStatus compat_tensor_view(const aclTensor *tensor, const char *name, mla_tensor *view);

#endif
