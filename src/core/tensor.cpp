#include "core/tensor.h"

#include <fmt/ranges.h>

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
  return fmt::format("[{}]", fmt::join(dims_.begin(), dims_.begin() + rank_, ", "));
}

}  // namespace te
