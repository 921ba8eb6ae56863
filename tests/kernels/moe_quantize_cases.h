// Quantization of experts' operands: the outputs and state of all experts, on either backend.
#pragma once

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/common/row_blocks.h"
#include "kernels/moe/quantize_experts.h"
#include "kernels/quantize/quantize_groups.h"
#include "moe_cases.h"

namespace te::kernels {

enum class ExpertScaling : uint8_t { given, corrected, current, power_of_two };
inline constexpr ExpertScaling kExpertScalings[] = {ExpertScaling::given, ExpertScaling::corrected,
                                                    ExpertScaling::current, ExpertScaling::power_of_two};

/// Host copy of everything that a quantization writes, except the double-buffered fields.
struct ExpertResult {
  std::vector<uint8_t> rowwise, columnwise, scale, scale_inv, amax, current_amax, used_scale, counters;
  std::vector<float> state_scale;
  std::vector<uint64_t> state_counts;
  bool operator==(const ExpertResult&) const = default;
};

class ExpertStorage {
 public:
  using T = testing::TestTensor;
  ExpertStorage(const Context& context, DType format, int64_t rows, int64_t cols, int64_t experts)
      : experts_(experts),
        rowwise_(context, format, {rows, cols}),
        columnwise_(context, format, {cols, rows}),
        scale_(context, DType::f32, {experts}),
        scale_inv_(context, DType::f32, {experts}),
        amax_(context, DType::f32, {experts}),
        current_amax_(context, DType::f32, {experts}),
        used_scale_(context, DType::f32, {experts}),
        predicted_(context, DType::f32, {experts, 2}),
        counters_(context, DType::i64, {experts, 3}),
        states_(context, DType::u8, {experts, static_cast<int64_t>(sizeof(Fp8TensorState))}),
        num_quantizations_(static_cast<size_t>(experts), 0) {
    std::vector<float> scales, amaxes;
    for (int64_t e = 0; e < experts; ++e) {
      scales.push_back(std::ldexp(1.5f, static_cast<int>(e % 7)));
      amaxes.push_back(e % 3 == 0 ? 100.0f : 0.0f);
    }
    scale_.fill(scales), amax_.fill(amaxes);
    scale_inv_.fill_value(0.0f), current_amax_.fill_value(0.0f), used_scale_.fill_value(0.0f);
    context.zero(predicted_), context.zero(counters_), context.zero(states_);
  }

  Fp8Output output(ExpertScaling scaling, bool rowwise = true, bool columnwise = true) {
    Fp8Output out{.rowwise = rowwise ? rowwise_.get() : Tensor{},
                  .columnwise = columnwise ? columnwise_.get() : Tensor{},
                  .scale = scale_.get().as<float>(),
                  .scale_inv = scale_inv_.get().as<float>(),
                  .amax = amax_.get().as<float>(),
                  .counters = counters_.get().as<Fp8Counters>()};
    if (scaling == ExpertScaling::given) return out;
    out.requantize.state = states_.get().as<Fp8TensorState>();
    out.requantize.num_quantizations = num_quantizations_.data();
    out.requantize.margin_factor = 0.5f;
    out.requantize.used_scale = used_scale_.get().as<float>();
    if (scaling == ExpertScaling::corrected) return out;
    out.requantize.current_scale = scale_.get().as<float>();
    out.requantize.current_amax = current_amax_.get().as<float>();
    if (scaling == ExpertScaling::power_of_two)
      out.requantize.predicted_scales = predicted_.get().as<float>();
    return out;
  }

  ExpertResult read() const {
    ExpertResult result{rowwise_.raw(),
                        columnwise_.raw(),
                        scale_.raw(),
                        scale_inv_.raw(),
                        amax_.raw(),
                        current_amax_.raw(),
                        used_scale_.raw(),
                        counters_.raw(),
                        {},
                        {}};
    const std::vector<uint8_t> raw = states_.raw();
    for (int64_t e = 0; e < experts_; ++e) {
      Fp8TensorState state;
      std::memcpy(&state, raw.data() + e * static_cast<int64_t>(sizeof(state)), sizeof(state));
      result.state_scale.push_back(state.scale);
      result.state_counts.insert(
          result.state_counts.end(),
          {state.requantized, state.quantized, state.counted_requantized, state.counters.total});
    }
    return result;
  }

 private:
  int64_t experts_;
  T rowwise_, columnwise_, scale_, scale_inv_, amax_, current_amax_, used_scale_, predicted_, counters_,
      states_;
  std::vector<unsigned> num_quantizations_;
};

/// Operands that overflow the given scales of some experts, with a NaN in one expert and an expert that is zero.
inline void fill_expert_rows(const testing::TestTensor& x, const std::vector<int32_t>& offsets,
                             float factor) {
  const int64_t rows = x.get().rows(), cols = x.get().cols();
  std::vector<float> values = testing::normal_values(rows * cols, 11);
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    const float size = e % 5 == 2 ? 0.0f : factor * std::ldexp(1.0f, static_cast<int>(e % 9) - 2);
    for (int64_t i = offsets[e] * cols; i < offsets[e + 1] * cols; ++i)
      values[static_cast<size_t>(i)] *= size;
    if (e % 11 == 3 && offsets[e + 1] > offsets[e])
      values[static_cast<size_t>(offsets[e] * cols + 1)] = std::nanf("");
  }
  const_cast<testing::TestTensor&>(x).fill(values);
}

/// The result of quantizing the rows of permute() in three steps of different magnitudes, from x with `source` or from
/// its copy.
inline std::vector<ExpertResult> quantize_permuted(const Context& context, const MoeCase& c, int64_t cols,
                                                   DType dtype, ExpertScaling scaling, bool from_source,
                                                   bool counted) {
  const MoeOrder order(context, c);
  ExpertStorage storage(context, DType::e4m3, order.rows(), cols, c.experts);
  std::vector<ExpertResult> results;
  for (const float factor : {1.0f, 40.0f, 0.1f}) {
    testing::TestTensor x(context, dtype, {c.tokens, cols}), rows(context, dtype, {order.rows(), cols});
    x.fill_normal(1, factor);
    permute(context, {.x = x, .source = order.source, .topk = c.topk, .rows = rows});
    QuantizeExperts args{
        .x = rows, .offsets = order.offsets, .experts = c.experts, .out = storage.output(scaling)};
    if (from_source) args.x = x, args.source = order.source, args.topk = c.topk;
    if (!counted) args.out.counters = nullptr;
    quantize_experts(context, args);
    results.push_back(storage.read());
  }
  return results;
}

/// Everything that the activation, its gradient and the quantization of both results write.
struct ActivationResult {
  ExpertResult y, dx;
  std::vector<uint8_t> d_probs;
  bool operator==(const ActivationResult&) const = default;
};

struct ActivationCase {
  MoeCase order;
  int64_t ffn;
  ExpertScaling scaling;
  ActivationKind kind = ActivationKind::swiglu;
  bool counted = false, rowwise = true, columnwise = true;
  DType dtype = DType::bf16, gradient = DType::e5m2;
};

/// The tensors of an activation and its gradient.
struct ActivationPass {
  testing::TestTensor x, y, dy, probs, d_probs;
  ExpertActivation forward;
  ExpertActivationBackward backward;

  ActivationPass(const Context& context, const ActivationCase& c, const MoeOrder& order, float factor)
      : x(context, c.dtype, {order.rows(), is_gated(c.kind) ? 2 * c.ffn : c.ffn}),
        y(context, c.dtype, {order.rows(), c.ffn}),
        dy(context, c.dtype, {order.rows(), c.ffn}),
        probs(context, DType::f32, {c.order.tokens, c.order.topk}),
        d_probs(context, DType::f32, {c.order.tokens, c.order.topk}) {
    x.fill_normal(1, factor), dy.fill_normal(2, factor), probs.fill_normal(3), d_probs.fill_value(0.0f);
    forward = {.kind = c.kind, .x = x, .source = order.source, .probs = probs, .y = y};
    backward = {.kind = c.kind, .x = x, .source = order.source, .probs = probs};
    backward.dy = dy, backward.dx = x, backward.d_probs = d_probs;
    forward.clamp = backward.clamp = c.kind == ActivationKind::swiglu_clamped ? 2.0f : 0.0f;
    forward.offsets = backward.offsets = order.offsets;
    forward.experts = backward.experts = c.order.experts;
  }
};

/// Results of three steps of different magnitudes.
inline std::vector<ActivationResult> activations(const Context& context, const ActivationCase& c,
                                                 bool in_one_pass) {
  const MoeOrder order(context, c.order);
  const int64_t width = is_gated(c.kind) ? 2 * c.ffn : c.ffn;
  ExpertStorage y_storage(context, DType::e4m3, order.rows(), c.ffn, c.order.experts),
      dx_storage(context, c.gradient, order.rows(), width, c.order.experts);
  std::vector<ActivationResult> results;
  for (const float factor : {1.0f, 40.0f, 0.1f}) {
    ActivationPass pass(context, c, order, factor);
    Fp8Output y_out = y_storage.output(c.scaling, c.rowwise, c.columnwise),
              dx_out = dx_storage.output(c.scaling, c.rowwise, c.columnwise);
    if (!c.counted) y_out.counters = dx_out.counters = nullptr;
    const auto quantize = [&](const Tensor& x, const Fp8Output& out) {
      quantize_experts(context, {.x = x, .offsets = order.offsets, .experts = c.order.experts, .out = out});
    };
    if (in_one_pass) pass.forward.y_fp8 = y_out, pass.backward.dx_fp8 = dx_out;
    expert_activation(context, pass.forward);
    if (!in_one_pass) quantize(pass.y, y_out);
    expert_activation_backward(context, pass.backward);
    if (!in_one_pass) quantize(pass.x, dx_out);
    results.push_back({y_storage.read(), dx_storage.read(), pass.d_probs.raw()});
  }
  return results;
}

/// Outputs with scales of vectors.
class VectorStorage {
 public:
  VectorStorage(const Context& context, DType format, int64_t rows, int64_t cols)
      : rowwise_(context, format, {rows, cols}),
        columnwise_(context, format, {cols, rows}),
        row_scales_(context, DType::f32, scale_shape(ScaleLayout::vectors, rows, cols)),
        column_scales_(context, DType::f32, scale_shape(ScaleLayout::vectors, cols, rows)) {
    for (const auto* tensor : tensors()) context.zero(*tensor);
  }
  QuantizeGroups output(bool rowwise, bool columnwise) const {
    QuantizeGroups out{.row_blocks = true, .margin = 1};
    if (rowwise) out.rowwise = {rowwise_, row_scales_, ScaleLayout::vectors};
    if (columnwise) out.columnwise = {columnwise_, column_scales_, ScaleLayout::vectors};
    return out;
  }
  void append_to(std::vector<std::vector<uint8_t>>& results) const {
    for (const auto* tensor : tensors()) results.push_back(tensor->raw());
  }

 private:
  std::array<const testing::TestTensor*, 4> tensors() const {
    return {&rowwise_, &columnwise_, &row_scales_, &column_scales_};
  }
  testing::TestTensor rowwise_, columnwise_, row_scales_, column_scales_;
};

/// The same as activations() with scales of vectors: all outputs and the gradients of the probabilities.
inline std::vector<std::vector<uint8_t>> activations_by_vectors(const Context& context,
                                                                const ActivationCase& c, bool in_one_pass) {
  const MoeOrder order(context, c.order);
  const VectorStorage y(context, DType::e4m3, order.rows(), c.ffn),
      dx(context, c.gradient, order.rows(), is_gated(c.kind) ? 2 * c.ffn : c.ffn);
  ActivationPass pass(context, c, order, 3.0f);
  const auto quantize = [&](const Tensor& x, QuantizeGroups groups) {
    groups.x = x;
    quantize_groups(context, groups);
  };
  const QuantizeGroups y_out = y.output(c.rowwise, c.columnwise), dx_out = dx.output(c.rowwise, c.columnwise);
  if (in_one_pass) pass.forward.y_groups = y_out, pass.backward.dx_groups = dx_out;
  expert_activation(context, pass.forward);
  if (!in_one_pass) quantize(pass.y, y_out);
  expert_activation_backward(context, pass.backward);
  if (!in_one_pass) quantize(pass.x, dx_out);
  std::vector<std::vector<uint8_t>> results{pass.d_probs.raw()};
  y.append_to(results), dx.append_to(results);
  return results;
}

}  // namespace te::kernels
