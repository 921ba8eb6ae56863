// A copy in host memory of everything that a step changes and the next step reads, restored bitwise: BF16 weights and
// FP32 master weights, Adam moments, and the FP8 scale table. Gradients and FP8 weights are left out, as each step
// overwrites the former and requantizes the latter.
#pragma once

#include <vector>

#include "core/device.h"
#include "train/step_runner.h"

namespace te::train {

/// Bytes of such a copy on this rank; allocates nothing, for plans.
int64_t state_copy_bytes(StepRunner& runner);

class StateCopy {
 public:
  /// Allocates the host memory, page-locked with a GPU. The runner must be allocated, and outlive this object.
  StateCopy(const Context& context, StepRunner& runner);

  /// Copies the state, between two steps. Waits for the device.
  void save();
  /// Restores the state of the last save(). Waits for the device.
  void restore();
  bool has_copy() const { return has_copy_; }
  void drop() { has_copy_ = false; }

 private:
  const Context& context_;
  StepRunner& runner_;
  std::vector<HostBuffer> buffers_;
  int64_t updates_ = 0;
  bool has_copy_ = false;
};

}  // namespace te::train
