// FP8 problems of kernels/gemm/gemm_activation.h: operands with one scale each, equal on every device.
#pragma once

#include <cmath>
#include <string>

#include "kernels/gemm/gemm_activation.h"
#include "kernels/quantize/quantize.h"
#include "testing/testing.h"

namespace te::testing {

/// Normal values in FP8 with one inverse scale, which is not a power of two.
class ScaledMatrix {
 public:
  ScaledMatrix(const Context& context, DType format, int64_t rows, int64_t cols, uint64_t seed, float std)
      : values_(context, format, {rows, cols}),
        scale_(context, DType::f32, {1}),
        inverse_(context, DType::f32, {1}) {
    TestTensor x(context, DType::bf16, {rows, cols});
    x.fill_normal(seed, std);
    scale_.fill_value(50.0f / std);
    kernels::Fp8Output out;
    out.rowwise = values_;
    out.scale = scale_.get().as<float>();
    out.scale_inv = inverse_.get().as<float>();
    kernels::quantize(context, {.x = x, .out = out});
  }
  kernels::Matrix get() const { return {values_.get(), inverse_.get(), kernels::ScaleLayout::tensor}; }
  /// Dequantized on the host.
  std::vector<float> dequantized() const {
    std::vector<float> values = values_.floats();
    const float inverse = inverse_.floats()[0];
    for (float& value : values) value *= inverse;
    return values;
  }

 private:
  TestTensor values_, scale_, inverse_;
};

struct Fp8ActivationCase {
  kernels::ActivationKind kind;
  int64_t m, ffn, k;
  bool bias;
  DType format = DType::e4m3;  ///< of a

  int64_t n() const { return kernels::is_gated(kind) ? 2 * ffn : ffn; }
  std::string name() const {
    return fmt::format("{} {} m {} ffn {} k {}{}", kernels::is_gated(kind) ? "swiglu" : "gelu",
                       dtype_name(format), m, ffn, k, bias ? " bias" : "");
  }
};

/// Outputs are NaN initially.
struct Fp8ActivationOperands {
  Fp8ActivationOperands(const Context& context, const Fp8ActivationCase& problem)
      : c(problem),
        a(context, c.format, c.m, c.k, 1, 1.0f),
        b(context, DType::e4m3, c.n(), c.k, 2, 1.5f / std::sqrt(static_cast<float>(c.k))),
        bias(context, DType::bf16, {c.n()}),
        out(context, DType::bf16, {c.m, c.n()}),
        y(context, DType::bf16, {c.m, c.ffn}) {
    bias.fill_normal(3, 0.5f);
  }
  /// Without a result: the caller sets y or y_fp8.
  kernels::GemmActivationForward args() const {
    return {.kind = c.kind,
            .a = a.get(),
            .b = b.get(),
            .bias = c.bias ? bias.get() : Tensor{},
            .out = out,
            .fast_accumulation = true};
  }
  kernels::GemmActivationForward stored() const {
    kernels::GemmActivationForward args = this->args();
    args.y = y;
    return args;
  }
  kernels::GemmActivationForward quantized(const kernels::Fp8Output& to) const {
    kernels::GemmActivationForward args = this->args();
    args.y_fp8 = to;
    return args;
  }

  Fp8ActivationCase c;
  ScaledMatrix a, b;
  TestTensor bias, out, y;
};

}  // namespace te::testing
