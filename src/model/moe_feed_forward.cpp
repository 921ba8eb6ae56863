#include "model/moe_feed_forward.h"

#include <utility>
#include <vector>

#include "core/profile.h"
#include "kernels/gemm/gemm.h"
#include "kernels/moe/expert_activation.h"
#include "kernels/moe/grouped_gemm.h"
#include "kernels/moe/permute.h"
#include "model/mlp.h"
#include "model/parallel_linear.h"

namespace te::model {
namespace {

using parameters::Parameter;
using parameters::ParameterShard;

kernels::RouterRule router_rule(const config::ModelConfig& m) {
  return {.score = m.moe_router_score_function == config::MoeScoreFunction::softmax
                       ? kernels::RouterScore::softmax
                       : kernels::RouterScore::sigmoid,
          .topk = m.moe_router_topk,
          .normalize = m.moe_router_norm_topk_prob,
          .scaling = static_cast<float>(m.moe_router_topk_scaling_factor),
          .groups = m.moe_router_num_groups,
          .group_topk = m.moe_router_group_topk};
}

kernels::BalanceScope balance_scope(config::MoeLoadBalancing type) {
  switch (type) {
    case config::MoeLoadBalancing::seq_aux_loss:
      return kernels::BalanceScope::sequence;
    case config::MoeLoadBalancing::global_aux_loss:
      return kernels::BalanceScope::global;
    default:
      return kernels::BalanceScope::microbatch;
  }
}

/// `count` times the same rows: the matrices of the experts.
std::vector<int64_t> repeated(int64_t count, const std::vector<int64_t>& rows) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

/// The first GEMM of a step overwrites the main gradient.
bool accumulates(Parameter* weight) {
  return !std::exchange(weight->grad_stale, false);
}

void gemm_wgrad(const Context& context, const Tensor& dy, const Tensor& x, Parameter* weight) {
  if (!weight->trainable) return;
  kernels::gemm(context,
                {.a = dy, .b = x, .out = weight->grad, .trans_a = true, .accumulate = accumulates(weight)});
}

void experts_wgrad(const Context& context, const Tensor& dy, const Tensor& x, const Tensor& offsets,
                   Parameter* weight) {
  if (!weight->trainable) return;
  const ProfileLabel label(weight->name, "wgrad");
  kernels::grouped_wgrad(context, {.a = {dy},
                                   .b = {x},
                                   .offsets = offsets,
                                   .alignment = kExpertAlignment,
                                   .out = weight->grad,
                                   .accumulate = accumulates(weight)});
}

void router_wgrad(const Context& context, const Tensor& dy, const Tensor& x, Parameter* weight) {
  if (!weight->trainable) return;
  kernels::router_gemm(
      context, {.a = dy, .b = x, .out = weight->grad, .trans_a = true, .accumulate = accumulates(weight)});
}

}  // namespace

MoeFeedForward::MoeFeedForward(int layer, const LayerConfig& config, parameters::ParameterStore& parameters)
    : name_(layer_name(layer) + ".mlp"),
      dims_(config.dims),
      recompute_(config.recompute),
      experts_(config.model.num_moe_experts),
      ffn_(config.model.moe_ffn_hidden_size),
      shared_ffn_(config.model.moe_shared_expert_intermediate_size),
      rule_(router_rule(config.model)),
      scope_(balance_scope(config.model.moe_router_load_balancing_type)),
      balance_coefficient_(static_cast<float>(config.model.moe_aux_loss_coeff)),
      z_coefficient_(static_cast<float>(config.model.moe_z_loss_coeff)),
      kind_(activation_kind(config.model)),
      clamp_(static_cast<float>(config.model.swiglu_clamp)) {
  const auto add = [&](ParameterRole role, int64_t rows, int64_t cols, double std,
                       const std::vector<int64_t>& matrices) {
    Parameter* weight = parameters.add({.id = {role, layer},
                                        .shard = ParameterShard::full({rows, cols}),
                                        .std = static_cast<float>(std),
                                        .decay = true,
                                        .matrices = matrices});
    weight->linear = true;
    return weight;
  };
  const int64_t hidden = dims_.hidden, halves = kernels::is_gated(kind_) ? 2 : 1;
  const double in_std = config.model.init_method_std, out_std = output_std(config.model);
  const auto blocks = [&](int64_t ffn) { return std::vector<int64_t>(static_cast<size_t>(halves), ffn); };
  router_ = add(ParameterRole::router, experts_, hidden, in_std, {});
  fc1_ = add(ParameterRole::experts_fc1, experts_ * halves * ffn_, hidden, in_std,
             repeated(experts_, blocks(ffn_)));
  fc2_ = add(ParameterRole::experts_fc2, experts_ * hidden, ffn_, out_std, repeated(experts_, {hidden}));
  if (!has_shared()) return;
  if (config.model.moe_shared_expert_gate)
    gate_ = add(ParameterRole::shared_expert_gate, 1, hidden, in_std, {});
  shared_fc1_ =
      add(ParameterRole::shared_expert_fc1, halves * shared_ffn_, hidden, in_std, blocks(shared_ffn_));
  shared_fc2_ = add(ParameterRole::shared_expert_fc2, hidden, shared_ffn_, out_std, {hidden});
}

// --- memory ------------------------------------------------------------------------------------------------

int64_t MoeFeedForward::rows_of(int64_t tokens) const {
  return kernels::max_expert_rows(tokens, rule_.topk, experts_, kExpertAlignment);
}

void MoeFeedForward::add_tensors(MemoryPlan& plan, Activations& a, int64_t tokens, const std::string& prefix,
                                 MemoryKind kind, const Life& life) const {
  const int64_t rows = rows_of(tokens), halves = kernels::is_gated(kind_) ? 2 : 1;
  const auto add = [&](PlanSlot slot, Buffer tag, const char* name, DType dtype, Shape shape,
                       Lifetime lifetime) {
    plan.add(slot, prefix + name, kind, dtype, shape, {tag, lifetime});
  };
  add(a.logits, Buffer::logits, "router.logits", DType::f32, {tokens, experts_}, life.routing);
  add(a.probs, Buffer::probs, "router.probs", DType::f32, {tokens, rule_.topk}, life.routing);
  add(a.experts, Buffer::experts, "router.experts", DType::i32, {tokens, rule_.topk}, life.routing);
  add(a.offsets, Buffer::offsets, "experts.offsets", DType::i32, {experts_ + 1}, life.routing);
  add(a.row_of, Buffer::row_of, "experts.row_of", DType::i32, {tokens, rule_.topk}, life.routing);
  add(a.source, Buffer::source, "experts.source", DType::i32, {rows}, life.routing);
  add(a.fc1_out, Buffer::fc1_out, "experts.fc1_out", dims_.dtype, {rows, halves * ffn_}, life.saved);
  add(a.act, Buffer::act, "experts.act", dims_.dtype, {rows, ffn_}, life.saved_act);
  if (!has_shared()) return;
  add(a.shared_fc1_out, Buffer::shared_fc1_out, "shared_experts.fc1_out", dims_.dtype,
      {tokens, halves * shared_ffn_}, life.saved);
  add(a.shared_act, Buffer::shared_act, "shared_experts.act", dims_.dtype, {tokens, shared_ffn_},
      life.saved_act);
  if (gate_ == nullptr) return;
  add(a.gate, Buffer::gate, "shared_experts.gate", DType::f32, {tokens, 1}, life.routing);
  add(a.shared_out, Buffer::shared_out, "shared_experts.out", dims_.dtype, {tokens, dims_.hidden},
      life.shared_out);
}

void MoeFeedForward::plan_activations(MemoryPlan& plan, FeedForward::Activations& activations) const {
  auto& a = static_cast<Activations&>(activations);
  const int64_t tokens = dims_.tokens, rows = rows_of(tokens);
  const LinearUse fc1{.dims = dims_,
                      .tag = Buffer::input,
                      .recompute = recompute_,
                      .input = Step::mlp_norm,
                      .forward = Step::fc1,
                      .backward = Step::fc1_backward};
  const LinearUse fc2{.dims = dims_,
                      .tag = Buffer::act,
                      .recompute = recompute_,
                      .input = Step::activation,
                      .forward = Step::fc2,
                      .backward = Step::fc2_backward};
  const Lifetime whole = saved(recompute_, live(Step::fc1, Step::fc1_backward));
  const std::string prefix = name_ + ".";
  plan.add(a.input, prefix + "input", MemoryKind::activations, dims_.dtype, {tokens, dims_.hidden},
           {Buffer::input, fc1.saved_life()});
  add_tensors(plan, a, tokens, prefix, MemoryKind::activations,
              {.saved_act = fc2.saved_life(),
               .saved = whole,
               .routing = whole,
               .shared_out = saved(recompute_, live(Step::fc2, Step::fc2_backward))});
  plan.add(a.score_grad, prefix + "router.score_grad", MemoryKind::activations, DType::f32,
           {dims_.batch, experts_});
  const auto scratch = [&](PlanSlot slot, Buffer tag, const char* name, DType dtype, Shape shape,
                           Lifetime lifetime) {
    plan.add(slot, prefix + name, MemoryKind::scratch, dtype, shape, {tag, lifetime});
  };
  scratch(a.counts, Buffer::counts, "router.counts", DType::i32, {dims_.batch, experts_}, live(Step::fc1));
  scratch(a.score_sums, Buffer::score_sums, "router.score_sums", DType::f32, {dims_.batch, experts_},
          live(Step::fc1));
  scratch(a.token_sums, Buffer::token_sums, "router.token_sums", DType::f32, {dims_.batch, 2},
          live(Step::fc1));
  scratch(a.rows, Buffer::rows, "experts.input", dims_.dtype, {rows, dims_.hidden},
          live(Step::fc1) | live(Step::fc1_backward));
  scratch(a.fc2_out, Buffer::fc2_out, "experts.out", dims_.dtype, {rows, dims_.hidden}, live(Step::fc2));
}

void MoeFeedForward::plan_scratch(MemoryPlan& plan) {
  const int64_t tokens = dims_.tokens, rows = rows_of(tokens);
  const auto add = [&](PlanSlot slot, Buffer tag, const char* name, DType dtype, Shape shape,
                       Lifetime lifetime) {
    plan.add(slot, name_ + name, MemoryKind::scratch, dtype, shape, {tag, lifetime});
  };
  const Lifetime act = live(Step::fc2_backward, Step::activation_backward);
  const Lifetime router = live(Step::activation_backward, Step::fc1_backward);
  add(d_rows_, Buffer::d_rows, ".experts.d_out", dims_.dtype, {rows, dims_.hidden}, live(Step::fc2_backward));
  add(d_act_, Buffer::d_act, ".experts.d_act", dims_.dtype, {rows, ffn_}, act);
  add(d_probs_, Buffer::d_probs, ".router.d_probs", DType::f32, {tokens, rule_.topk}, router);
  add(d_logits_, Buffer::d_logits, ".router.d_logits", DType::f32, {tokens, experts_},
      live(Step::fc1_backward));
  add(d_input_rows_, Buffer::d_input_rows, ".experts.d_input", dims_.dtype, {rows, dims_.hidden},
      live(Step::fc1_backward));
  if (has_shared())
    add(shared_d_act_, Buffer::shared_d_act, ".shared_experts.d_act", dims_.dtype, {tokens, shared_ffn_},
        act);
  if (gate_ != nullptr)
    add(d_gate_, Buffer::d_gate, ".shared_experts.d_gate", DType::f32, {tokens, 1},
        live(Step::fc2_backward, Step::fc1_backward));
}

void MoeFeedForward::plan_gradients(MemoryPlan&, FeedForward::Gradients&, bool deferred) const {
  TE_CHECK(!deferred, "{}: weight gradients of experts cannot be deferred", name_);
}

void MoeFeedForward::plan_inference(MemoryPlan& plan, FeedForward::Activations& activations,
                                    int64_t rows) const {
  auto& a = static_cast<Activations&>(activations);
  add_tensors(plan, a, rows, name_ + ".", MemoryKind::scratch, {});
  const auto add = [&](PlanSlot slot, const char* name) {
    plan.add(slot, name_ + name, MemoryKind::scratch, dims_.dtype, {rows_of(rows), dims_.hidden});
  };
  add(a.rows, ".experts.input");
  add(a.fc2_out, ".experts.out");
}

std::unique_ptr<FeedForward::Activations> MoeFeedForward::first_rows(
    const FeedForward::Activations& activations, const Tensor& input, int64_t rows) const {
  const auto& all = static_cast<const Activations&>(activations);
  auto first = std::make_unique<Activations>();
  const auto part = [](const Tensor& tensor, int64_t count) {
    return tensor ? tensor.slice_rows(0, count) : Tensor{};
  };
  const int64_t permuted = rows_of(rows);
  first->input = input;
  first->logits = part(all.logits, rows), first->probs = part(all.probs, rows);
  first->experts = part(all.experts, rows), first->row_of = part(all.row_of, rows);
  first->offsets = Tensor(all.offsets);
  first->source = Tensor{all.source.data, DType::i32, {permuted}};
  first->rows = part(all.rows, permuted), first->fc2_out = part(all.fc2_out, permuted);
  first->fc1_out = part(all.fc1_out, permuted), first->act = part(all.act, permuted);
  first->gate = part(all.gate, rows), first->shared_out = part(all.shared_out, rows);
  first->shared_fc1_out = part(all.shared_fc1_out, rows), first->shared_act = part(all.shared_act, rows);
  return first;
}

// --- forward -----------------------------------------------------------------------------------------------

void MoeFeedForward::route(const Context& context, Activations& a, const Pass& pass) const {
  const ProfileLabel label(name_ + ".router");
  kernels::router_gemm(context, {.a = a.input, .b = router_->value, .out = a.logits, .trans_b = true});
  kernels::router_forward(context,
                          {.rule = rule_, .logits = a.logits, .experts = a.experts, .probs = a.probs});
  kernels::expert_rows(context, {.experts = a.experts,
                                 .alignment = kExpertAlignment,
                                 .offsets = a.offsets,
                                 .row_of = a.row_of,
                                 .source = a.source});
  if (pass.kind != PassKind::train) return;  // a recomputed pass keeps the gradient of the first one
  kernels::router_statistics(context, {.score = rule_.score,
                                       .logits = a.logits,
                                       .experts = a.experts,
                                       .counts = a.counts,
                                       .score_sums = a.score_sums,
                                       .token_sums = a.token_sums});
  kernels::router_balance(context, {.scope = scope_,
                                    .topk = rule_.topk,
                                    .tokens = dims_.tokens,
                                    .counts = a.counts,
                                    .score_sums = a.score_sums,
                                    .token_sums = a.token_sums,
                                    .score_grad = a.score_grad,
                                    .step_counts = statistics_.counts,
                                    .step_sums = statistics_.sums});
}

void MoeFeedForward::run_activation(const Context& context, const Activations& a) const {
  kernels::expert_activation(
      context,
      {.kind = kind_, .x = a.fc1_out, .source = a.source, .probs = a.probs, .y = a.act, .clamp = clamp_});
  if (has_shared())
    kernels::activation_forward(context,
                                {.kind = kind_, .x = a.shared_fc1_out, .y = a.shared_act, .clamp = clamp_});
}

void MoeFeedForward::forward(const Context& context, FeedForward::Activations& activations,
                             const ProducedOperand&, const Tensor& y, const Pass& pass) {
  auto& a = static_cast<Activations&>(activations);
  // 1. Router; order of the rows. 2. Up projection of the experts and of the shared expert.
  pass.begin_step(context, Step::fc1);
  route(context, a, pass);
  kernels::permute(context, {.x = a.input, .source = a.source, .topk = rule_.topk, .rows = a.rows});
  {
    const ProfileLabel label(fc1_->name, "fprop");
    kernels::grouped_gemm(
        context,
        {.a = {a.rows}, .b = {fc1_->value}, .offsets = a.offsets, .out = a.fc1_out, .trans_b = true});
  }
  if (has_shared())
    kernels::gemm(context, {.a = a.input, .b = shared_fc1_->value, .out = a.shared_fc1_out, .trans_b = true});
  if (gate_ != nullptr)
    kernels::router_gemm(context, {.a = a.input, .b = gate_->value, .out = a.gate, .trans_b = true});
  // 3. Activation, times the router's probabilities.
  pass.begin_step(context, Step::activation);
  run_activation(context, a);
  // 4. Down projection. 5. Sum of the rows of each token.
  pass.begin_step(context, Step::fc2);
  {
    const ProfileLabel label(fc2_->name, "fprop");
    kernels::grouped_gemm(
        context, {.a = {a.act}, .b = {fc2_->value}, .offsets = a.offsets, .out = a.fc2_out, .trans_b = true});
  }
  const Tensor shared = gate_ != nullptr ? a.shared_out : y;
  if (has_shared())
    kernels::gemm(context, {.a = a.shared_act, .b = shared_fc2_->value, .out = shared, .trans_b = true});
  kernels::unpermute(context, {.rows = a.fc2_out,
                               .row_of = a.row_of,
                               .addend = has_shared() ? shared : Tensor{},
                               .gate = a.gate,
                               .y = y});
}

// --- backward ----------------------------------------------------------------------------------------------

// Down projection of the shared expert; shared_out is replaced by its gradient.
void MoeFeedForward::shared_backward(const Context& context, const Tensor& dy, Activations& a) const {
  Tensor d_out = dy;
  if (gate_ != nullptr) {
    d_out = a.shared_out;
    kernels::expert_gate_backward(
        context, {.addend = a.shared_out, .gate = a.gate, .dy = dy, .d_addend = d_out, .d_gate = d_gate_});
  }
  kernels::gemm(context, {.a = d_out, .b = shared_fc2_->value, .out = shared_d_act_});
  gemm_wgrad(context, d_out, a.shared_act, shared_fc2_);
}

void MoeFeedForward::router_backward(const Context& context, const Activations& a, const Tensor& dx,
                                     const Pass& pass) const {
  const ProfileLabel label(name_ + ".router");
  kernels::router_backward(
      context, {.rule = rule_,
                .logits = a.logits,
                .experts = a.experts,
                .d_probs = d_probs_,
                .score_grad = a.score_grad,
                .balance_weight = balance_coefficient_ * pass.auxiliary_scale,
                .z_weight = z_coefficient_ * pass.auxiliary_scale / static_cast<float>(dims_.tokens),
                .d_logits = d_logits_});
  kernels::router_gemm(context, {.a = d_logits_, .b = router_->value, .out = dx, .accumulate = true});
  router_wgrad(context, d_logits_, a.input, router_);
  if (gate_ == nullptr) return;
  kernels::router_gemm(context, {.a = d_gate_, .b = gate_->value, .out = dx, .accumulate = true});
  router_wgrad(context, d_gate_, a.input, gate_);
}

void MoeFeedForward::backward(const Context& context, const ProducedOperand& d_output,
                              FeedForward::Activations& activations, FeedForward::Gradients&,
                              const Tensor& dx, const Pass& pass, bool,
                              const RecomputeInput& recompute_input) {
  auto& a = static_cast<Activations&>(activations);
  const Tensor& dy = d_output.high_precision;
  // 5'. Rows of dy. 4'. Down projection.
  if (recompute_input) run_activation(context, a);
  kernels::permute(context, {.x = dy, .source = a.source, .topk = rule_.topk, .rows = d_rows_});
  kernels::grouped_gemm(context, {.a = {d_rows_}, .b = {fc2_->value}, .offsets = a.offsets, .out = d_act_});
  experts_wgrad(context, d_rows_, a.act, a.offsets, fc2_);
  if (has_shared()) shared_backward(context, dy, a);
  // 3'. Activation, in place, and the gradient of the probabilities.
  pass.begin_step(context, Step::activation_backward);
  kernels::expert_activation_backward(context, {.kind = kind_,
                                                .x = a.fc1_out,
                                                .source = a.source,
                                                .probs = a.probs,
                                                .dy = d_act_,
                                                .dx = a.fc1_out,
                                                .d_probs = d_probs_,
                                                .clamp = clamp_});
  if (has_shared())
    kernels::activation_backward(
        context,
        {.kind = kind_, .x = a.shared_fc1_out, .dy = shared_d_act_, .dx = a.shared_fc1_out, .clamp = clamp_});
  // 2'. Up projection.
  pass.begin_step(context, Step::fc1_backward);
  if (recompute_input) recompute_input({.high_precision = a.input});
  kernels::permute(context, {.x = a.input, .source = a.source, .topk = rule_.topk, .rows = a.rows});
  experts_wgrad(context, a.fc1_out, a.rows, a.offsets, fc1_);
  kernels::grouped_gemm(context,
                        {.a = {a.fc1_out}, .b = {fc1_->value}, .offsets = a.offsets, .out = d_input_rows_});
  if (has_shared()) {
    kernels::gemm(context, {.a = a.shared_fc1_out, .b = shared_fc1_->value, .out = dx});
    gemm_wgrad(context, a.shared_fc1_out, a.input, shared_fc1_);
  }
  kernels::unpermute(
      context, {.rows = d_input_rows_, .row_of = a.row_of, .addend = has_shared() ? dx : Tensor{}, .y = dx});
  // 1'. Router.
  router_backward(context, a, dx, pass);
}

void MoeFeedForward::wgrad(const Context&, const FeedForward::Activations&,
                           const FeedForward::Gradients&) const {
  internal_error("weight gradients of experts are not deferred", std::source_location::current());
}

}  // namespace te::model
