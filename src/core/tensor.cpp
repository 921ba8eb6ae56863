#include "core/tensor.h"

namespace te {

Shape::Shape(std::initializer_list<int64_t> dims) {
  TE_CHECK(dims.size() <= kMaxRank, "shape of rank {}; the largest is {}", dims.size(), kMaxRank);
  for (int64_t dim : dims) {
    TE_CHECK(dim >= 0, "shape with a negative dimension {}", dim);
    dims_[rank_++] = dim;
  }
}

int64_t Shape::numel() const {
  int64_t count = 1;
  for (int axis = 0; axis < rank_; ++axis) count *= dims_[axis];
  return count;
}

std::string Shape::str() const {
  std::string text = "[";
  for (int axis = 0; axis < rank_; ++axis) text += (axis > 0 ? ", " : "") + std::to_string(dims_[axis]);
  return text + "]";
}

}  // namespace te
