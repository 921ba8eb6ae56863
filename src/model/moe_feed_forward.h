// The feed-forward sublayer as a mixture of experts (Shazeer et al., arXiv 1701.06538), dropless:
//
//   probs, experts = router(x)                                            kernels/moe/router.h
//   y = sum over the token's experts e of fc2_e(prob_e * activation(fc1_e(x)))
//     + gate(x) * shared_fc2(activation(shared_fc1(x)))                   optional, the gate too
//
// Tokens are copied to rows that are ordered by experts (kernels/moe/permute.h), so that a GEMM of all experts is one
// grouped GEMM (model/expert_linear.h). A layer saves the input and the output of fc1; the permuted input is copied
// again in the backward pass, which is cheaper than the memory of topk copies of each token. Where all GEMMs of an
// operand are in FP8, it is quantized from the tokens instead.
//
// The router and the gate run in FP32 in every precision (kernels/moe/router.h).
//
// Tensor-parallel ranks divide the tokens (sequence parallelism) instead of the weights: each processes its rows of the
// residual stream, so there is no communication before and after the layer. Statistics of the router are those of the
// complete microbatch.
//
// The weights of a layer's experts are one parameter each, [experts * out, in]: a range of experts is a range of rows,
// so checkpoints can be resharded by experts like column-parallel linears by outputs. With expert parallelism a rank
// has such a range, and tokens are sent to the ranks of their experts (model/expert_dispatch.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/activation/activation.h"
#include "kernels/moe/router.h"
#include "kernels/moe/router_gemm.h"
#include "model/expert_dispatch.h"
#include "model/expert_linear.h"
#include "model/feed_forward.h"

namespace te::model {

class MoeFeedForward final : public FeedForward {
 public:
  MoeFeedForward(int layer, const LayerConfig& config, parameters::ParameterStore& parameters, Recipe& recipe,
                 parallel::TensorParallel& tensor);

  /// Tensors of a microbatch. Those without "scratch" are saved for the backward pass.
  struct Activations final : FeedForward::Activations {
    PlannedTensor input;                    ///< [tokens, hidden]
    PlannedTensor logits, probs, experts;   ///< of the router
    PlannedTensor offsets, row_of, source;  ///< of the rows, or the sent rows; kernels/moe/permute.h
    int64_t row_alignment = 1;              ///< of the same
    ExpertDispatch::Routing routing;        ///< with expert parallelism
    PlannedTensor score_grad;               ///< [sequences, experts]
    PlannedTensor counts, score_sums, token_sums, statistics;  ///< scratch: statistics of the router
    PlannedTensor all_source,
        kept;  ///< scratch i32 with a capacity (kernels/moe/capacity.h): all rows, kept selections
    Planned<Operand> fc1_input, fc2_input;  ///< [rows, hidden] scratch, [rows, ffn]
    ReadyOperand fc2_ready;                 ///< fc2_input, for wgrad
    PlannedTensor fc1_out;                  ///< [rows, fc1]
    PlannedTensor fc2_out;                  ///< scratch [rows, hidden]
    PlannedTensor gate;                     ///< [tokens, 1] fp32: logits of the shared expert's gate
    Planned<Operand> shared_fc1_input, shared_fc2_input;  ///< [tokens, hidden], [tokens, shared ffn]
    ReadyOperand shared_fc1_ready, shared_fc2_ready;
    PlannedTensor shared_fc1_out, shared_out;  ///< [tokens, ...]
  };
  struct Gradients final : FeedForward::Gradients {
    /// Gradients of the outputs of the linears. Values of fc1 and shared_fc1 use the memory of their outputs.
    Planned<Operand> fc1, fc2, shared_fc1, shared_fc2;
  };

  std::unique_ptr<FeedForward::Activations> make_activations() const override {
    return std::make_unique<Activations>();
  }
  std::unique_ptr<FeedForward::Gradients> make_gradients() const override {
    return std::make_unique<Gradients>();
  }
  void plan_weights(MemoryPlan& plan, bool training) override;
  void plan_scratch(MemoryPlan& plan) override;
  void plan_activations(MemoryPlan& plan, FeedForward::Activations& activations) const override;
  void plan_gradients(MemoryPlan& plan, FeedForward::Gradients& gradients, bool deferred) const override;
  void plan_inference(MemoryPlan& plan, FeedForward::Activations& activations, int64_t rows) const override;
  std::unique_ptr<FeedForward::Activations> first_rows(const FeedForward::Activations& activations,
                                                       const Tensor& input, int64_t rows) const override;
  /// Counts the shared expert only; the other inputs have more rows than tokens and memory of their own.
  int64_t max_input_width() const override;
  Step last_gradient_read() const override {
    return sends_fp8_gradients() ? Step::fc1_backward : Step::fc2_backward;
  }
  void share_input_layouts(FeedForward::Activations& activations, const Tensor& values,
                           const Tensor& scales) const override;
  void bind_routing(const RoutingStatistics& statistics) override { statistics_ = statistics; }
  void update_router_bias(const Context& context, const parameters::ParameterStore& store,
                          const int32_t* skip) const override;

  void quantize_weights(const Context& context, bool count) override;
  OperandRequest input_request(FeedForward::Activations& activations, const Pass&) override {
    return {.high_precision = static_cast<Activations&>(activations).input};
  }
  void forward(const Context& context, FeedForward::Activations& activations, const ProducedOperand& x,
               const Tensor& y, const Pass& pass) override;
  OperandRequest grad_request(FeedForward::Gradients&, const Pass&) const override { return {}; }
  void backward(const Context& context, const ProducedOperand& d_output,
                FeedForward::Activations& activations, FeedForward::Gradients& gradients, const Tensor& dx,
                const Pass& pass, bool deferred, const RecomputeInput& recompute_input) override;
  /// backward() has computed all weight gradients, deferred or not: their operands, the rows of all selections, would
  /// take topk times the memory of a dense layer's.
  void wgrad(const Context&, const FeedForward::Activations&, const FeedForward::Gradients&) const override {}

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
    statistics,
    fc1,
    fc2,
    fc1_out,
    fc2_out,
    gate,
    shared_fc1,
    shared_fc2,
    shared_fc1_out,
    shared_out,
    d_act,
    shared_d_act,
    d_input_rows,
    d_probs,
    d_logits,
    d_gate,
    router_scratch,
    all_source,
    kept,
    numbers,
    token_numbers
  };
  void add_tensors(MemoryPlan& plan, Activations& a, int64_t tokens, MemoryKind kind, Lifetime saved,
                   Lifetime shared_out) const;
  LinearUse fc1_use(Buffer tag) const;
  LinearUse fc2_use(Buffer tag) const;
  /// A linear layer of the experts or the shared expert with the memory that its passes use.
  struct Use {
    ExpertLinear* linear;
    LinearUse use;
    Planned<Operand> Activations::*input;
    Planned<Operand> Gradients::*grad;
  };
  std::vector<Use> uses() const;
  /// The rows that the experts of this rank process.
  using Rows = ExpertDispatch::Rows;
  Rows own_rows(const Activations& a) const { return {a.offsets, a.source, a.probs, {}, {}, numbers_}; }
  /// The memory of rows: as many of the planned ones as `rows` has.
  struct ExpertBuffers {
    Operand fc1_input, fc2_input, d_fc1, d_fc2;
    Tensor fc1_out, fc2_out, d_act, d_input;
  };
  ExpertBuffers memory_of(const Activations& a, const Rows& rows, const Gradients* g = nullptr) const;
  void number_rows(const Context& context, const Activations& a, const Pass& pass) const;
  void limit(const Context& context, Activations& a, const Pass& pass) const;
  void select(const Context& context, Activations& a, const Pass& pass) const;
  void route(const Context& context, Activations& a, const Pass& pass) const;
  /// Returns the input of fc2.
  ExpertRows expert_activation(const Context& context, const ExpertBuffers& memory, const Rows& rows,
                               const fp8::ExpertsRequest& request) const;
  void shared_activation(const Context& context, const Activations& a) const;
  /// Tokens, of which the experts' rows are copies.
  ExpertRows tokens_of(const Activations& a, const Tensor& tokens) const {
    return {tokens, a.offsets, a.source, rule_.topk, numbers_, a.source};
  }
  static ExpertRows received(const Rows& rows, const ExpertDispatch::Received& from) {
    return {from.values, rows.offsets, from.source, from.topk, rows.numbers, rows.source};
  }
  /// What each token sums; `own`: the rows of this rank's experts, which are all without a dispatch.
  ExpertDispatch::Returned returned(const Activations& a, const Tensor& own) const {
    return dispatch_ ? dispatch_->returned(a.routing, a.row_of) : ExpertDispatch::Returned{own, a.row_of};
  }
  /// Rows in the order of the experts.
  static ExpertRows ordered(const Rows& rows, const Tensor& values, const fp8::ExpertsRequest& request) {
    return {values, rows.offsets, {}, 1, rows.numbers, rows.source, static_cast<bool>(request)};
  }
  ExpertRows shared_rows(const Tensor& tokens) const { return {tokens, {}, {}, 1, token_numbers_, {}}; }
  /// With several rounds a microbatch keeps no current scales.
  static Pass pass_of_rounds(const Activations& a, Pass pass);
  /// What this rank sends, without gradients.
  ExpertDispatch::Sent sent_tokens(const Activations& a, const Pass& pass) const;
  void forward_rounds(const Context& context, Activations& a, const ExpertDispatch::Sent& sent,
                      const Pass& pass);
  void shared_backward(const Context& context, const Tensor& dy, Activations& a, Gradients& g,
                       const Pass& pass) const;
  /// Returns dy of fc1.
  ExpertRows expert_activation_backward(const Context& context, const ExpertBuffers& memory, const Rows& rows,
                                        const Tensor& d_probs, const fp8::ExpertsRequest& request) const;
  void shared_activation_backward(const Context& context, const Activations& a) const;
  void backward_rounds(const Context& context, Activations& a, Gradients& g, const ExpertDispatch::Sent& sent,
                       const Pass& pass, bool recompute_activation);
  void router_backward(const Context& context, const Activations& a, const Tensor& dx,
                       const Pass& pass) const;
  /// Whether rows can be sent to other ranks as FP8 (expert_dispatch.h).
  bool sends_fp8_inputs() const { return dispatch_ && fc1_->input_sent_quantized(); }
  bool sends_fp8_gradients() const { return dispatch_ && fc2_->grad_sent_quantized(); }
  int64_t row_alignment(bool inference) const;
  /// Rows of the experts for so many tokens; inference has no capacity.
  int64_t rows_of(int64_t tokens, bool inference = false) const;
  int64_t halves() const { return kernels::is_gated(kind_) ? 2 : 1; }
  bool has_shared() const { return shared_fc1_ != nullptr; }

  std::string name_;
  Dimensions all_dims_;  ///< of all tokens of this context-parallel rank
  const parallel::TensorParallel& tensor_;
  const ContextParallel* ranks_;  ///< null: one rank
  bool numbers_rows_;             ///< adapters drop elements of their rows
  Dimensions dims_;  ///< `tokens`: of this rank; `batch`: ranges of them with statistics of their own
  config::Recompute recompute_;
  config::Fp8KeptWeights kept_weights_;
  int64_t experts_, ffn_, shared_ffn_;
  int64_t capacity_ = 0;  ///< tokens of a microbatch per expert; 0: no limit
  kernels::RouterRule rule_;
  BalanceScope scope_;
  float balance_coefficient_, z_coefficient_;
  std::vector<parallel::Communicator*> token_ranks_;  ///< ranks with the other tokens of the microbatch
  parallel::Communicator* batch_ranks_;  ///< whose selections the balance loss counts, too; null: none
  ActivationKind kind_;
  float clamp_;
  parameters::Parameter *router_, *gate_ = nullptr;
  parameters::Parameter* bias_ = nullptr;  ///< of the selection; its gradient is zero
  float bias_rate_;
  double capacity_factor_;
  std::unique_ptr<ExpertLinear> fc1_, fc2_, shared_fc1_, shared_fc2_;
  std::unique_ptr<ExpertDispatch> dispatch_;  ///< null: this rank has all experts
  RoutingStatistics statistics_;
  // Scratch: numbers of the selected experts' rows and of the tokens, for dropout.
  PlannedTensor numbers_, token_numbers_;  ///< i32 [tokens, topk], [tokens, 1]; or empty
  // Scratch of the backward pass:
  PlannedTensor d_act_, shared_d_act_;  ///< [rows, ffn], [tokens, shared ffn]
  PlannedTensor d_input_rows_;          ///< [rows, hidden]
  PlannedTensor d_probs_, d_logits_;    ///< [tokens, topk], [tokens, experts] fp32
  PlannedTensor d_gate_;                ///< [tokens, 1] fp32
  PlannedTensor router_scratch_;        ///< u8, kernels/moe/router_gemm.h
};

}  // namespace te::model
