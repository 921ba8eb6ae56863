// Word embedding and, for GPT, learned positions with dropout behind them.
#pragma once

#include "core/device.h"
#include "model/parameter_store.h"
#include "model/pass.h"
#include "model/scratch.h"

namespace te::model {

class Embedding {
 public:
  Embedding(const config::Config& config, ParameterStore& parameters);

  void plan(MemoryPlan& plan, const Context& context);
  /// x [tokens, hidden] from tokens int32 [tokens].
  void forward(const Context& context, const Tensor& tokens, const Tensor& x, const Pass& pass) const;
  /// d_x: the gradient of x; used up.
  void backward(const Context& context, const Tensor& tokens, const Tensor& d_x, const Pass& pass) const;

  Parameter* words() const { return words_; }

 private:
  void dropout(const Context& context, const Tensor& x, const Pass& pass) const;
  Dimensions dims_;
  float dropout_;
  Parameter* words_;
  Parameter* positions_ = nullptr;
  Tensor workspace_;
};

}  // namespace te::model
