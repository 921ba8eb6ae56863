// QK norm: the norm of queries and keys between linear_qkv and the rotary embedding, with its gains (kernels/qk_norm),
// for model.qk_norm other than none.
#pragma once

#include <string>

#include "core/device.h"
#include "kernels/qk_norm/qk_norm.h"
#include "model/dimensions.h"
#include "model/layer_steps.h"
#include "parameters/parameter_store.h"

namespace te::model {

class QkNorm {
 public:
  /// qk_norm head: all tensor-parallel ranks have the gains of a head, and each computes the gradient of its heads.
  /// qk_norm head_no_gain: the gain is 1. nanochat has this norm after the rotary embedding, but a rotation
  /// keeps the mean square of a head and commutes with a common factor, so the order does not matter.
  /// qk_norm projection: each rank has the gains of its heads, and each pass all-reduces one number per token and norm.
  QkNorm(int layer, const config::ModelConfig& model, parameters::ParameterStore& parameters,
         const parallel::TensorParallel& tensor);

  /// Tensors that a pass saves for the backward pass; empty if there is none.
  struct Activations {
    PlannedTensor raw;   ///< [tokens, q and k of this rank]: input of the norm
    PlannedTensor rstd;  ///< [tokens, segments] fp32
    PlannedTensor sums;  ///< scratch [tokens, segments] fp32, only if shares_norms()
  };
  /// True if a norm spans the tensor-parallel ranks; passes then need Activations::sums.
  static bool shares_norms(const config::ModelConfig& model, const parallel::TensorParallel& tensor) {
    return model.qk_norm == config::QkNorm::projection && tensor.size() > 1;
  }
  void plan_activations(MemoryPlan& plan, Activations& activations, const Dimensions& dims,
                        Lifetime lifetime) const;
  void plan_scratch(MemoryPlan& plan);

  /// Normalizes q and k within qkv.
  void forward(const Context& context, const Tensor& qkv, const Activations& activations) const;
  /// Replaces the gradient of the norm's output in dqkv by that of its input; the gradients of the gains accumulate.
  void backward(const Context& context, const Tensor& dqkv, const Activations& activations) const;

 private:
  enum class Buffer : uint8_t { raw, rstd, sums, gain_sums };
  Tensor q_gain() const { return q_ != nullptr ? q_->value : parameters_.ones(q_width_); }
  Tensor k_gain() const { return k_ != nullptr ? k_->value : parameters_.ones(k_width_); }
  std::string name_;
  kernels::QkShape shape_;
  float eps_;
  bool zero_centered_;
  const parameters::ParameterStore& parameters_;
  parameters::Parameter* q_ = nullptr;  ///< null, like k_: gains of 1
  parameters::Parameter* k_ = nullptr;
  int64_t q_width_, k_width_;                ///< of the gains
  parallel::Communicator* ranks_ = nullptr;  ///< ranks that a norm spans; null: one rank
  PlannedTensor gain_sums_;                  ///< scratch: partial sums of the gains' gradients
};

}  // namespace te::model
