// The feed-forward sublayer as a mixture of experts (Shazeer et al., arXiv 1701.06538), dropless:
//
//   probs, experts = router(x)                                            kernels/moe/router.h
//   y = sum over the token's experts e of fc2_e(prob_e * activation(fc1_e(x)))
//     + gate(x) * shared_fc2(activation(shared_fc1(x)))                   optional, the gate too
//
// Tokens are copied to rows that are ordered by experts (kernels/moe/permute.h), so that a GEMM of all experts is one
// grouped GEMM. A layer saves the input and the output of fc1; the permuted input is copied again in the backward
// pass, which is cheaper than the memory of topk copies of each token.
//
// The weights of a layer's experts are one parameter each, [experts * out, in]: a range of experts is a range of rows,
// so checkpoints can be resharded by experts like column-parallel linears by outputs.
#pragma once

#include <memory>
#include <string>

#include "kernels/activation/activation.h"
#include "kernels/moe/router.h"
#include "model/feed_forward.h"

namespace te::model {

/// Row ranges of the experts start at multiples of this, the contraction of an FP8 GEMM in wgrad.
constexpr int64_t kExpertAlignment = 16;

class MoeFeedForward final : public FeedForward {
 public:
  MoeFeedForward(int layer, const LayerConfig& config, parameters::ParameterStore& parameters);

  /// Tensors of a microbatch. Those without "scratch" are saved for the backward pass.
  struct Activations final : FeedForward::Activations {
    PlannedTensor input;                           ///< [tokens, hidden]
    PlannedTensor logits, probs, experts;          ///< of the router
    PlannedTensor offsets, row_of, source;         ///< of the rows, kernels/moe/permute.h
    PlannedTensor score_grad;                      ///< [sequences, experts]
    PlannedTensor counts, score_sums, token_sums;  ///< scratch: statistics of the router
    PlannedTensor rows;                            ///< scratch [rows, hidden]: permuted input
    PlannedTensor fc1_out, act;                    ///< [rows, fc1], [rows, ffn]
    PlannedTensor fc2_out;                         ///< scratch [rows, hidden]
    PlannedTensor gate;                            ///< [tokens, 1] fp32: logits of the shared expert's gate
    PlannedTensor shared_fc1_out, shared_act, shared_out;  ///< [tokens, ...]
  };
  struct Gradients final : FeedForward::Gradients {};

  std::unique_ptr<FeedForward::Activations> make_activations() const override {
    return std::make_unique<Activations>();
  }
  std::unique_ptr<FeedForward::Gradients> make_gradients() const override {
    return std::make_unique<Gradients>();
  }
  void plan_weights(MemoryPlan&, bool) override {}
  void plan_scratch(MemoryPlan& plan) override;
  void plan_activations(MemoryPlan& plan, FeedForward::Activations& activations) const override;
  void plan_gradients(MemoryPlan& plan, FeedForward::Gradients& gradients, bool deferred) const override;
  void plan_inference(MemoryPlan& plan, FeedForward::Activations& activations, int64_t rows) const override;
  std::unique_ptr<FeedForward::Activations> first_rows(const FeedForward::Activations& activations,
                                                       const Tensor& input, int64_t rows) const override;
  int64_t max_input_width() const override { return 0; }  // no quantized inputs
  void share_input_layouts(FeedForward::Activations&, const Tensor&, const Tensor&) const override {}
  void bind_routing(const RoutingStatistics& statistics) override { statistics_ = statistics; }

  void quantize_weights(const Context&, bool) override {}
  OperandRequest input_request(FeedForward::Activations& activations, const Pass&) override {
    return {.high_precision = static_cast<Activations&>(activations).input};
  }
  void forward(const Context& context, FeedForward::Activations& activations, const ProducedOperand& x,
               const Tensor& y, const Pass& pass) override;
  OperandRequest grad_request(FeedForward::Gradients&, const Pass&) const override { return {}; }
  void backward(const Context& context, const ProducedOperand& d_output,
                FeedForward::Activations& activations, FeedForward::Gradients& gradients, const Tensor& dx,
                const Pass& pass, bool deferred, const RecomputeInput& recompute_input) override;
  void wgrad(const Context&, const FeedForward::Activations&, const FeedForward::Gradients&) const override;

 private:
  enum class Buffer : uint8_t {
    input,
    logits,
    probs,
    experts,
    offsets,
    row_of,
    source,
    counts,
    score_sums,
    token_sums,
    rows,
    fc1_out,
    act,
    fc2_out,
    gate,
    shared_fc1_out,
    shared_act,
    shared_out,
    d_rows,
    d_act,
    shared_d_act,
    d_input_rows,
    d_probs,
    d_logits,
    d_gate
  };
  /// Lifetimes of the tensors that inference needs, too.
  struct Life {
    Lifetime saved_act, saved, routing, shared_out;
  };
  void add_tensors(MemoryPlan& plan, Activations& a, int64_t tokens, const std::string& prefix,
                   MemoryKind kind, const Life& life) const;
  void route(const Context& context, Activations& a, const Pass& pass) const;
  void run_activation(const Context& context, const Activations& a) const;
  void shared_backward(const Context& context, const Tensor& dy, Activations& a) const;
  void router_backward(const Context& context, const Activations& a, const Tensor& dx,
                       const Pass& pass) const;
  int64_t rows_of(int64_t tokens) const;
  bool has_shared() const { return shared_ffn_ > 0; }

  std::string name_;
  Dimensions dims_;
  config::Recompute recompute_;
  int64_t experts_, ffn_, shared_ffn_;
  kernels::RouterRule rule_;
  kernels::BalanceScope scope_;
  float balance_coefficient_, z_coefficient_;
  kernels::ActivationKind kind_;
  float clamp_;
  parameters::Parameter *router_, *fc1_, *fc2_;
  parameters::Parameter *gate_ = nullptr, *shared_fc1_ = nullptr, *shared_fc2_ = nullptr;
  RoutingStatistics statistics_;
  // Scratch of the backward pass:
  PlannedTensor d_rows_;                ///< [rows, hidden]: permuted dy
  PlannedTensor d_act_, shared_d_act_;  ///< [rows, ffn], [tokens, shared ffn]
  PlannedTensor d_input_rows_;          ///< [rows, hidden]
  PlannedTensor d_probs_, d_logits_;    ///< [tokens, topk], [tokens, experts] fp32
  PlannedTensor d_gate_;                ///< [tokens, 1] fp32
};

}  // namespace te::model
