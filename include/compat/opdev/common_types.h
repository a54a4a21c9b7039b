/*
 * common_types.h - what C++ programs ask of an aclTensor besides the acl functions.
 */
#ifndef MLA_COMPAT_OPDEV_COMMON_TYPES_H
#define MLA_COMPAT_OPDEV_COMMON_TYPES_H

#ifndef __cplusplus
#error "opdev/common_types.h and the headers of atb are C++"
#endif

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../aclnn/acl_meta.h"

namespace op {

/* Dims of a tensor, by value. */
class Shape {
  public:
    Shape() = default;
    Shape(const int64_t *dims, uint64_t dimNum) : dims_(dims, dims + dimNum)
    {
    }
    size_t GetDimNum() const
    {
        return dims_.size();
    }
    int64_t GetDim(size_t i) const
    {
        return i < dims_.size() ? dims_[i] : 0;
    } /* 0 past the last one */
    int64_t operator[](size_t i) const
    {
        return GetDim(i);
    }

    int64_t GetShapeSize() const /* elements */
    {
        int64_t n = 1;
        for (int64_t dim : dims_) {
            n *= dim;
        }
        return n;
    }

  private:
    std::vector<int64_t> dims_;
};

} // namespace op

/* Tensors are made by aclCreateTensor() alone; what they consist of is the library's business. */
struct aclTensor {
    aclTensor() = delete;
    aclTensor(const aclTensor &) = delete;

    /* Empty for a handle that is not a tensor. */
    op::Shape GetViewShape() const
    {
        int64_t *dims = nullptr;
        uint64_t dimNum = 0;
        if (aclGetViewShape(this, &dims, &dimNum) != ACLNN_SUCCESS) {
            return op::Shape();
        }
        op::Shape shape(dims, dimNum);
        delete[] dims;
        return shape;
    }

    aclDataType GetDataType() const
    {
        aclDataType dataType = ACL_DT_UNDEFINED;
        (void)aclGetDataType(this, &dataType);
        return dataType;
    }
};

#endif
