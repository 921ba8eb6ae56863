#include "model/moe_feed_forward.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/profile.h"
#include "kernels/moe/expert_activation.h"
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

/// Gradients of logits = x W^T, of the router or the shared expert's gate.
void logits_backward(const Context& context, const Tensor& d_logits, const Tensor& x, Parameter* weight,
                     const Tensor& dx, const Tensor& scratch) {
  kernels::RouterGemmBackward args{
      .d_logits = d_logits, .x = x, .weight = weight->value, .dx = dx, .d_weight = {}, .scratch = scratch};
  if (weight->trainable) {
    args.d_weight = weight->grad;
    args.accumulate = !std::exchange(weight->grad_stale, false);
  }
  kernels::router_gemm_backward(context, args);
}

}  // namespace

MoeFeedForward::MoeFeedForward(int layer, const LayerConfig& config, parameters::ParameterStore& parameters,
                               Recipe& recipe, parallel::TensorParallel& tensor)
    : name_(layer_name(layer) + ".mlp"),
      dims_(config.dims),
      recompute_(config.recompute),
      kept_weights_(config.kept_weights),
      experts_(config.model.num_moe_experts),
      ffn_(config.model.moe_ffn_hidden_size),
      shared_ffn_(config.model.moe_shared_expert_intermediate_size),
      rule_(router_rule(config.model)),
      scope_(balance_scope(config.model.moe_router_load_balancing_type)),
      balance_coefficient_(static_cast<float>(config.model.moe_aux_loss_coeff)),
      z_coefficient_(static_cast<float>(config.model.moe_z_loss_coeff)),
      kind_(activation_kind(config.model)),
      clamp_(static_cast<float>(config.model.swiglu_clamp)),
      bias_rate_(static_cast<float>(config.model.moe_router_bias_update_rate)) {
  const int64_t hidden = dims_.hidden;
  const double in_std = config.model.init_method_std, out_std = output_std(config.model);
  // Weights in FP32 arithmetic.
  const auto add = [&](ParameterRole role, int64_t rows) {
    Parameter* weight = parameters.add({.id = {role, layer},
                                        .shard = ParameterShard::full({rows, hidden}),
                                        .std = static_cast<float>(in_std),
                                        .decay = true});
    weight->linear = true;
    return weight;
  };
  const auto linear = [&](LinearKind kind, int expert, const std::vector<int64_t>& blocks, int64_t in) {
    return std::make_unique<ExpertLinear>(LinearId{layer, kind, expert}, experts_, blocks, in,
                                          kind == LinearKind::fc1 ? in_std : out_std, parameters, recipe,
                                          tensor);
  };
  const auto up = [&](int64_t ffn) { return std::vector<int64_t>(static_cast<size_t>(halves()), ffn); };
  router_ = add(ParameterRole::router, experts_);
  if (config.model.moe_router_enable_expert_bias)
    bias_ = parameters.add({.id = {ParameterRole::router, layer, ParameterPart::bias},
                            .shard = ParameterShard::full({experts_}),
                            .init = parameters::Init::zeros});
  fc1_ = linear(LinearKind::fc1, 0, up(ffn_), hidden);
  fc2_ = linear(LinearKind::fc2, 0, {hidden}, ffn_);
  if (shared_ffn_ == 0) return;
  if (config.model.moe_shared_expert_gate) gate_ = add(ParameterRole::shared_expert_gate, 1);
  shared_fc1_ = linear(LinearKind::fc1, kSharedExpert, up(shared_ffn_), hidden);
  shared_fc2_ = linear(LinearKind::fc2, kSharedExpert, {hidden}, shared_ffn_);
}

// --- memory ------------------------------------------------------------------------------------------------

int64_t MoeFeedForward::rows_of(int64_t tokens) const {
  return kernels::max_expert_rows(tokens, rule_.topk, experts_,
                                  std::max(fc1_->row_alignment(), fc2_->row_alignment()));
}

LinearUse MoeFeedForward::fc1_use(Buffer tag) const {
  return {.dims = dims_,
          .tag = tag,
          .recompute = recompute_,
          .input = Step::mlp_norm,
          .forward = Step::fc1,
          .grad = live(Step::activation_backward, Step::fc1_backward),
          .backward = Step::fc1_backward,
          .weights = kept_weights_};
}

LinearUse MoeFeedForward::fc2_use(Buffer tag) const {
  return {.dims = dims_,
          .tag = tag,
          .recompute = recompute_,
          .input = Step::activation,
          .forward = Step::fc2,
          .grad = live(Step::fc2_backward),
          .backward = Step::fc2_backward,
          .weights = kept_weights_};
}

std::vector<MoeFeedForward::Use> MoeFeedForward::uses() const {
  const int64_t rows = rows_of(dims_.tokens);
  LinearUse fc1 = fc1_use(Buffer::fc1), fc2 = fc2_use(Buffer::fc2);
  fc1.rows = fc2.rows = rows;
  fc1.recompute = config::Recompute::selective;  // the permuted input is not saved
  fc1.input = Step::fc1;
  std::vector<Use> all{{fc1_.get(), fc1, &Activations::fc1_input, &Gradients::fc1},
                       {fc2_.get(), fc2, &Activations::fc2_input, &Gradients::fc2}};
  if (!has_shared()) return all;
  all.push_back({shared_fc1_.get(), fc1_use(Buffer::shared_fc1), &Activations::shared_fc1_input,
                 &Gradients::shared_fc1});
  all.push_back({shared_fc2_.get(), fc2_use(Buffer::shared_fc2), &Activations::shared_fc2_input,
                 &Gradients::shared_fc2});
  return all;
}

void MoeFeedForward::plan_weights(MemoryPlan& plan, bool training) {
  for (const Use& use : uses()) use.linear->plan_weights(plan, use.use, training);
}

/// Tensors that inference needs, too. `saved`: lifetime of those that the backward pass reads.
void MoeFeedForward::add_tensors(MemoryPlan& plan, Activations& a, int64_t tokens, MemoryKind kind,
                                 Lifetime saved, Lifetime shared_out) const {
  const int64_t rows = rows_of(tokens);
  const auto add = [&](PlanSlot slot, Buffer tag, const char* name, DType dtype, Shape shape,
                       Lifetime lifetime) {
    plan.add(slot, name_ + name, kind, dtype, shape, {tag, lifetime});
  };
  add(a.logits, Buffer::logits, ".router.logits", DType::f32, {tokens, experts_}, saved);
  add(a.probs, Buffer::probs, ".router.probs", DType::f32, {tokens, rule_.topk}, saved);
  add(a.experts, Buffer::experts, ".router.experts", DType::i32, {tokens, rule_.topk}, saved);
  add(a.offsets, Buffer::offsets, ".experts.offsets", DType::i32, {experts_ + 1}, saved);
  add(a.row_of, Buffer::row_of, ".experts.row_of", DType::i32, {tokens, rule_.topk}, saved);
  add(a.source, Buffer::source, ".experts.source", DType::i32, {rows}, saved);
  add(a.fc1_out, Buffer::fc1_out, ".experts.fc1_out", dims_.dtype, {rows, halves() * ffn_}, saved);
  if (!has_shared()) return;
  add(a.shared_fc1_out, Buffer::shared_fc1_out, ".shared_experts.fc1_out", dims_.dtype,
      {tokens, halves() * shared_ffn_}, saved);
  if (gate_ == nullptr) return;
  add(a.gate, Buffer::gate, ".shared_experts.gate", DType::f32, {tokens, 1}, saved);
  add(a.shared_out, Buffer::shared_out, ".shared_experts.out", dims_.dtype, {tokens, dims_.hidden},
      shared_out);
}

void MoeFeedForward::plan_activations(MemoryPlan& plan, FeedForward::Activations& activations) const {
  auto& a = static_cast<Activations&>(activations);
  const int64_t tokens = dims_.tokens;
  plan.add(a.input, name_ + ".input", MemoryKind::activations, dims_.dtype, {tokens, dims_.hidden},
           {Buffer::input, fc1_use(Buffer::input).saved_life()});
  for (const Use& use : uses())
    use.linear->plan_input(plan, a.*use.input, use.use, use.linear == shared_fc1_.get());
  add_tensors(plan, a, tokens, MemoryKind::activations,
              saved(recompute_, live(Step::fc1, Step::fc1_backward)),
              saved(recompute_, live(Step::fc2, Step::fc2_backward)));
  plan.add(a.score_grad, name_ + ".router.score_grad", MemoryKind::activations, DType::f32,
           {dims_.batch, experts_});
  const auto scratch = [&](PlanSlot slot, Buffer tag, const char* name, DType dtype, Shape shape,
                           Lifetime lifetime) {
    plan.add(slot, name_ + name, MemoryKind::scratch, dtype, shape, {tag, lifetime});
  };
  scratch(a.counts, Buffer::counts, ".router.counts", DType::i32, {dims_.batch, experts_}, live(Step::fc1));
  scratch(a.score_sums, Buffer::score_sums, ".router.score_sums", DType::f32, {dims_.batch, experts_},
          live(Step::fc1));
  scratch(a.token_sums, Buffer::token_sums, ".router.token_sums", DType::f32, {dims_.batch, 2},
          live(Step::fc1));
  scratch(a.fc2_out, Buffer::fc2_out, ".experts.out", dims_.dtype, {rows_of(tokens), dims_.hidden},
          live(Step::fc2));
}

void MoeFeedForward::plan_scratch(MemoryPlan& plan) {
  const int64_t tokens = dims_.tokens, rows = rows_of(tokens);
  const auto add = [&](PlanSlot slot, Buffer tag, const char* name, DType dtype, Shape shape,
                       Lifetime lifetime) {
    plan.add(slot, name_ + name, MemoryKind::scratch, dtype, shape, {tag, lifetime});
  };
  const Lifetime act = live(Step::fc2_backward, Step::activation_backward);
  const Lifetime router = live(Step::activation_backward, Step::fc1_backward);
  add(d_act_, Buffer::d_act, ".experts.d_act", dims_.dtype, {rows, ffn_}, act);
  add(d_probs_, Buffer::d_probs, ".router.d_probs", DType::f32, {tokens, rule_.topk}, router);
  add(d_logits_, Buffer::d_logits, ".router.d_logits", DType::f32, {tokens, experts_},
      live(Step::fc1_backward));
  const int64_t router_bytes =
      std::max(kernels::router_gemm_scratch(tokens, experts_, dims_.hidden),
               gate_ != nullptr ? kernels::router_gemm_scratch(tokens, 1, dims_.hidden) : int64_t{0});
  add(router_scratch_, Buffer::router_scratch, ".router.scratch", DType::u8, {router_bytes},
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

void MoeFeedForward::plan_gradients(MemoryPlan& plan, FeedForward::Gradients& gradients,
                                    bool deferred) const {
  TE_CHECK(!deferred, "{}: weight gradients of experts cannot be deferred", name_);
  auto& g = static_cast<Gradients&>(gradients);
  for (const Use& use : uses()) use.linear->plan_grad(plan, g.*use.grad, use.use, use.linear == fc2_.get());
}

void MoeFeedForward::plan_inference(MemoryPlan& plan, FeedForward::Activations& activations,
                                    int64_t rows) const {
  auto& a = static_cast<Activations&>(activations);
  add_tensors(plan, a, rows, MemoryKind::scratch, {}, {});
  const auto add = [&](PlanSlot slot, const char* name, int64_t count, int64_t width) {
    plan.add(slot, name_ + name, MemoryKind::scratch, dims_.dtype, {count, width});
  };
  const int64_t permuted = rows_of(rows);
  add({a.fc1_input, a.fc1_input.high_precision}, ".experts.linear_fc1.input", permuted, dims_.hidden);
  add({a.fc2_input, a.fc2_input.high_precision}, ".experts.linear_fc2.input", permuted, ffn_);
  add(a.fc2_out, ".experts.out", permuted, dims_.hidden);
  fc1_->plan_inference_input(plan, a.fc1_input, permuted);
  fc2_->plan_inference_input(plan, a.fc2_input, permuted);
  if (has_shared())
    add({a.shared_fc2_input, a.shared_fc2_input.high_precision}, ".shared_experts.linear_fc2.input", rows,
        shared_ffn_);
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
  first->fc1_input = all.fc1_input.first_rows(permuted);
  first->fc2_input = all.fc2_input.first_rows(permuted);
  first->fc1_out = part(all.fc1_out, permuted), first->fc2_out = part(all.fc2_out, permuted);
  first->shared_fc2_input = all.shared_fc2_input.first_rows(rows);
  first->gate = part(all.gate, rows), first->shared_out = part(all.shared_out, rows);
  first->shared_fc1_out = part(all.shared_fc1_out, rows);
  return first;
}

int64_t MoeFeedForward::max_input_width() const {
  return std::max(dims_.hidden, shared_ffn_);
}

void MoeFeedForward::share_input_layouts(FeedForward::Activations& activations, const Tensor& values,
                                         const Tensor& scales) const {
  if (!has_shared()) return;
  auto& a = static_cast<Activations&>(activations);
  a.shared_fc1_input.rowwise = shared_fc1_->input_layout(values, scales, a.input.rows());
  a.shared_fc2_input.rowwise = shared_fc2_->input_layout(values, scales, a.input.rows());
}

void MoeFeedForward::quantize_weights(const Context& context, bool count) {
  for (const Use& use : uses()) use.linear->quantize_weight(context, count);
}

// The optimizer's update with a zero gradient keeps the master values and rounds them to the values that passes read.
void MoeFeedForward::update_router_bias(const Context& context, const parameters::ParameterStore& store,
                                        const int32_t* skip) const {
  if (bias_ == nullptr || !bias_->trainable) return;
  for (const parameters::ParameterStore::Piece& piece : store.pieces(*bias_)) {
    const parameters::MainParams main = store.main_of(*bias_, piece);
    TE_CHECK(main.fp32, "{}: the bias of the router needs FP32 master values", name_);
    kernels::router_bias_update(context, {.bias = main.fp32,
                                          .first = piece.local,
                                          .counts = statistics_.counts,
                                          .rate = bias_rate_,
                                          .skip = skip});
  }
}

// --- forward -----------------------------------------------------------------------------------------------

void MoeFeedForward::route(const Context& context, Activations& a, const Pass& pass) const {
  const ProfileLabel label(name_ + ".router");
  kernels::router_gemm(context, {.x = a.input, .weight = router_->value, .logits = a.logits});
  kernels::router_forward(context, {.rule = rule_,
                                    .logits = a.logits,
                                    .bias = bias_ != nullptr ? bias_->value : Tensor{},
                                    .experts = a.experts,
                                    .probs = a.probs});
  kernels::expert_rows(context, {.experts = a.experts,
                                 .alignment = std::max(fc1_->row_alignment(), fc2_->row_alignment()),
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
  kernels::expert_activation(context, {.kind = kind_,
                                       .x = a.fc1_out,
                                       .source = a.source,
                                       .probs = a.probs,
                                       .y = a.fc2_input.high_precision,
                                       .clamp = clamp_});
  if (has_shared())
    kernels::activation_forward(
        context,
        {.kind = kind_, .x = a.shared_fc1_out, .y = a.shared_fc2_input.high_precision, .clamp = clamp_});
}

void MoeFeedForward::permute_input(const Context& context, const Activations& a) const {
  kernels::permute(
      context, {.x = a.input, .source = a.source, .topk = rule_.topk, .rows = a.fc1_input.high_precision});
}

void MoeFeedForward::forward(const Context& context, FeedForward::Activations& activations,
                             const ProducedOperand&, const Tensor& y, const Pass& pass) {
  auto& a = static_cast<Activations&>(activations);
  // 1. Router; order of the rows. 2. Up projection of the experts and of the shared expert.
  pass.begin_step(context, Step::fc1);
  route(context, a, pass);
  permute_input(context, a);
  fc1_->forward(context, a.fc1_input, a.fc1_input.high_precision, a.offsets, a.fc1_out, pass);
  if (has_shared())
    a.shared_fc1_ready =
        shared_fc1_->forward(context, a.shared_fc1_input, a.input, {}, a.shared_fc1_out, pass);
  if (gate_ != nullptr)
    kernels::router_gemm(context, {.x = a.input, .weight = gate_->value, .logits = a.gate});
  // 3. Activation, times the router's probabilities.
  pass.begin_step(context, Step::activation);
  run_activation(context, a);
  // 4. Down projection. 5. Sum of the rows of each token.
  pass.begin_step(context, Step::fc2);
  a.fc2_ready = fc2_->forward(context, a.fc2_input, a.fc2_input.high_precision, a.offsets, a.fc2_out, pass);
  const Tensor shared = gate_ != nullptr ? a.shared_out : y;
  if (has_shared())
    a.shared_fc2_ready = shared_fc2_->forward(context, a.shared_fc2_input, a.shared_fc2_input.high_precision,
                                              {}, shared, pass);
  kernels::unpermute(context, {.rows = a.fc2_out,
                               .row_of = a.row_of,
                               .addend = has_shared() ? shared : Tensor{},
                               .gate = a.gate,
                               .y = y});
}

// --- backward ----------------------------------------------------------------------------------------------

// Down projection of the shared expert; shared_out is replaced by its gradient.
void MoeFeedForward::shared_backward(const Context& context, const Tensor& dy, Activations& a, Gradients& g,
                                     const Pass& pass) const {
  Tensor d_out = dy;
  if (gate_ != nullptr) {
    d_out = a.shared_out;
    kernels::expert_gate_backward(
        context, {.addend = a.shared_out, .gate = a.gate, .dy = dy, .d_addend = d_out, .d_gate = d_gate_});
  }
  shared_fc2_->backward(context, g.shared_fc2, d_out, a.shared_fc2_ready, {}, shared_d_act_, pass);
}

// In place of the outputs of the up projections.
void MoeFeedForward::activation_backward(const Context& context, const Activations& a) const {
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
  logits_backward(context, d_logits_, a.input, router_, dx, router_scratch_);
  if (gate_ != nullptr) logits_backward(context, d_gate_, a.input, gate_, dx, router_scratch_);
}

void MoeFeedForward::backward(const Context& context, const ProducedOperand& d_output,
                              FeedForward::Activations& activations, FeedForward::Gradients& gradients,
                              const Tensor& dx, const Pass& pass, bool,
                              const RecomputeInput& recompute_input) {
  auto& a = static_cast<Activations&>(activations);
  auto& g = static_cast<Gradients&>(gradients);
  const Tensor &dy = d_output.high_precision, &d_rows = g.fc2.high_precision;
  const Pass recomputed = pass.recomputed();
  // 5'. Rows of dy. 4'. Down projection.
  if (recompute_input) {
    run_activation(context, a);
    a.fc2_ready =
        fc2_->complete_input(context, a.fc2_input, a.fc2_input.high_precision, a.offsets, recomputed);
    if (has_shared())
      a.shared_fc2_ready = shared_fc2_->complete_input(context, a.shared_fc2_input,
                                                       a.shared_fc2_input.high_precision, {}, recomputed);
  }
  kernels::permute(context, {.x = dy, .source = a.source, .topk = rule_.topk, .rows = d_rows});
  fc2_->backward(context, g.fc2, d_rows, a.fc2_ready, a.offsets, d_act_, pass);
  if (has_shared()) shared_backward(context, dy, a, g, pass);
  // 3'. Activation and the gradient of the probabilities.
  pass.begin_step(context, Step::activation_backward);
  activation_backward(context, a);
  // 2'. Up projection.
  pass.begin_step(context, Step::fc1_backward);
  if (recompute_input) {
    recompute_input({.high_precision = a.input});
    if (has_shared())
      a.shared_fc1_ready = shared_fc1_->complete_input(context, a.shared_fc1_input, a.input, {}, recomputed);
  }
  permute_input(context, a);
  const ReadyOperand rows =
      fc1_->complete_input(context, a.fc1_input, a.fc1_input.high_precision, a.offsets, recomputed);
  fc1_->backward(context, g.fc1, a.fc1_out, rows, a.offsets, d_input_rows_, pass);
  if (has_shared())
    shared_fc1_->backward(context, g.shared_fc1, a.shared_fc1_out, a.shared_fc1_ready, {}, dx, pass);
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
