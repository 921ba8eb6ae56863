// The norm of queries and keys between linear_qkv and the rotary embedding, with its gains (kernels/qk_norm):
// model.qk_norm other than none.
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
  /// All tensor ranks have the gains of a head; each finds its own heads' part of the gradients. Of a norm over all
  /// heads each has its own heads' gains, and either pass is a sum over the ranks of one number per token and norm.
  QkNorm(const std::string& name, const config::ModelConfig& model, parameters::ParameterStore& parameters,
         const parallel::TensorParallel& tensor);

  /// What a pass leaves for the backward pass; empty where there will be none.
  struct Activations {
    Tensor raw;   ///< [tokens, q and k of this rank]: as linear_qkv made them
    Tensor rstd;  ///< [tokens, pieces] fp32
    Tensor sums;  ///< scratch [tokens, pieces] fp32, where shares_norms()
  };
  /// Tensor ranks share the norms: passes need Activations::sums.
  static bool shares_norms(const config::ModelConfig& model, const parallel::TensorParallel& tensor) {
    return model.qk_norm == config::QkNorm::projection && tensor.size() > 1;
  }
  void plan_activations(MemoryPlan& plan, Activations& activations, const Dimensions& dims,
                        Lifetime lifetime) const;
  void plan_scratch(MemoryPlan& plan);

  /// q and k inside qkv.
  void forward(const Context& context, const Tensor& qkv, const Activations& activations) const;
  /// dqkv, of what the norm made, becomes that of what it took; the gains' gradients accumulate.
  void backward(const Context& context, const Tensor& dqkv, const Activations& activations) const;

 private:
  std::string name_;
  kernels::QkShape shape_;
  float eps_;
  bool zero_centered_;
  parameters::Parameter* q_;
  parameters::Parameter* k_;
  parallel::Communicator* ranks_ = nullptr;  ///< that share the norms; null: none do
  Tensor gain_sums_;                         ///< scratch: partial sums of the gains' gradients
};

}  // namespace te::model
