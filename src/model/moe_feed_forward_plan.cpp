// Memory of a mixture of experts.
#include <algorithm>

#include "kernels/moe/permute.h"
#include "model/moe_feed_forward.h"

namespace te::model {

int64_t MoeFeedForward::row_alignment(bool inference) const {
  return std::max(fc1_->row_alignment(inference), fc2_->row_alignment(inference));
}

int64_t MoeFeedForward::rows_of(int64_t tokens, bool inference) const {
  if (dispatch_) return dispatch_->rows();
  return kernels::max_expert_rows(tokens, rule_.topk, experts_, row_alignment(inference),
                                  inference ? 0 : capacity_);
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
  if (dispatch_)
    for (LinearUse* const use : {&fc1, &fc2}) {
      use->input = use->forward = Step::fc2;
      use->grad = live(Step::fc1_backward), use->backward = Step::fc1_backward;
      use->repeats = true;
    }
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
  const bool inference = kind == MemoryKind::scratch;
  const int64_t rows = rows_of(tokens, inference);
  a.row_alignment =
      dispatch_ ? 1 : row_alignment(inference);  // rows that are sent to other ranks are not aligned
  const auto add = [&](PlanSlot slot, Buffer tag, const char* name, DType dtype, Shape shape,
                       Lifetime lifetime) {
    plan.add(slot, name_ + name, kind, dtype, shape, {tag, lifetime});
  };
  add(a.logits, Buffer::logits, ".router.logits", DType::f32, {tokens, experts_}, saved);
  add(a.probs, Buffer::probs, ".router.probs", DType::f32, {tokens, rule_.topk}, saved);
  add(a.experts, Buffer::experts, ".router.experts", DType::i32, {tokens, rule_.topk}, saved);
  add(a.offsets, Buffer::offsets, ".experts.offsets", DType::i32, {experts_ + 1}, saved);
  add(a.row_of, Buffer::row_of, ".experts.row_of", DType::i32, {tokens, rule_.topk}, saved);
  add(a.source, Buffer::source, ".experts.source", DType::i32, {dispatch_ ? dispatch_->sent_rows() : rows},
      saved);
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
  LinearUse input = fc1_use(Buffer::input);
  if (sends_fp8_inputs()) input.forward = Step::fc2;  // later rounds quantize it again
  plan.add(a.input, name_ + ".input", MemoryKind::activations, dims_.dtype, {tokens, dims_.hidden},
           {Buffer::input, input.saved_life()});
  for (const Use& use : uses())
    use.linear->plan_input(
        plan, a.*use.input, use.use,
        use.linear == shared_fc1_.get() || (use.linear == fc1_.get() && fc1_->input_from_tokens()));
  add_tensors(plan, a, tokens, MemoryKind::activations,
              saved(recompute_, live(Step::fc1, Step::fc1_backward)),
              saved(recompute_, live(Step::fc2, Step::fc2_backward)));
  if (dispatch_) dispatch_->plan_routing(plan, a.routing);
  plan.add(a.score_grad, name_ + ".router.score_grad", MemoryKind::activations, DType::f32,
           {dims_.batch, experts_});
  const auto scratch = [&](PlanSlot slot, Buffer tag, const char* name, DType dtype, Shape shape,
                           Lifetime lifetime) {
    plan.add(slot, name_ + name, MemoryKind::scratch, dtype, shape, {tag, lifetime});
  };
  scratch(a.counts, Buffer::counts, ".router.counts", DType::i32, {dims_.batch, experts_}, live(Step::fc1));
  scratch(a.score_sums, Buffer::score_sums, ".router.score_sums", DType::f32, {dims_.batch, experts_},
          live(Step::fc1));
  scratch(a.token_sums, Buffer::token_sums, ".router.token_sums", DType::f32,
          {dims_.batch, kernels::kTokenSums}, live(Step::fc1));
  scratch(a.statistics, Buffer::statistics, ".router.statistics", DType::f32,
          {kernels::router_statistics_scratch(tokens, dims_.batch, experts_)}, live(Step::fc1));
  if (capacity_ > 0) {
    scratch(a.all_source, Buffer::all_source, ".experts.all_source", DType::i32, {tokens * rule_.topk},
            live(Step::fc1));
    scratch(a.kept, Buffer::kept, ".experts.kept", DType::i32, {tokens, rule_.topk}, live(Step::fc1));
  }
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
  if (dispatch_) dispatch_->plan_scratch(plan, sends_fp8_inputs(), sends_fp8_gradients());
  if (numbers_rows_) {
    TE_CHECK(ranks_ != nullptr, "{}: dropout of adapters needs the ranks of context parallelism", name_);
    const Lifetime passes = live(Step::fc1, Step::fc2) | live(Step::fc2_backward, Step::fc1_backward);
    add(numbers_, Buffer::numbers, ".experts.numbers", DType::i32, {tokens, rule_.topk}, passes);
    add(token_numbers_, Buffer::token_numbers, ".token_numbers", DType::i32, {tokens, 1}, passes);
  }
  add(d_act_, Buffer::d_act, ".experts.d_act", dims_.dtype, {rows, ffn_},
      dispatch_ ? live(Step::fc1_backward) : act);
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

void MoeFeedForward::plan_gradients(MemoryPlan& plan, FeedForward::Gradients& gradients, bool) const {
  auto& g = static_cast<Gradients&>(gradients);
  for (const Use& use : uses())
    use.linear->plan_grad(plan, g.*use.grad, use.use, use.linear == fc2_.get() && !fc2_->grad_from_tokens());
}

void MoeFeedForward::plan_inference(MemoryPlan& plan, FeedForward::Activations& activations,
                                    int64_t rows) const {
  TE_CHECK(!dispatch_, "{}: inference with experts on other ranks", name_);
  auto& a = static_cast<Activations&>(activations);
  add_tensors(plan, a, rows, MemoryKind::scratch, {}, {});
  const auto add = [&](PlanSlot slot, const char* name, int64_t count, int64_t width) {
    plan.add(slot, name_ + name, MemoryKind::scratch, dims_.dtype, {count, width});
  };
  const int64_t permuted = rows_of(rows, true);
  if (!fc1_->input_from_tokens())
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
  const int64_t permuted = rows_of(rows, true);
  first->input = input, first->row_alignment = all.row_alignment;
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

}  // namespace te::model
