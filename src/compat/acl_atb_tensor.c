/*
 * acl_atb_tensor.c - an aclTensor as the ATB door takes it.
 */
#include "acl_atb_tensor.h"

#include "acl_device.h"
#include "acl_status.h"
#include "acl_tensor.h"

mla_device compat_atb_device(void)
{
    return (mla_device){compat_device_known()->type, compat_current_device()};
}

const mla_atb_tensor *compat_atb_view(const aclTensor *tensor, mla_atb_tensor *view)
{
    const aclTensor *t = compat_tensor_find(tensor);
    if (t == NULL) {
        return NULL;
    }
    *view = (mla_atb_tensor){.data = t->data,
                             .dtype = t->dtype,
                             .format = t->format,
                             .ndim = (int32_t)t->n_dim,
                             .offset = t->offset,
                             .device = compat_atb_device()};
    for (uint64_t i = 0; i < t->n_dim && i < MLA_ATB_MAX_NDIM; i++) {
        view->dim[i] = t->dim[i];
        view->stride[i] = t->stride[i];
    }
    return view;
}

void compat_atb_keep_sentence(void)
{
    (void)compat_fail(0, "%s", mla_last_error());
}
