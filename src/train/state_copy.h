// A copy in host memory of the training state (checkpoint/training_state.h), restored bitwise.
#pragma once

#include <vector>

#include "checkpoint/progress.h"
#include "core/device.h"
#include "train/step_runner.h"

namespace te::train {

/// Bytes of such a copy on this rank; allocates nothing, for plans.
int64_t state_copy_bytes(StepRunner& runner);

class StateCopy {
 public:
  /// Allocates the host memory, page-locked with a GPU. The runner must be allocated, and outlive this object.
  StateCopy(const Context& context, StepRunner& runner);

  /// Copies the runner's state and the progress of the run, between two steps. Waits for the device.
  void save(const checkpoint::Progress& progress);
  /// Restores the state of the last save() and returns its progress. Waits for the device.
  const checkpoint::Progress& restore();
  bool has_copy() const { return has_copy_; }
  void drop() { has_copy_ = false; }

 private:
  /// The tensors of the state, once no work accesses them any more.
  std::vector<checkpoint::StateTensor> idle_state();

  const Context& context_;
  StepRunner& runner_;
  std::vector<HostBuffer> buffers_;
  std::vector<unsigned> num_quantizations_;
  checkpoint::Progress progress_;
  bool has_copy_ = false;
};

}  // namespace te::train
