/*
 * acl_place.h - part of aclnn_call.h: tensors of a test on the device that MLA_DEVICE names: on the CPU they stay where they are, on a GPU each
 * gets a twin in device memory, and outputs come back.
 */
#ifndef ACL_PLACE_H
#define ACL_PLACE_H

static inline bool on_gpu(void)
{
    const char *device = getenv("MLA_DEVICE");
    return device != NULL && strcmp(device, "cuda") == 0;
}

/* Bytes from the tensor's data to the end of its last element. */
static inline size_t span_of(const tensor_data *t)
{
    int64_t last = t->offset, stride = 1;
    for (int i = t->n_dim - 1; i >= 0; i--) {
        if (t->dim[i] == 0) {
            return 0;
        }
        last += (t->dim[i] - 1) * (t->stride[0] != 0 ? t->stride[i] : stride);
        stride *= t->dim[i];
    }
    return (size_t)(last + 1) * aclDataTypeSize((aclDataType)t->type);
}

/* twin[i] is t[i] on the device. */
static inline void place(const tensor_data *t, tensor_data *twin, int n)
{
    for (int i = 0; i < n; i++) {
        twin[i] = t[i];
        size_t bytes = t[i].absent || t[i].data == NULL ? 0 : span_of(&t[i]);
        if (!on_gpu() || bytes == 0) {
            continue;
        }
        if (aclrtMalloc(&twin[i].data, bytes, ACL_MEM_MALLOC_HUGE_FIRST) != ACL_SUCCESS ||
            aclrtMemcpy(twin[i].data, bytes, t[i].data, bytes, ACL_MEMCPY_HOST_TO_DEVICE) != ACL_SUCCESS) {
            fail_msg("%s", aclGetRecentErrMsg());
        }
    }
}

/* Brings back the tensors [first_output, n) and releases all twins. */
static inline void take_back(const tensor_data *t, tensor_data *twin, int first_output, int n)
{
    for (int i = 0; i < n; i++) {
        if (twin[i].data == t[i].data) {
            continue;
        }
        size_t bytes = span_of(&t[i]);
        if (i >= first_output) {
            assert_int_equal(aclrtMemcpy(t[i].data, bytes, twin[i].data, bytes, ACL_MEMCPY_DEVICE_TO_HOST),
                             ACL_SUCCESS);
        }
        assert_int_equal(aclrtFree(twin[i].data), ACL_SUCCESS);
    }
}

#endif
