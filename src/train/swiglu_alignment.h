// How far the two weights of a SwiGLU are aligned: the cosine of each channel's gate and up row. Where they grow
// together, the input of linear_fc2 becomes their product's square, and its outliers are what breaks scales of whole
// tensors late in long runs: an early sign (M. Fishman et al., arXiv 2409.12517, section 4).
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
  int64_t channels = 0;      ///< of this rank
};

class SwigluAlignment {
 public:
  /// Nothing in a model without SwiGLU.
  SwigluAlignment(const config::ModelConfig& model, const parameters::ParameterStore& parameters);
  void plan(MemoryPlan& plan);
  /// Of the weights as they are; waits for the device. `before` is called with each weight before it is read.
  std::vector<LayerAlignment> measure(
      const Context& context, const std::function<void(const parameters::Parameter&)>& before = {}) const;

 private:
  struct Weight {
    int64_t layer;
    const parameters::Parameter* parameter;
  };
  std::vector<Weight> weights_;
  Tensor cosines_;  ///< [layers, channels] fp32
};

}  // namespace te::train
