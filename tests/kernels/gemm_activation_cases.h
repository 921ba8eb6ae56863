// Problems of kernels/gemm/gemm_activation.h: operands of magnitude 1, where activations are nonlinear, equal on every
// device.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_activation.h"
#include "kernels/quantize/quantize.h"
#include "testing/testing.h"

namespace te::testing {

struct GemmActivationCase {
  kernels::ActivationKind kind;
  DType dtype;
  int64_t m, ffn, k;
  bool bias;  ///< with its gradient
  DType main_grad = DType::f32;

  int64_t n() const { return kernels::is_gated(kind) ? 2 * ffn : ffn; }
  float clamp() const { return kind == kernels::ActivationKind::swiglu_clamped ? 0.9f : 0.0f; }
  std::string name() const {
    return fmt::format("{} {} m {} ffn {} k {}{}",
                       !kernels::is_gated(kind)                 ? "gelu"
                       : clamp() > 0                            ? "swiglu, clamped"
                       : kind == kernels::ActivationKind::geglu ? "geglu"
                                                                : "swiglu",
                       dtype_name(dtype), m, ffn, k,
                       bias ? fmt::format(" bias, gradient {}", dtype_name(main_grad)) : "");
  }
};

/// Tensors of both passes. Outputs are NaN initially.
struct GemmActivationOperands {
  GemmActivationOperands(const Context& context, const GemmActivationCase& problem)
      : c(problem),
        a(context, c.dtype, {c.m, c.k}),
        b(context, c.dtype, {c.n(), c.k}),
        bias(context, c.dtype, {c.n()}),
        out(context, c.dtype, {c.m, c.n()}),
        y(context, c.dtype, {c.m, c.ffn}),
        dy(context, c.dtype, {c.m, c.k}),
        w(context, c.dtype, {c.k, c.ffn}),
        dx(context, c.dtype, {c.m, c.n()}),
        d_y(context, c.dtype, {c.m, c.ffn}),
        recomputed_y(context, c.dtype, {c.m, c.ffn}),
        dbias(context, c.main_grad, {c.n()}),
        scratch(context, DType::f32, {kernels::quantize_scratch_elements(c.m, c.n())}) {
    const float std = 1.5f / std::sqrt(static_cast<float>(c.k));
    a.fill_normal(1);
    b.fill_normal(2, std);
    bias.fill_normal(3, 0.5f);
    dy.fill_normal(4);
    w.fill_normal(5, std);
    dbias.fill_normal(6);
  }

  kernels::GemmActivationForward forward() const {
    return {.kind = c.kind, .a = a, .b = b, .bias = optional(bias), .out = out, .y = y, .clamp = c.clamp()};
  }
  /// Call after the forward pass.
  kernels::GemmActivationBackward backward() const {
    return {.kind = c.kind,
            .a = dy,
            .b = w,
            .x = out,
            .dx = dx,
            .dbias = optional(dbias),
            .scratch = optional(scratch),
            .d_y = d_y,
            .clamp = c.clamp()};
  }

  /// Also recomputes the activation's result.
  kernels::GemmActivationBackward backward_and_y() const {
    kernels::GemmActivationBackward args = backward();
    args.y = recomputed_y;
    return args;
  }

  void forward_in_two_steps(const Context& context) const {
    kernels::gemm(context, {.a = a, .b = b, .out = out, .trans_b = true, .bias = optional(bias)});
    kernels::activation_forward(context, {.kind = c.kind, .x = out, .y = y, .clamp = c.clamp()});
  }
  void backward_in_two_steps(const Context& context) const {
    kernels::gemm(context, {.a = dy, .b = w, .out = d_y});
    kernels::activation_backward(context, {.kind = c.kind,
                                           .x = out,
                                           .dy = d_y,
                                           .dx = dx,
                                           .dbias = optional(dbias),
                                           .scratch = optional(scratch),
                                           .clamp = c.clamp()});
  }

  GemmActivationCase c;
  TestTensor a, b, bias, out, y;                            ///< forward
  TestTensor dy, w, dx, d_y, recomputed_y, dbias, scratch;  ///< backward; its x is out

 private:
  Tensor optional(const TestTensor& tensor) const { return c.bias ? tensor.get() : Tensor{}; }
};

}  // namespace te::testing
