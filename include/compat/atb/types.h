/*
 * types.h - status numbers, tensors and enums of ATB, as libmla_compat provides them.
 *
 * Names and numbers are ATB's; sources that were written against it compile unmodified, binaries do not run. C++17.
 */
#ifndef MLA_COMPAT_ATB_TYPES_H
#define MLA_COMPAT_ATB_TYPES_H

#ifndef __cplusplus
#error "the headers of atb are C++; the same in C is mla/atb_mla.h"
#endif

#include <cstdint>

#include "../acl/acl.h"
#include "svector.h"

namespace atb {

enum ErrorType : int {
    NO_ERROR = 0,
    ERROR_INVALID_PARAM = 1,
    ERROR_INVALID_GRAPH = 2,
    ERROR_INTERNAL_ERROR = 3,
    ERROR_RT_FAIL = 4,
    ERROR_INVALID_IN_TENSOR_NUM = 5,
    ERROR_INVALID_TENSOR_DTYPE = 6,
    ERROR_INVALID_TENSOR_FORMAT = 7,
    ERROR_INVALID_TENSOR_DIM = 8,
    ERROR_INVALID_TENSOR_SIZE = 9,
    ERROR_OPERATION_NULL_RUNNER = 10,
    ERROR_GRAPH_INFERSHAPE_FUNC_FAIL = 11,
    ERROR_CANN_ERROR = 12,
    ERROR_INVALID_TENSOR_INI_MATCH = 13,
    ERROR_INVALID_TENSOR_ADDR = 14,
    ERROR_INVALID_TENSOR_NUM = 15,
    ERROR_INVALID_TENSOR_DIM_NUM = 16,
    ERROR_INVALID_SINGLE_OPERATION_PARAM = 17,
    ERROR_GRAPH_NODE_RESHAPE_FUNC_FAIL = 18,
    ERROR_INVALID_GRAPH_NODE_CHUNK = 19,
    ERROR_INVALID_CONTEXT_ADDR = 20,
    ERROR_INVALID_STREAM = 21,
    ERROR_INVALID_WORKSPACE_SIZE = 22,
    ERROR_INVALID_WORKSPACE_ADDR = 23,
    ERROR_INVALID_OPERATION_ADDR = 24,
    ERROR_HCCL_FAIL = 25,
    ERROR_OUT_OF_DEVICE_MEMORY = 26,
    ERROR_OUT_OF_HOST_MEMORY = 27,
    ERROR_COMM_EMPTY = 28,
    ERROR_COPY_HOST_MEMORY_FAIL = 29
};

/* An ErrorType. The sentence of a failure: aclGetRecentErrMsg(). */
using Status = int32_t;

constexpr uint64_t MAX_DIM = 8;

struct Dims {
    int64_t dims[MAX_DIM];
    uint64_t dimNum = 0;
};

struct TensorDesc {
    aclDataType dtype = ACL_DT_UNDEFINED;
    aclFormat format = ACL_FORMAT_UNDEFINED;
    Dims shape;
};

struct Tensor {
    TensorDesc desc;
    void *deviceData = nullptr;
    void *hostData = nullptr; /* lengths: the operations here read these */
    uint64_t dataSize = 0;    /* bytes; not used */
};

/* The tensors of an operation, in its order. */
struct VariantPack {
    SVector<Tensor> inTensors;
    SVector<Tensor> outTensors;
};

enum ExecuteType : int { EXECUTE_NORMAL = 0, EXECUTE_PRELAUNCH = 1, EXECUTE_LAUNCH = 2 };
enum LaunchMode : int { KERNEL_LAUNCH_MODE = 0, GRAPH_LAUNCH_MODE = 1 };

} // namespace atb

#endif
