/*
 * svector.h - ATB's list of tensors.
 */
#ifndef MLA_COMPAT_ATB_SVECTOR_H
#define MLA_COMPAT_ATB_SVECTOR_H

#include <cstddef>
#include <initializer_list>
#include <vector>

namespace atb {

/* A std::vector with the member functions that ATB's class has. */
template <class T> class SVector {
  public:
    SVector() = default;
    SVector(std::initializer_list<T> list) : items_(list)
    {
    }
    explicit SVector(std::size_t size, const T &value = T()) : items_(size, value)
    {
    }

    T *begin() noexcept
    {
        return items_.data();
    }
    const T *begin() const noexcept
    {
        return items_.data();
    }
    T *end() noexcept
    {
        return items_.data() + items_.size();
    }
    const T *end() const noexcept
    {
        return items_.data() + items_.size();
    }
    T *data() noexcept
    {
        return items_.data();
    }
    const T *data() const noexcept
    {
        return items_.data();
    }

    std::size_t size() const noexcept
    {
        return items_.size();
    }
    bool empty() const noexcept
    {
        return items_.empty();
    }
    T &at(std::size_t i)
    {
        return items_.at(i);
    }
    const T &at(std::size_t i) const
    {
        return items_.at(i);
    }
    T &operator[](std::size_t i)
    {
        return items_[i];
    }
    const T &operator[](std::size_t i) const
    {
        return items_[i];
    }

    void push_back(const T &value)
    {
        items_.push_back(value);
    }
    void resize(std::size_t size)
    {
        items_.resize(size);
    }
    void reserve(std::size_t size)
    {
        items_.reserve(size);
    }
    void clear() noexcept
    {
        items_.clear();
    }

  private:
    std::vector<T> items_;
};

} // namespace atb

#endif
