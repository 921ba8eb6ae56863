// A tensor is a view: pointer, dtype and shape of dense row-major elements in device memory. It does not own them (all
// memory of a run is one block, see core/memory_plan.h), and its constness does not protect them.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"
#include "core/error.h"

namespace te {

class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[axis]; }
  int64_t numel() const;
  std::string str() const;  ///< "[2, 3]"
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  /// True if there is memory to read and write: false for an absent optional tensor, and between planning and
  /// allocation.
  explicit operator bool() const { return data != nullptr; }
  /// True if dtype and shape are set, also before there is memory: false for a tensor that the configuration does not
  /// need, which is never planned.
  bool is_planned() const { return shape.rank() > 0; }
  int64_t numel() const { return data == nullptr ? 0 : shape.numel(); }
  size_t bytes() const { return static_cast<size_t>(dtype_bytes(dtype, numel())); }
  /// The bytes() that it has once there is memory; 0 if it is not planned.
  int64_t planned_bytes() const { return is_planned() ? dtype_bytes(dtype, shape.numel()) : 0; }
  int64_t dim(int axis) const { return shape[axis]; }
  /// The tensor as a matrix, for row-wise kernels: cols() is the last dimension, rows() the product of all others.
  int64_t cols() const { return shape.rank() == 0 ? 1 : shape[shape.rank() - 1]; }
  int64_t rows() const { return cols() == 0 ? 0 : numel() / cols(); }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  /// The same elements with another shape of equal size.
  Tensor view(Shape other) const {
    TE_CHECK(other.numel() == shape.numel(), "view of shape {} of a tensor of shape {}", other.str(),
             shape.str());
    return {data, dtype, other};
  }
  /// Rows [begin, begin + count) of the tensor seen as [rows, cols].
  Tensor slice_rows(int64_t begin, int64_t count) const {
    TE_CHECK(begin >= 0 && count >= 0 && begin + count <= rows(), "slice of {} rows from row {} of shape {}",
             count, begin, shape.str());
    return {static_cast<char*>(data) + dtype_bytes(dtype, begin * cols()), dtype, {count, cols()}};
  }
};

}  // namespace te
