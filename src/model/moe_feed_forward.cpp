#include "model/moe_feed_forward.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "config/adapter.h"
#include "core/profile.h"
#include "kernels/dropout/dropout.h"
#include "kernels/moe/capacity.h"
#include "kernels/moe/expert_activation.h"
#include "kernels/moe/permute.h"
#include "model/context_parallel.h"
#include "model/embedding.h"
#include "model/mlp.h"
#include "model/parallel_linear.h"

namespace te::model {
namespace {

using parameters::Parameter;
using parameters::ParameterShard;

kernels::RouterRule router_rule(const config::ModelConfig& m) {
  return {.score = m.moe_router_score_function,
          .topk = m.moe_router_topk,
          .normalize = m.moe_router_norm_topk_prob,
          .scaling = static_cast<float>(m.moe_router_topk_scaling_factor),
          .groups = m.moe_router_num_groups,
          .group_topk = m.moe_router_group_topk,
          .in_turn = m.moe_router_force_load_balancing};
}

/// With sequence parallelism a rank's rows may be parts of several sequences, which count as one
/// (validate_experts.cpp).
Dimensions own_dims(Dimensions dims, const parallel::TensorParallel& tensor) {
  dims.tokens = dims.residual_rows;
  if (tensor.sequence()) dims.batch = 1;
  return dims;
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
      all_dims_(config.dims),
      tensor_(tensor),
      ranks_(config.ranks),
      numbers_rows_(config.adapter.dropout > 0 && config::adapts_mlp(config.adapter, config.model)),
      dims_(own_dims(config.dims, tensor)),
      recompute_(config.recompute),
      kept_weights_(config.kept_weights),
      experts_(config.model.num_moe_experts),
      ffn_(config.model.moe_ffn_hidden_size),
      shared_ffn_(config.model.moe_shared_expert_intermediate_size),
      rule_(router_rule(config.model)),
      scope_(config.model.moe_router_load_balancing_type),
      balance_coefficient_(static_cast<float>(config.model.moe_aux_loss_coeff)),
      z_coefficient_(static_cast<float>(config.model.moe_z_loss_coeff)),
      batch_ranks_(scope_ == BalanceScope::global ? config.batch_ranks : nullptr),
      kind_(activation_kind(config.model)),
      clamp_(static_cast<float>(config.model.swiglu_clamp)),
      bias_rate_(static_cast<float>(config.model.moe_router_bias_update_rate)),
      capacity_factor_(config.model.moe_expert_capacity_factor) {
  if (config.ranks != nullptr && config.ranks->size() > 1) token_ranks_.push_back(&config.ranks->group());
  if (tensor.sequence()) token_ranks_.push_back(&tensor.group());
  if (capacity_factor_ > 0.0)
    capacity_ = std::min(dims_.tokens,
                         kernels::expert_capacity(dims_.tokens * rule_.topk, experts_, capacity_factor_));
  const int64_t hidden = dims_.hidden;
  const double in_std = config.model.init_method_std, out_std = output_std(config.model, LinearKind::fc2);
  // Weights in FP32 arithmetic.
  const auto add = [&](ParameterRole role, int64_t rows) {
    Parameter* weight = parameters.add({.id = {role, layer},
                                        .shard = ParameterShard::full({rows, hidden}),
                                        .std = static_cast<float>(in_std),
                                        .decay = true,
                                        .group = full_weight_group(tensor)});
    weight->linear = true;
    return weight;
  };
  ExpertPartition own{.all = experts_};
  if (config.experts != nullptr) own.rank = config.experts->rank(), own.ranks = config.experts->size();
  const auto linear = [&](LinearKind kind, int expert, int64_t in) {
    return std::make_unique<ExpertLinear>(LinearId{layer, kind, expert}, config, own, in,
                                          kind == LinearKind::fc1 ? in_std : out_std, parameters, recipe,
                                          tensor);
  };
  router_ = add(ParameterRole::router, experts_);
  if (config.model.moe_router_enable_expert_bias)
    bias_ = parameters.add({.id = {ParameterRole::router, layer, ParameterPart::bias},
                            .shard = ParameterShard::full({experts_}),
                            .init = parameters::Init::zeros,
                            .group = full_weight_group(tensor)});
  fc1_ = linear(LinearKind::fc1, 0, hidden);
  fc2_ = linear(LinearKind::fc2, 0, ffn_);
  if (own.ranks > 1)
    dispatch_ = std::make_unique<ExpertDispatch>(name_, *config.experts, dims_, experts_, rule_.topk,
                                                 row_alignment(false), numbers_rows_);
  if (shared_ffn_ == 0) return;
  if (config.model.moe_shared_expert_gate) gate_ = add(ParameterRole::shared_expert_gate, 1);
  shared_fc1_ = linear(LinearKind::fc1, kSharedExpert, hidden);
  shared_fc2_ = linear(LinearKind::fc2, kSharedExpert, shared_ffn_);
}

// --- weights -----------------------------------------------------------------------------------------------

void MoeFeedForward::quantize_weights(const Context& context, bool count) {
  for (const Use& use : uses()) use.linear->quantize_weight(context, count);
}

// The optimizer's update with a zero gradient keeps the master values and rounds them to the values that passes read.
void MoeFeedForward::update_router_bias(const Context& context, const parameters::ParameterStore& store,
                                        const int32_t* skip) const {
  if (bias_ == nullptr || !bias_->trainable) return;
  for (const parameters::ParameterStore::ShardRange& range : store.shard_ranges(*bias_)) {
    const parameters::MainParams main = store.main_of(*bias_, range);
    TE_CHECK(main.fp32, "{}: the bias of the router needs FP32 master values", name_);
    kernels::router_bias_update(context, {.bias = main.fp32,
                                          .first = range.local,
                                          .counts = statistics_.counts,
                                          .rate = bias_rate_,
                                          .skip = skip});
  }
}

// --- forward -----------------------------------------------------------------------------------------------

// Drops selections above the experts' capacity. Offsets and rows still cover all selections; the caller replaces them.
void MoeFeedForward::limit(const Context& context, Activations& a, const Pass& pass) const {
  kernels::expert_rows(
      context, {.experts = a.experts, .offsets = a.offsets, .row_of = a.row_of, .source = a.all_source});
  const bool counted = pass.kind == PassKind::train && statistics_.sums;
  context.copy(a.kept, a.experts);  // -1 of padding stays
  kernels::limit_experts(
      context, {.probs = a.probs,
                .offsets = a.offsets,
                .source = a.all_source,
                .capacity = capacity_,
                .factor = capacity_factor_,
                .kept = a.kept,
                .dropped = counted ? statistics_.sums.as<float>() + kernels::kRouterDropped : nullptr});
}

// Padding selects no expert.
void MoeFeedForward::select(const Context& context, Activations& a, const Pass& pass) const {
  const auto rows = [&](int64_t first, int64_t count, const Tensor& targets) {
    kernels::router_forward(context, {.rule = rule_,
                                      .logits = a.logits.slice_rows(first, count),
                                      .bias = bias_ != nullptr ? bias_->value : Tensor{},
                                      .targets = targets,
                                      .experts = a.experts.slice_rows(first, count),
                                      .probs = a.probs.slice_rows(first, count)});
  };
  if (!pass.targets) return rows(0, a.logits.rows(), {});
  const Tensor targets = pass.targets.view({pass.targets.numel(), 1});
  for (const auto& range : tensor_.ranges(all_dims_.tokens))
    rows(range.local, range.count, targets.slice_rows(range.begin, range.count).view({range.count}));
}

void MoeFeedForward::route(const Context& context, Activations& a, const Pass& pass) const {
  const ProfileLabel label(name_ + ".router");
  kernels::router_gemm(context, {.x = a.input, .weight = router_->value, .logits = a.logits});
  select(context, a, pass);
  if (a.kept) limit(context, a, pass);
  kernels::expert_rows(context, {.experts = a.kept ? Tensor(a.kept) : Tensor(a.experts),
                                 .alignment = a.row_alignment,
                                 .capacity = a.kept ? capacity_ : 0,
                                 .offsets = a.offsets,
                                 .row_of = a.row_of,
                                 .source = a.source});
  if (pass.kind != PassKind::train) return;  // a recomputed pass keeps the gradient of the first one
  kernels::router_statistics(context, {.score = rule_.score,
                                       .logits = a.logits,
                                       .experts = a.experts,
                                       .counts = a.counts,
                                       .score_sums = a.score_sums,
                                       .token_sums = a.token_sums,
                                       .scratch = a.statistics});
  for (parallel::Communicator* const ranks : token_ranks_)  // of complete sequences
    for (const Tensor& part : {Tensor(a.counts), Tensor(a.score_sums), Tensor(a.token_sums)})
      ranks->all_reduce(context, part, parallel::ReduceOp::sum);
  if (batch_ranks_ != nullptr) batch_ranks_->all_reduce(context, a.counts, parallel::ReduceOp::sum);
  kernels::router_balance(context, {.scope = scope_,
                                    .topk = rule_.topk,
                                    .counts = a.counts,
                                    .score_sums = a.score_sums,
                                    .token_sums = a.token_sums,
                                    .score_grad = a.score_grad,
                                    .step_counts = statistics_.counts,
                                    .step_sums = statistics_.sums});
}

MoeFeedForward::ExpertBuffers MoeFeedForward::memory_of(const Activations& a, const Rows& rows,
                                                        const Gradients* g) const {
  const int64_t count = rows.source.numel();
  ExpertBuffers memory{a.fc1_input.first_rows(count),  a.fc2_input.first_rows(count),  {}, {},
                       a.fc1_out.slice_rows(0, count), a.fc2_out.slice_rows(0, count), {}, {}};
  if (g == nullptr) return memory;
  memory.d_fc1 = g->fc1.first_rows(count), memory.d_fc2 = g->fc2.first_rows(count);
  memory.d_act = d_act_.slice_rows(0, count), memory.d_input = d_input_rows_.slice_rows(0, count);
  return memory;
}

ExpertRows MoeFeedForward::expert_activation(const Context& context, const ExpertBuffers& memory,
                                             const Rows& rows, const fp8::ExpertsRequest& request) const {
  kernels::expert_activation(context, {.kind = kind_,
                                       .x = memory.fc1_out,
                                       .source = rows.source,
                                       .probs = rows.probs,
                                       .y = memory.fc2_input.high_precision,
                                       .clamp = clamp_,
                                       .y_fp8 = request.fp8,
                                       .offsets = rows.offsets,
                                       .experts = rows.offsets.numel() - 1,
                                       .y_groups = request.groups});
  return ordered(rows, memory.fc2_input.high_precision, request);
}

void MoeFeedForward::shared_activation(const Context& context, const Activations& a) const {
  if (!has_shared()) return;
  kernels::activation_forward(
      context,
      {.kind = kind_, .x = a.shared_fc1_out, .y = a.shared_fc2_input.high_precision, .clamp = clamp_});
}

// A token has a number for each expert, so that experts drop different elements of it. It does not depend on the order
// of the token's experts, which the smallest change of the router's probabilities may change.
void MoeFeedForward::number_rows(const Context& context, const Activations& a, const Pass& pass) const {
  if (!numbers_ || pass.evaluating()) return;
  for_residual_rows(all_dims_, tensor_, *ranks_, [&](int64_t row, int64_t full, int64_t count) {
    const auto first = static_cast<uint64_t>(pass.first_sample * all_dims_.seq + full);
    kernels::row_numbers(context, {.numbers = numbers_.slice_rows(row, count),
                                   .columns = a.experts.slice_rows(row, count),
                                   .first_row = first,
                                   .width = experts_});
    kernels::row_numbers(
        context, {.numbers = token_numbers_.slice_rows(row, count), .columns = {}, .first_row = first});
  });
}

void MoeFeedForward::forward(const Context& context, FeedForward::Activations& activations,
                             const ProducedOperand&, const Tensor& y, const Pass& pass) {
  auto& a = static_cast<Activations&>(activations);
  const Rows rows = own_rows(a);
  const ExpertBuffers memory = dispatch_ ? ExpertBuffers{} : memory_of(a, rows);
  // 1. Router; order of the rows. With other ranks' experts, tokens are sent to them, and steps 2 to 4 of the experts
  //    run when they have arrived.
  pass.begin_step(context, Step::fc1);
  route(context, a, pass);
  number_rows(context, a, pass);
  if (dispatch_) {
    dispatch_->order_tokens(context, a.row_of, a.offsets, a.routing);
    if (pass.kind != PassKind::recompute) dispatch_->count(context, a.offsets, a.routing);
    dispatch_->pack(context, a.probs, numbers_, a.source);
  }
  // 2. Up projection of the experts and of the shared expert.
  if (!dispatch_) {
    const ExpertRows x = fc1_->input_rows(context, tokens_of(a, a.input), memory.fc1_input.high_precision);
    fc1_->forward(context, memory.fc1_input, x, memory.fc1_out, pass);
  }
  if (has_shared())
    a.shared_fc1_ready =
        shared_fc1_->forward(context, a.shared_fc1_input, shared_rows(a.input), a.shared_fc1_out, pass);
  if (gate_ != nullptr)
    kernels::router_gemm(context, {.x = a.input, .weight = gate_->value, .logits = a.gate});
  ExpertDispatch::Sent sent;
  if (dispatch_) {
    dispatch_->wait_for_counts(context, a.routing);
    sent = sent_tokens(a, pass_of_rounds(a, pass));
    dispatch_->start(context, a.routing, sent);
  }
  // 3. Activation, times the router's probabilities.
  pass.begin_step(context, Step::activation);
  ExpertRows activated;
  if (!dispatch_)
    activated = expert_activation(context, memory, rows, fc2_->input_request(memory.fc2_input, pass));
  shared_activation(context, a);
  // 4. Down projection. 5. Sum of the rows of each token.
  pass.begin_step(context, Step::fc2);
  if (dispatch_)
    forward_rounds(context, a, sent, pass);
  else
    a.fc2_ready = fc2_->forward(context, memory.fc2_input, activated, memory.fc2_out, pass);
  const Tensor shared = gate_ != nullptr ? a.shared_out : y;
  if (has_shared())
    a.shared_fc2_ready = shared_fc2_->forward(context, a.shared_fc2_input,
                                              shared_rows(a.shared_fc2_input.high_precision), shared, pass);
  const ExpertDispatch::Returned results = returned(a, a.fc2_out);
  kernels::unpermute(context, {.rows = results.rows,
                               .row_of = results.row_of,
                               .addend = has_shared() ? shared : Tensor{},
                               .gate = a.gate,
                               .y = y});
}

Pass MoeFeedForward::pass_of_rounds(const Activations& a, Pass pass) {
  pass.new_scales = a.routing.rounds > 1;
  return pass;
}

ExpertDispatch::Sent MoeFeedForward::sent_tokens(const Activations& a, const Pass& pass) const {
  ExpertDispatch::Sent sent{a.source, a.row_of, {a.input}, {}};
  if (fc1_->input_sent_quantized()) sent.x.operand = fc1_->sent_input(a.fc1_input, pass);
  return sent;
}

// Steps 2 to 4 of the experts for the rows that the ranks send.
void MoeFeedForward::forward_rounds(const Context& context, Activations& a, const ExpertDispatch::Sent& sent,
                                    const Pass& pass) {
  const Pass own = pass_of_rounds(a, pass);
  for (int round = 0; round < a.routing.rounds; ++round) {
    const Rows rows = dispatch_->receive(context, a.routing, round, sent);
    const ExpertBuffers memory = memory_of(a, rows);
    const ExpertRows x = fc1_->input_rows(context, received(rows, rows.x), memory.fc1_input.high_precision);
    fc1_->forward(context, memory.fc1_input, x, memory.fc1_out, own);
    const ExpertRows activated =
        expert_activation(context, memory, rows, fc2_->input_request(memory.fc2_input, own));
    a.fc2_ready = fc2_->forward(context, memory.fc2_input, activated, memory.fc2_out, own);
    dispatch_->send_back(context, a.routing, round, memory.fc2_out, false);
  }
  if (pass.kind == PassKind::train && statistics_.rounds != nullptr) *statistics_.rounds += a.routing.rounds;
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
  shared_fc2_->backward(context, g.shared_fc2, shared_rows(d_out), a.shared_fc2_ready, shared_d_act_, pass);
}

// In place of the outputs of the up projections.
ExpertRows MoeFeedForward::expert_activation_backward(const Context& context, const ExpertBuffers& memory,
                                                      const Rows& rows, const Tensor& d_probs,
                                                      const fp8::ExpertsRequest& request) const {
  kernels::expert_activation_backward(context, {.kind = kind_,
                                                .x = memory.fc1_out,
                                                .source = rows.source,
                                                .probs = rows.probs,
                                                .dy = memory.d_act,
                                                .dx = memory.fc1_out,
                                                .d_probs = d_probs,
                                                .clamp = clamp_,
                                                .dx_fp8 = request.fp8,
                                                .offsets = rows.offsets,
                                                .experts = rows.offsets.numel() - 1,
                                                .dx_groups = request.groups});
  return ordered(rows, memory.fc1_out, request);
}

void MoeFeedForward::shared_activation_backward(const Context& context, const Activations& a) const {
  if (!has_shared()) return;
  kernels::activation_backward(
      context,
      {.kind = kind_, .x = a.shared_fc1_out, .dy = shared_d_act_, .dx = a.shared_fc1_out, .clamp = clamp_});
}

void MoeFeedForward::router_backward(const Context& context, const Activations& a, const Tensor& dx,
                                     const Pass& pass) const {
  const ProfileLabel label(name_ + ".router");
  kernels::router_backward(context, {.rule = rule_,
                                     .logits = a.logits,
                                     .experts = a.experts,
                                     .d_probs = d_probs_,
                                     .row_of = a.row_of,
                                     .score_grad = a.score_grad,
                                     .balance_weight = balance_coefficient_ * pass.auxiliary_scale,
                                     .z_weight = z_coefficient_ * pass.auxiliary_scale,
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
  const Tensor& dy = d_output.high_precision;
  const Pass recomputed = pass.recomputed();
  const Rows rows = own_rows(a);
  const ExpertBuffers memory = dispatch_ ? ExpertBuffers{} : memory_of(a, rows, &g);
  ExpertDispatch::Sent sent;
  // 5'. Rows of dy. 4'. Down projection.
  number_rows(context, a, pass);
  if (recompute_input && has_shared()) {
    shared_activation(context, a);
    a.shared_fc2_ready = shared_fc2_->complete_input(
        context, a.shared_fc2_input, shared_rows(a.shared_fc2_input.high_precision), recomputed);
  }
  if (dispatch_) {
    dispatch_->order_tokens(context, a.row_of, a.offsets, a.routing);
    dispatch_->pack_gradients(context, a.routing, dy, a.source);
  } else {
    if (recompute_input) {
      const ExpertRows activated = expert_activation(
          context, memory, rows, fc2_->recomputed_input_request(memory.fc2_input, recomputed));
      a.fc2_ready = fc2_->complete_input(context, memory.fc2_input, activated, recomputed);
    }
    const ExpertRows d_rows = fc2_->grad_rows(context, tokens_of(a, dy), memory.d_fc2.high_precision);
    fc2_->backward(context, memory.d_fc2, d_rows, a.fc2_ready, memory.d_act, pass);
  }
  if (has_shared()) shared_backward(context, dy, a, g, pass);
  // 3'. Activation and the gradient of the probabilities.
  pass.begin_step(context, Step::activation_backward);
  ExpertRows d_fc1;
  if (!dispatch_)
    d_fc1 =
        expert_activation_backward(context, memory, rows, d_probs_, fc1_->grad_request(memory.d_fc1, pass));
  shared_activation_backward(context, a);
  // 2'. Up projection.
  pass.begin_step(context, Step::fc1_backward);
  if (recompute_input) {
    recompute_input({.high_precision = a.input});
    if (has_shared())
      a.shared_fc1_ready =
          shared_fc1_->complete_input(context, a.shared_fc1_input, shared_rows(a.input), recomputed);
  }
  if (dispatch_) {
    dispatch_->pack(context, a.probs, numbers_, a.source);
    sent = sent_tokens(a, pass_of_rounds(a, recomputed));
    sent.dy.values = dy;
    if (fc2_->grad_sent_quantized()) sent.dy.operand = fc2_->sent_grad(g.fc2, pass);
    dispatch_->start(context, a.routing, sent);
  } else {
    const ExpertRows x = fc1_->input_rows(context, tokens_of(a, a.input), memory.fc1_input.high_precision);
    const ReadyOperand input = fc1_->complete_input(context, memory.fc1_input, x, recomputed);
    fc1_->backward(context, memory.d_fc1, d_fc1, input, memory.d_input, pass);
  }
  if (has_shared())
    shared_fc1_->backward(context, g.shared_fc1, shared_rows(a.shared_fc1_out), a.shared_fc1_ready, dx, pass);
  if (dispatch_) backward_rounds(context, a, g, sent, pass, static_cast<bool>(recompute_input));
  const ExpertDispatch::Returned results = returned(a, d_input_rows_);
  kernels::unpermute(
      context,
      {.rows = results.rows, .row_of = results.row_of, .addend = has_shared() ? dx : Tensor{}, .y = dx});
  // 1'. Router.
  router_backward(context, a, dx, pass);
}

// Steps 4' to 2' of the experts. With several rounds, the memory holds the activations of another round.
void MoeFeedForward::backward_rounds(const Context& context, Activations& a, Gradients& g,
                                     const ExpertDispatch::Sent& sent, const Pass& pass,
                                     bool recompute_activation) {
  const bool again = a.routing.rounds > 1;
  const Pass recomputed = pass_of_rounds(a, pass.recomputed());
  for (int round = 0; round < a.routing.rounds; ++round) {
    const Rows rows = dispatch_->receive(context, a.routing, round, sent);
    const ExpertBuffers memory = memory_of(a, rows, &g);
    const ExpertRows x = fc1_->input_rows(context, received(rows, rows.x), memory.fc1_input.high_precision);
    const ReadyOperand input = again ? fc1_->forward(context, memory.fc1_input, x, memory.fc1_out, recomputed)
                                     : fc1_->complete_input(context, memory.fc1_input, x, recomputed);
    if (again || recompute_activation) {
      const ExpertRows activated = expert_activation(
          context, memory, rows, fc2_->recomputed_input_request(memory.fc2_input, recomputed));
      a.fc2_ready = fc2_->complete_input(context, memory.fc2_input, activated, recomputed);
    }
    const ExpertRows d_rows = fc2_->grad_rows(context, received(rows, rows.dy), memory.d_fc2.high_precision);
    fc2_->backward(context, memory.d_fc2, d_rows, a.fc2_ready, memory.d_act, pass);
    const ExpertRows d_fc1 = expert_activation_backward(context, memory, rows, dispatch_->d_probs(),
                                                        fc1_->grad_request(memory.d_fc1, pass));
    fc1_->backward(context, memory.d_fc1, d_fc1, input, memory.d_input, pass);
    dispatch_->send_back(context, a.routing, round, memory.d_input, true);
  }
  dispatch_->returned_d_probs(context, a.row_of, d_probs_);
}

}  // namespace te::model
