/*
 * acl_tensor.c - descriptions of tensors.
 */
#include "acl_tensor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "acl_device.h"
#include "acl_new.h"
#include "acl_status.h"

size_t aclDataTypeSize(aclDataType dataType)
{
    switch (dataType) {
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL:
    case ACL_HIFLOAT8:
    case ACL_FLOAT8_E5M2:
    case ACL_FLOAT8_E4M3FN:
    case ACL_FLOAT8_E8M0: return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16: return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32: return 4;
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_DOUBLE:
    case ACL_COMPLEX64: return 8;
    case ACL_COMPLEX128: return 16;
    default: return 0;
    }
}

/* MLA_DTYPE_NONE for one that libmla does not know. */
static mla_dtype dtype_of(aclDataType dtype)
{
    switch (dtype) {
    case ACL_FLOAT: return MLA_DTYPE_F32;
    case ACL_FLOAT16: return MLA_DTYPE_F16;
    case ACL_BF16: return MLA_DTYPE_BF16;
    case ACL_INT32: return MLA_DTYPE_I32;
    case ACL_INT64: return MLA_DTYPE_I64;
    case ACL_INT8: return MLA_DTYPE_I8;
    case ACL_UINT8: return MLA_DTYPE_U8;
    case ACL_HIFLOAT8: return MLA_DTYPE_HIF8;
    default: return MLA_DTYPE_NONE;
    }
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* Row-major; a product that leaves int64 ends at its largest value, which later checks refuse. */
static void contiguous_strides(aclTensor *tensor)
{
    int64_t stride = 1;
    for (uint64_t i = tensor->n_dim; i-- > 0;) {
        tensor->stride[i] = stride;
        if (tensor->dim[i] > 1 && __builtin_mul_overflow(stride, tensor->dim[i], &stride)) {
            stride = INT64_MAX;
        }
    }
}

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t *stride,
                           int64_t offset, aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum,
                           void *data)
{
    (void)storageDims;
    (void)storageDimsNum;
    if (viewDimsNum > COMPAT_MAX_DIM) {
        compat_fail(ACLNN_ERR_PARAM_INVALID, "viewDimsNum = %" PRIu64 " must be at most %d", viewDimsNum,
                    COMPAT_MAX_DIM);
        return NULL;
    }
    if (viewDims == NULL && viewDimsNum > 0) {
        compat_fail(ACLNN_ERR_PARAM_NULLPTR, "viewDims is NULL, but viewDimsNum = %" PRIu64, viewDimsNum);
        return NULL;
    }
    for (uint64_t i = 0; i < viewDimsNum; i++) {
        if (viewDims[i] < 0) {
            compat_fail(ACLNN_ERR_PARAM_INVALID, "viewDims[%" PRIu64 "] = %" PRId64 " is negative", i, viewDims[i]);
            return NULL;
        }
    }
    aclTensor *tensor = calloc(1, sizeof *tensor);
    if (tensor == NULL) {
        compat_fail(ACL_ERROR_BAD_ALLOC, "tensor does not fit into memory");
        return NULL;
    }
    tensor->dtype = dataType;
    tensor->format = format;
    tensor->offset = offset;
    tensor->data = data;
    tensor->n_dim = viewDimsNum;
    for (uint64_t i = 0; i < viewDimsNum; i++) {
        tensor->dim[i] = viewDims[i];
    }
    if (stride == NULL) {
        contiguous_strides(tensor);
    } else {
        memcpy(tensor->stride, stride, (size_t)viewDimsNum * sizeof *stride);
    }
    compat_register(&tensor->object, COMPAT_TENSOR, tensor);
    return tensor;
}

static aclnnStatus not_a_tensor(const char *name, const aclTensor *tensor)
{
    return compat_fail(ACLNN_ERR_PARAM_INVALID,
                       "%s = %p is not a tensor: it was not made by aclCreateTensor(), or it was destroyed", name,
                       (const void *)tensor);
}

aclnnStatus aclDestroyTensor(const aclTensor *tensor)
{
    if (tensor == NULL) {
        return ACLNN_SUCCESS;
    }
    aclTensor *found = compat_take(COMPAT_TENSOR, tensor);
    if (found == NULL) {
        return not_a_tensor("tensor", tensor);
    }
    free(found);
    return ACLNN_SUCCESS;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

const aclTensor *compat_tensor_find(const aclTensor *tensor)
{
    return tensor != NULL ? compat_find(COMPAT_TENSOR, tensor) : NULL;
}

static aclnnStatus check_question(const aclTensor *tensor, const char *name, const void *answer)
{
    if (tensor == NULL || answer == NULL) {
        return compat_fail(ACLNN_ERR_PARAM_NULLPTR, "%s is NULL", tensor == NULL ? "tensor" : name);
    }
    return compat_tensor_find(tensor) != NULL ? ACLNN_SUCCESS : not_a_tensor("tensor", tensor);
}

aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims, uint64_t *viewDimsNum)
{
    COMPAT_TRY(check_question(tensor, "viewDims", viewDims));
    COMPAT_TRY(check_question(tensor, "viewDimsNum", viewDimsNum));
    *viewDims = compat_new_dims((size_t)tensor->n_dim);
    if (*viewDims == NULL) {
        return compat_fail(ACLNN_ERR_INNER, "viewDims does not fit into memory");
    }
    memcpy(*viewDims, tensor->dim, (size_t)tensor->n_dim * sizeof **viewDims);
    *viewDimsNum = tensor->n_dim;
    return ACLNN_SUCCESS;
}

aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType)
{
    COMPAT_TRY(check_question(tensor, "dataType", dataType));
    *dataType = tensor->dtype;
    return ACLNN_SUCCESS;
}

aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format)
{
    COMPAT_TRY(check_question(tensor, "format", format));
    *format = tensor->format;
    return ACLNN_SUCCESS;
}

/* ---- the view ---------------------------------------------------------------------------------------------------- */

aclnnStatus compat_tensor_view(const aclTensor *tensor, const char *name, mla_tensor *view)
{
    *view = (mla_tensor){.name = name};
    if (tensor == NULL) {
        return ACLNN_SUCCESS;
    }
    const aclTensor *t = compat_tensor_find(tensor);
    if (t == NULL) {
        return not_a_tensor(name, tensor);
    }
    view->device = (mla_device){compat_device_known()->type, compat_current_device()};
    if (t->n_dim == 0 || t->dim[0] == 0) {
        view->ndim = 1;
        return ACLNN_SUCCESS;
    }
    if (t->format != ACL_FORMAT_ND) {
        return compat_fail(ACLNN_ERR_PARAM_INVALID, "%s: format %d must be ND (%d)", name, (int)t->format,
                           (int)ACL_FORMAT_ND);
    }
    if (t->n_dim > MLA_MAX_NDIM) {
        return compat_fail(ACLNN_ERR_PARAM_INVALID, "%s has %" PRIu64 " dims, more than this operator's tensors have",
                           name, t->n_dim);
    }
    view->dtype = dtype_of(t->dtype);
    if (view->dtype == MLA_DTYPE_NONE) {
        return compat_fail(ACLNN_ERR_PARAM_INVALID, "%s: data type %d is not one that this operator takes", name,
                           (int)t->dtype);
    }
    int64_t bytes;
    if (t->offset < 0 || __builtin_mul_overflow(t->offset, (int64_t)mla_dtype_size(view->dtype), &bytes)) {
        return compat_fail(ACLNN_ERR_PARAM_INVALID, "%s: offset %" PRId64 " does not lie behind its data", name,
                           t->offset);
    }
    view->ndim = (int32_t)t->n_dim;
    memcpy(view->dim, t->dim, (size_t)t->n_dim * sizeof *view->dim);
    memcpy(view->stride, t->stride, (size_t)t->n_dim * sizeof *view->stride);
    if (t->data != NULL) {
        view->data = (char *)t->data + bytes;
    }
    return ACLNN_SUCCESS;
}
