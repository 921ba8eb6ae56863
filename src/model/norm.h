// RMSNorm or LayerNorm with its parameters; kernels/norm has the formulas.
#pragma once

#include <string>

#include "core/device.h"
#include "kernels/norm/norm.h"
#include "model/linear.h"

namespace te::model {

/// Initial gain, with which a norm multiplies by one: 1, or 0 if it multiplies by 1 + gain.
parameters::Init initial_gain(const config::ModelConfig& model);

class Norm {
 public:
  /// With sequence parallelism, the gradients of gain and bias are those of this rank's tokens only. The embedding's
  /// norm never has a gain.
  Norm(ParameterRole role, int layer, const config::ModelConfig& model,
       parameters::ParameterStore& parameters, const parallel::TensorParallel& tensor);

  /// Per-row statistics of one pass, kept for the backward pass.
  struct Statistics {
    Tensor mean;  ///< [tokens] fp32, LayerNorm only
    Tensor rstd;  ///< [tokens] fp32
  };
  /// `scratch` as in MemoryPlan::add.
  void plan_statistics(MemoryPlan& plan, Planned<Statistics>& statistics, int64_t tokens,
                       Scratch scratch = {}) const;
  void plan_scratch(MemoryPlan& plan, Step backward);

  /// sum = x + delta; produces norm(sum). Without delta, sum must be x.
  ProducedOperand forward(const Context& context, const Tensor& x, const Tensor& delta, const Tensor& sum,
                          const Statistics& statistics, const OperandRequest& request) const;
  /// The norm for decode_megakernel(), without delta and sum.
  kernels::MegakernelNorm megakernel_norm() const;
  /// dx = residual + gradient of x through the norm, given dy (residual may be empty or dx itself; without a gain, dy
  /// may be dx); gradients of gain and bias accumulate. `request`: of the linear layer whose dy is dx.
  ProducedOperand backward(const Context& context, const Tensor& dy, const Tensor& x,
                           const Statistics& statistics, const Tensor& residual, const Tensor& dx,
                           const OperandRequest& request) const;

 private:
  enum class Buffer : uint8_t { mean, rstd, sums };
  Tensor gamma() const { return gain_ != nullptr ? gain_->value : parameters_.ones(hidden_); }
  std::string name_;
  bool layer_norm_;
  kernels::NormKind kind_;
  float eps_;
  int64_t hidden_;
  const parameters::ParameterStore& parameters_;
  parameters::Parameter* gain_ = nullptr;  ///< null: the gain is 1
  parameters::Parameter* bias_ = nullptr;
  PlannedTensor sums_;  ///< scratch: partial sums of the gradients of gain and bias
};

}  // namespace te::model
