// Tensors whose memory a MemoryPlan provides. The plan keeps their addresses until it allocates, so they must not move:
// MemoryPlan takes only tensors of a type that can be neither copied nor moved, and every object that contains one
// inherits this.
#pragma once

#include "core/tensor.h"

namespace te {

/// A T that contains planned tensors. It converts to T, as a view of the same memory, and takes values of T.
template <class T>
class Planned : public T {
 public:
  Planned() = default;
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;
  using T::operator=;
};

using PlannedTensor = Planned<Tensor>;

/// Where a plan writes dtype, shape and address of a buffer: a planned tensor, or a tensor in a planned object.
class PlanSlot {
 public:
  PlanSlot(PlannedTensor& tensor) : tensor_(&tensor) {}
  /// `field`: a tensor in `owner`.
  template <class T>
  PlanSlot(Planned<T>& owner, Tensor& field) : tensor_(&field) {
    const auto *begin = reinterpret_cast<const char*>(&owner), *at = reinterpret_cast<const char*>(&field);
    TE_CHECK(at >= begin && at + sizeof(field) <= begin + sizeof(owner),
             "a planned tensor is not part of its owner");
  }

  Tensor* get() const { return tensor_; }
  Tensor* operator->() const { return tensor_; }
  Tensor& operator*() const { return *tensor_; }

 private:
  Tensor* tensor_;
};

}  // namespace te
