// Alignment of the two weights of a SwiGLU: the cosine of each channel's gate and up row. When they align, the input of
// linear_fc2 grows quadratically, and its outliers break per-tensor scales late in long runs; alignment is an early
// sign (M. Fishman et al., arXiv 2409.12517, section 4).
#pragma once

#include <functional>
#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "parameters/parameter_store.h"

namespace te::train {

struct LayerAlignment {
  int64_t layer = 0;
  double mean = 0, max = 0;  ///< of |cosine| over the channels
  int64_t channels = 0;      ///< on this rank
};

class SwigluAlignment {
 public:
  /// Does nothing for a model without SwiGLU.
  SwigluAlignment(const config::ModelConfig& model, const parameters::ParameterStore& parameters);
  void plan(MemoryPlan& plan);
  /// Measures the current weights; waits for the device. `before` is called for each weight before it is read.
  std::vector<LayerAlignment> measure(
      const Context& context, const std::function<void(const parameters::Parameter&)>& before = {}) const;

 private:
  struct Weight {
    int64_t layer;
    const parameters::Parameter* parameter;
  };
  std::vector<Weight> weights_;
  PlannedTensor cosines_;  ///< [layers, channels] fp32
};

}  // namespace te::train
