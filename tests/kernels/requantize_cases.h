// Quantization in two launches (kernels/quantize/fp8_output.h, Fp8Requantize) by every kernel that produces an operand,
// shared by the CPU and GPU tests. Expected results come from the values that the same kernel stores in high precision,
// quantized on the CPU with current scaling.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "kernels/activation/activation.h"
#include "kernels/fp8_storage.h"
#include "kernels/gemm_activation_fp8_cases.h"
#include "kernels/norm_cases.h"
#include "kernels/quantize/quantize.h"
#include "kernels/rope/rope.h"
#include "kernels/scale_update/scale_update.h"

namespace te::testing {

using kernels::Fp8Output;
using kernels::Fp8Result;
using kernels::Fp8TensorState;

using Bytes = std::vector<uint8_t>;
/// Outputs of a kernel other than its FP8 output.
using SideOutputs = std::map<std::string, Bytes>;

/// A kernel that produces an operand, with the same inputs in each call.
struct Producer {
  std::string name;
  DType dtype, format;
  int64_t rows, cols;
  /// Runs the kernel with this output. An empty one requests high-precision values, which are returned as "values",
  /// from the same kernel that writes FP8 if it can store both.
  std::function<SideOutputs(const Context&, const Fp8Output&)> run;
  /// The same without FP8, if that is a different kernel with other roundings.
  std::function<SideOutputs(const Context&)> run_plain{};
};

inline Producer quantizing_producer(DType dtype, DType format, int64_t rows, int64_t cols) {
  return {"quantize", dtype, format, rows, cols, [=](const Context& context, const Fp8Output& out) {
            TestTensor x(context, dtype, {rows, cols}), dbias(context, DType::f32, {cols});
            TestTensor scratch(context, DType::f32, {kernels::quantize_scratch_elements(rows, cols)});
            x.fill_normal(21, 3.0f);
            dbias.fill_value(1.0f);
            kernels::quantize(context, {.x = x, .out = out, .dbias = dbias, .scratch = scratch});
            return SideOutputs{{"values", x.raw()}, {"dbias", dbias.raw()}};
          }};
}

/// With a residual add, whose sum may replace x.
inline Producer norm_producer(NormKind kind, DType dtype, DType format, int64_t rows, int64_t cols,
                              bool in_place) {
  const auto run = [=](const Context& context, const Fp8Output& out, bool keeps_values) {
    NormCase c(context, kind, dtype, rows, cols);
    NormForward args = c.forward_with_delta();
    if (in_place) args.sum = args.x;
    args.y_fp8 = out;
    if (!keeps_values) args.y = {};
    kernels::norm_forward(context, args);
    SideOutputs side{{"sum", in_place ? c.x.raw() : c.sum.raw()}, {"rstd", c.rstd.raw()}};
    if (kind == NormKind::layer) side["mean"] = c.mean.raw();
    if (keeps_values) side["values"] = c.y.raw();
    return side;
  };
  Producer producer{
      "norm_forward", dtype, format, rows, cols, [=](const Context& context, const Fp8Output& out) {
        const kernels::Fp8Storage unread(context, format, rows, cols, 1.0f);
        return run(context, out ? out : unread.output(), !out);
      }};
  // The general kernel computes E5M2, but not the amax alone.
  if (format == DType::e5m2)
    producer.run_plain = [=](const Context& context) { return run(context, {}, true); };
  return producer;
}

/// In place of the residual's gradient.
inline Producer norm_backward_producer(NormKind kind, DType dtype, DType format, int64_t rows, int64_t cols) {
  const auto run = [=](const Context& context, const Fp8Output& out) {
    NormCase c(context, kind, dtype, rows, cols);
    NormForward forward = c.forward();
    kernels::norm_forward(context, forward);
    NormBackward args = c.backward_with_residual();
    args.dx = args.dresidual;
    args.dbias = c.dbias;
    args.dx_fp8 = out;
    kernels::norm_backward(context, args);
    SideOutputs side{{"values", c.dresidual.raw()}, {"dgamma", c.dgamma.raw()}, {"dbias", c.dbias.raw()}};
    if (kind == NormKind::layer) side["dbeta"] = c.dbeta.raw();
    return side;
  };
  return {"norm_backward",
          dtype,
          format,
          rows,
          cols,
          [=](const Context& context, const Fp8Output& out) {
            const kernels::Fp8Storage unread(context, format, rows, cols, 1.0f);
            return run(context, out ? out : unread.output());
          },
          [=](const Context& context) { return run(context, {}); }};
}

inline Producer activation_producer(kernels::ActivationKind kind, DType dtype, DType format, int64_t rows,
                                    int64_t cols, bool stored) {
  const std::string name = stored ? "activation_forward, stored" : "activation_forward";
  return {name, dtype, format, rows, cols, [=](const Context& context, const Fp8Output& out) {
            TestTensor x(context, dtype, {rows, kernels::is_gated(kind) ? 2 * cols : cols}),
                y(context, dtype, {rows, cols});
            x.fill_normal(22, 2.0f);
            const kernels::Fp8Storage unread(context, format, rows, cols, 1.0f);
            kernels::ActivationForward args{
                .kind = kind, .x = x, .y_fp8 = out ? out : unread.output(), .clamp = 3.0f};
            if (stored || !out) args.y = y;
            kernels::activation_forward(context, args);
            return args.y ? SideOutputs{{"values", y.raw()}} : SideOutputs{};
          }};
}

/// Fused with an FP8 GEMM, with a bias before GELU.
inline Producer gemm_activation_producer(kernels::ActivationKind kind, int64_t rows, int64_t cols,
                                         int64_t k) {
  return {"gemm_activation_forward",
          DType::bf16,
          DType::e4m3,
          rows,
          cols,
          [=](const Context& context, const Fp8Output& out) {
            const Fp8ActivationOperands operands(context, {kind, rows, cols, k, !kernels::is_gated(kind)});
            kernels::gemm_activation_forward(context, out ? operands.quantized(out) : operands.stored());
            SideOutputs side{{"out", operands.out.raw()}};
            if (!out) side["values"] = operands.y.raw();
            return side;
          }};
}

/// `stored`: dx replaces x.
inline Producer activation_gradient_producer(kernels::ActivationKind kind, DType dtype, DType format,
                                             int64_t rows, int64_t cols, bool stored) {
  const std::string name = stored ? "activation_backward, stored" : "activation_backward";
  return {name, dtype, format, rows, cols, [=](const Context& context, const Fp8Output& out) {
            TestTensor x(context, dtype, {rows, cols}), dbias(context, DType::f32, {cols});
            TestTensor dy(context, dtype, {rows, kernels::is_gated(kind) ? cols / 2 : cols});
            TestTensor scratch(context, DType::f32, {kernels::quantize_scratch_elements(rows, cols)});
            x.fill_normal(23, 2.0f), dy.fill_normal(24), dbias.fill_value(1.0f);
            const kernels::Fp8Storage unread(context, format, rows, cols, 1.0f);
            kernels::ActivationBackward args{.kind = kind,
                                             .x = x,
                                             .dy = dy,
                                             .dx_fp8 = out ? out : unread.output(),
                                             .dbias = dbias,
                                             .scratch = scratch,
                                             .clamp = 3.0f};
            if (stored || !out) args.dx = x;
            kernels::activation_backward(context, args);
            SideOutputs side{{"dbias", dbias.raw()}};
            if (args.dx) side["values"] = x.raw();
            return side;
          }};
}

inline Producer rope_producer(DType dtype, DType format, int64_t seq, int64_t heads, int64_t head_dim) {
  const int64_t rows = 2 * seq, cols = (heads + 2) * head_dim;
  return {
      "rope", dtype, format, rows, cols, [=](const Context& context, const Fp8Output& out) {
        std::vector<float> cos(static_cast<size_t>(seq * head_dim / 2)), sin(cos.size());
        kernels::rope_tables(seq, head_dim, 10000.0, cos.data(), sin.data());
        TestTensor qkv(context, dtype, {rows, cols}), dbias(context, DType::f32, {cols});
        TestTensor c(context, DType::f32, {seq, head_dim / 2}), s(context, DType::f32, {seq, head_dim / 2});
        TestTensor scratch(context, DType::f32, {kernels::quantize_scratch_elements(rows, cols)});
        qkv.fill_normal(25), c.fill(cos), s.fill(sin), dbias.fill_value(1.0f);
        kernels::Rope args{qkv, c, s, seq, heads, 1, head_dim, true};
        args.out = out;
        if (out) args.dbias = dbias, args.scratch = scratch;
        kernels::rope(context, args);
        return out ? SideOutputs{{"dbias", dbias.raw()}} : SideOutputs{{"values", qkv.raw()}};
      }};
}

/// Full and partial tiles; both variants of every kernel.
inline std::vector<Producer> requantize_producers() {
  using kernels::ActivationKind;
  std::vector<Producer> all;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{128, 64}, {77, 101}, {272, 200}}) {
      for (const DType format : {DType::e4m3, DType::e5m2})
        all.push_back(quantizing_producer(dtype, format, rows, cols));
      for (const NormKind kind : {NormKind::rms, NormKind::layer, NormKind::rms_zero_centered}) {
        for (const bool in_place : {false, true})
          all.push_back(norm_producer(kind, dtype, DType::e4m3, rows, cols, in_place));
        all.push_back(norm_backward_producer(kind, dtype, DType::e5m2, rows, cols));
      }
      all.push_back(norm_producer(NormKind::rms, dtype, DType::e5m2, rows, cols, false));
      all.push_back(norm_backward_producer(NormKind::layer, dtype, DType::e4m3, rows, cols));
      for (const ActivationKind kind :
           {ActivationKind::swiglu, ActivationKind::swiglu_clamped, ActivationKind::geglu,
            ActivationKind::gelu, ActivationKind::relu, ActivationKind::relu2}) {
        for (const bool stored : {false, true}) {
          all.push_back(activation_producer(kind, dtype, DType::e4m3, rows, cols, stored));
          all.push_back(activation_gradient_producer(kind, dtype, DType::e5m2, rows, 2 * cols, stored));
        }
      }
    }
    for (const int64_t head_dim : {128, 64})
      for (const int64_t seq : {64, 33}) all.push_back(rope_producer(dtype, DType::e5m2, seq, 3, head_dim));
  }
  for (const ActivationKind kind : {ActivationKind::swiglu, ActivationKind::gelu, ActivationKind::geglu})
    all.push_back(gemm_activation_producer(kind, 144, 80, 96));
  return all;
}

/// An FP8 output that is requantized if its scale overflows, or that uses current scaling.
class RequantizeStorage {
 public:
  RequantizeStorage(const Context& context, const Producer& producer, float scale)
      : fp8_(context, producer.format, producer.rows, producer.cols, scale),
        state_(context, DType::u8, {static_cast<int64_t>(sizeof(Fp8TensorState))}),
        found_(context, DType::f32, {3}),
        predicted_scales_(context, DType::f32, {2}) {
    context.zero(state_);
    context.zero(found_);
    context.zero(predicted_scales_);
  }
  Fp8Output output(bool requantize, float margin_factor = 1.0f) {
    Fp8Output out = fp8_.output();
    if (requantize)
      out.requantize = {.state = state_.get().as<Fp8TensorState>(),
                        .num_quantizations = &num_quantizations_,
                        .margin_factor = margin_factor,
                        .used_scale = found_.get().as<float>(),
                        .all_reduce_amax = {}};
    return out;
  }
  Fp8Output current_scaling_output(float margin_factor = 1.0f) {
    Fp8Output out = output(true, margin_factor);
    out.requantize.current_scale = found_.get().as<float>() + 1;
    out.requantize.current_amax = found_.get().as<float>() + 2;
    return out;
  }
  /// Current scaling with a power-of-two scale and its prediction.
  Fp8Output predicted_scale_output(float margin_factor = 1.0f) {
    Fp8Output out = current_scaling_output(margin_factor);
    out.requantize.predicted_scales = predicted_scales_.get().as<float>();
    return out;
  }
  Fp8Result result() const { return fp8_.read(); }
  Fp8TensorState state() const {
    Fp8TensorState state;
    std::memcpy(&state, state_.raw().data(), sizeof(state));
    return state;
  }
  /// Scale that was used; with current scaling also the tensor's scale and amax.
  std::vector<float> found() const { return found_.floats(); }
  /// Initial amax of the next quantization.
  float next_amax() const { return state().amax[num_quantizations_ % 2]; }

 private:
  kernels::Fp8Storage fp8_;
  TestTensor state_, found_, predicted_scales_;
  unsigned num_quantizations_ = 0;
};

/// `values` quantized on the CPU with current scaling; the amax is at least amax0.
struct CurrentScalingResult {
  float amax = 0, scale = 0;
  Fp8Result result;
};
inline CurrentScalingResult quantize_with_current_scaling(const Producer& p, const Bytes& values,
                                                          int margin = 0, float amax0 = 0.0f,
                                                          bool power_of_two = false) {
  const Context cpu = Context::cpu();
  TestTensor x(cpu, p.dtype, {p.rows, p.cols}), amax(cpu, DType::f32, {1}), scale(cpu, DType::f32, {1});
  x.fill_raw(values.data());
  amax.fill_value(amax0);
  Fp8Output amax_only;
  amax_only.amax = amax.get().as<float>();
  kernels::quantize(cpu, {.x = x, .out = amax_only});
  kernels::current_scale(cpu, {.amax = amax, .scale = scale, .fp8_max = fp8_max(p.format), .margin = margin});
  CurrentScalingResult own{amax.floats()[0], scale.floats()[0], {}};
  if (power_of_two) own.scale = std::ldexp(1.0f, std::ilogb(own.scale));
  kernels::Fp8Storage storage(cpu, p.format, p.rows, p.cols, own.scale);
  kernels::quantize(cpu, {.x = x, .out = storage.output()});
  own.result = storage.read();
  return own;
}

inline void expect_finalized(const RequantizeStorage& storage, float scale, unsigned quantizations,
                             unsigned requantized) {
  const Fp8TensorState state = storage.state();
  EXPECT_EQ(storage.next_amax(), 0.0f);
  EXPECT_EQ(storage.found()[0], scale);
  EXPECT_EQ(state.scale, scale);
  EXPECT_EQ(state.requantized, requantized);
  EXPECT_EQ(state.counters.total + state.counters.saturated + state.counters.flushed, 0u);
  EXPECT_EQ(state.quantized, quantizations);
  EXPECT_EQ(state.counted_requantized, requantized);
}

/// Compares everything except the counters.
inline void expect_same_quantization(const Fp8Result& actual, const Fp8Result& expected) {
  Fp8Result counted = actual;
  counted.counters = expected.counters;
  expect_same(counted, expected);
}

/// Checks requantization with one producer.
inline void check_requantize(const Context& context, const Producer& p) {
  SCOPED_TRACE(fmt::format("{}, {} to {}, [{}, {}]", p.name, dtype_name(p.dtype), dtype_name(p.format),
                           p.rows, p.cols));
  const CurrentScalingResult own = quantize_with_current_scaling(p, p.run(context, {}).at("values"));
  ASSERT_GT(own.amax, 0.0f);
  const auto run = [&](RequantizeStorage& storage, bool requantize, float margin_factor = 1.0f) {
    return p.run(context, storage.output(requantize, margin_factor));
  };
  // 1. Values that overflow the scale, by little, by much or (a scale that is not known yet) by all: the result of
  // `tensorwise`, and nothing else changes. Repeated, because the first call must have reset its state.
  for (const float scale : {own.scale * 1.01f, own.scale * 64.0f, 0x1p126f}) {
    RequantizeStorage off(context, p, scale), on(context, p, scale);
    const SideOutputs expected_side = run(off, false);
    EXPECT_GT(off.result().counters.saturated, 0u);
    for (unsigned times = 1; times <= 2; ++times) {
      EXPECT_EQ(run(on, true), expected_side);
      const Fp8Result result = on.result();
      expect_same_quantization(result, own.result);
      EXPECT_EQ(result.counters.saturated, 0u);
      EXPECT_EQ(result.counters.flushed, times * own.result.counters.flushed);
      EXPECT_EQ(result.counters.total, times * own.result.counters.total);
      expect_finalized(on, own.scale, times, times);
    }
  }
  // 2. Values within the range: as without a second launch. The largest value may equal the largest FP8 number.
  for (const float factor : {1.0f, 0.25f}) {
    const float scale = own.scale * factor;
    RequantizeStorage off(context, p, scale), on(context, p, scale);
    const SideOutputs expected_side = run(off, false);
    EXPECT_EQ(run(on, true), expected_side);
    expect_same(on.result(), off.result());
    expect_finalized(on, scale, 1, 0);
  }
  // 3. A margin lowers the new scale, not the limit.
  RequantizeStorage margin(context, p, own.scale * 2.0f), none(context, p, own.scale);
  run(margin, true, 0.25f);
  expect_same_quantization(margin.result(),
                           quantize_with_current_scaling(p, p.run(context, {}).at("values"), 2).result);
  run(none, true, 0.25f);
  expect_finalized(none, own.scale, 1, 0);
}

/// Checks current scaling with one producer: the result of two passes over the stored values, and all else as without
/// FP8.
inline void check_current_scaling(const Context& context, const Producer& p) {
  SCOPED_TRACE(fmt::format("{}, {} to {}, [{}, {}]", p.name, dtype_name(p.dtype), dtype_name(p.format),
                           p.rows, p.cols));
  RequantizeStorage off(context, p, 1.0f);
  const SideOutputs given_side = p.run(context, off.output(false));
  SideOutputs expected_side = p.run_plain ? p.run_plain(context) : given_side;
  const Bytes values = p.run_plain ? expected_side.at("values") : p.run(context, {}).at("values");
  if (!given_side.contains("values")) expected_side.erase("values");  // only FP8 is written
  for (const int margin : {0, 2}) {
    const CurrentScalingResult own = quantize_with_current_scaling(p, values, margin);
    // The given scale is not read: with infinity all values would saturate.
    RequantizeStorage storage(context, p, std::numeric_limits<float>::infinity());
    for (unsigned times = 1; times <= 3; ++times) {
      EXPECT_EQ(p.run(context, storage.current_scaling_output(margin == 0 ? 1.0f : 0.25f)), expected_side);
      const Fp8Result result = storage.result();
      expect_same_quantization(result, own.result);
      EXPECT_EQ(result.counters.saturated, 0u);
      EXPECT_EQ(result.counters.flushed, times * own.result.counters.flushed);
      EXPECT_EQ(result.counters.total, times * own.result.counters.total);
      EXPECT_EQ(storage.found(), (std::vector<float>{own.scale, own.scale, own.amax}));
      expect_finalized(storage, own.scale, 0, 0);
    }
  }
}

/// Checks predicted scales: correct from the second quantization on, and wrong after `other` values. The result always
/// has the tensor's own power-of-two scale.
inline void check_predicted_scale(const Context& context, const Producer& p) {
  SCOPED_TRACE(fmt::format("{}, {} to {}, [{}, {}]", p.name, dtype_name(p.dtype), dtype_name(p.format),
                           p.rows, p.cols));
  const CurrentScalingResult own =
      quantize_with_current_scaling(p, p.run(context, {}).at("values"), 0, 0.0f, true);
  RequantizeStorage off(context, p, own.scale), storage(context, p, std::numeric_limits<float>::infinity());
  const SideOutputs expected_side = p.run(context, off.output(false));
  const auto quantize = [&](unsigned times, unsigned requantized) {
    EXPECT_EQ(p.run(context, storage.predicted_scale_output()), expected_side);
    const Fp8Result result = storage.result();
    expect_same_quantization(result, own.result);
    EXPECT_EQ(result.counters.saturated, 0u);
    EXPECT_EQ(result.counters.flushed, times * own.result.counters.flushed);
    EXPECT_EQ(result.counters.total, times * own.result.counters.total);
    EXPECT_EQ(storage.found(), (std::vector<float>{own.scale, own.scale, own.amax}));
    expect_finalized(storage, own.scale, times, requantized);
  };
  quantize(1, 1);
  quantize(2, 1);
  quantize(3, 1);
  // Another margin gives another scale, which the next quantization takes as its prediction.
  for (const float margin_factor : {0.25f, 4.0f}) {
    RequantizeStorage moved(context, p, 1.0f);
    p.run(context, moved.predicted_scale_output(margin_factor));
    p.run(context, moved.predicted_scale_output());
    expect_same_quantization(moved.result(), own.result);
    expect_finalized(moved, own.scale, 2, 2);
  }
}

}  // namespace te::testing
