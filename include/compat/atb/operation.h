/*
 * operation.h - an operation of ATB.
 */
#ifndef MLA_COMPAT_ATB_OPERATION_H
#define MLA_COMPAT_ATB_OPERATION_H

#include <string>

#include "context.h"
#include "types.h"

namespace atb {

/* Different operations may be used by different threads at the same time, one by one thread at a time. */
class Operation {
  public:
    Operation() = default;
    virtual ~Operation() = default;

    virtual std::string GetName() const = 0;
    virtual Status InferShape(const SVector<TensorDesc> &inTensorDescs, SVector<TensorDesc> &outTensorDescs) const = 0;
    virtual uint32_t GetInputNum() const = 0;
    virtual uint32_t GetOutputNum() const = 0;

    /* Checks and plans. Lengths (hostData) are read and kept; device addresses may still be missing. */
    virtual Status Setup(const VariantPack &variantPack, uint64_t &workspaceSize, Context *context) = 0;

    /* Runs on the context's stream, with the device addresses of this pack. */
    virtual Status Execute(const VariantPack &variantPack, uint8_t *workspace, uint64_t workspaceSize,
                           Context *context) = 0;
};

/* Operations exist for the parameters of infer_op_params.h. *operation is released with DestroyOperation(). */
template <typename OpParam> Status CreateOperation(const OpParam &opParam, Operation **operation);

MLA_COMPAT_API Status DestroyOperation(Operation *operation); /* nullptr is fine; 0 */

} // namespace atb

#endif
