// All that a step changes and the next one reads, copied to host memory and put back bit for bit: values and main
// parameters, moments, the FP8 scale table. Gradients and FP8 weights are not among it: a step voids the ones and casts
// the others.
#pragma once

#include <vector>

#include "core/device.h"
#include "train/step_runner.h"

namespace te::train {

/// What a copy of this runner's state takes on this rank; without memory, for plans.
int64_t state_copy_bytes(StepRunner& runner);

class StateCopy {
 public:
  /// Takes the host memory, page-locked beside a GPU. The runner must be allocated, and outlive it.
  StateCopy(const Context& context, StepRunner& runner);

  /// Between two steps. Waits for the device.
  void save();
  /// The runner is as it was when save() was called. Waits for the device.
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
