// Checks, dispatch and CPU reference of the experts' activation.
#include "kernels/moe/expert_activation.h"

#include <algorithm>

#include "core/float_types.h"
#include "kernels/activation/activation_cpu.h"
#include "kernels/common/checks.h"
#include "kernels/moe/moe_cuda.h"
#include "kernels/moe/quantize_experts.h"

namespace te::kernels {
namespace {

/// Checks the arguments that both passes share. `y`: y or its gradient.
template <class Args>
void check_expert_activation(const char* op, const Args& a, const Tensor& y) {
  check_high_precision(op, "x", a.x);
  const int64_t width = is_gated(a.kind) ? 2 : 1;
  TE_CHECK(a.x.cols() % width == 0, "{}: x has {} columns, but gate and up need an even number", op,
           a.x.cols());
  check_dtype(op, "source", a.source, DType::i32);
  TE_CHECK(a.source.numel() == a.x.rows(), "{}: source has {} rows, x has {}", op, a.source.numel(),
           a.x.rows());
  check_dtype(op, "probs", a.probs, DType::f32);
  check_tensor(op, "y", y, a.x.dtype, {a.x.rows(), a.x.cols() / width});
  TE_CHECK(a.kind != ActivationKind::swiglu_clamped || a.clamp > 0.0f, "{}: clamp {} must be above 0", op,
           a.clamp);
}

/// The arguments of quantize_groups() for a result.
QuantizeGroups of_result(QuantizeGroups groups, const Tensor& result) {
  groups.x = result;
  return groups;
}

template <class Args>
void check_quantization(const char* op, const Args& a, const Fp8Output& out, const QuantizeGroups& groups,
                        const Tensor& result) {
  if (groups.wants_data()) check_quantize_groups(of_result(groups, result));
  if (!out) return;
  TE_CHECK(!groups.wants_data(), "{}: the result is quantized either per expert or by groups", op);
  check_fp8_output(op, out, result.rows(), result.cols());
  check_dtype(op, "offsets", a.offsets, DType::i32);
  check_shape(op, "offsets", a.offsets, {a.experts + 1});
}

template <ActivationKind kind, class T>
void expert_forward_cpu(const ExpertActivation& a) {
  const int64_t ffn = a.y.cols(), cols = a.x.cols();
#pragma omp parallel for
  for (int64_t r = 0; r < a.x.rows(); ++r) {
    const int32_t source = a.source.as<int32_t>()[r];
    const T* const x = a.x.as<T>() + r * cols;
    T* const y = a.y.as<T>() + r * ffn;
    if (source < 0) {
      std::fill_n(y, ffn, T{});
      continue;
    }
    const float prob = a.probs.as<float>()[source];
    for (int64_t c = 0; c < ffn; ++c) {
      const float up = is_gated(kind) ? to_float(x[ffn + c]) : 0.0f;
      y[c] = from_float<T>(activation_cpu<kind>(to_float(x[c]), up, a.clamp) * prob);
    }
  }
}

template <ActivationKind kind, class T>
void expert_backward_row(const ExpertActivationBackward& a, int64_t r, int32_t source) {
  const int64_t ffn = a.dy.cols(), cols = a.x.cols();
  const T *const x = a.x.as<T>() + r * cols, *const dy = a.dy.as<T>() + r * ffn;
  T* const dx = a.dx.as<T>() + r * cols;
  const float prob = a.probs.as<float>()[source];
  float along = 0.0f;
  for (int64_t c = 0; c < ffn; ++c) {
    const float in = to_float(x[c]), d = to_float(dy[c]);
    if constexpr (is_gated(kind)) {
      const float up = to_float(x[ffn + c]), s = activation_factor_cpu<kind>(gate_within<kind>(in, a.clamp));
      along += d * activation_value<kind>(gate_within<kind>(in, a.clamp), up_within<kind>(up, a.clamp), s);
      const GatedGradient grad = gated_gradient<kind>(in, up, s, d * prob, a.clamp);
      dx[c] = from_float<T>(grad.gate);
      dx[ffn + c] = from_float<T>(grad.up);
    } else {
      const float s = activation_factor_cpu<kind>(in);
      along += d * activation_value<kind>(in, 0.0f, s);
      dx[c] = from_float<T>(plain_gradient<kind>(in, s, d * prob));
    }
  }
  a.d_probs.as<float>()[source] = along;
}

/// Quantizes a result that the op's kernel has stored.
void quantize_result(const Context& context, const Tensor& x, const Tensor& offsets, int64_t experts,
                     const Fp8Output& out, const QuantizeGroups& groups) {
  if (out) quantize_experts(context, {.x = x, .offsets = offsets, .experts = experts, .out = out});
  if (groups.wants_data()) quantize_groups(context, of_result(groups, x));
}

void activation_values(const Context& context, const ExpertActivation& a) {
  TE_ASK_CUDA(context, expert_activation, a);
  visit_high_precision(a.x.dtype, [&](auto zero) {
    visit_activation(a.kind, [&]<ActivationKind kind>() { expert_forward_cpu<kind, decltype(zero)>(a); });
  });
}

void gradient_values(const Context& context, const ExpertActivationBackward& a) {
  TE_ASK_CUDA(context, expert_activation_backward, a);
  visit_high_precision(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel for
    for (int64_t r = 0; r < a.x.rows(); ++r) {
      const int32_t source = a.source.as<int32_t>()[r];
      if (source < 0) {
        std::fill_n(a.dx.as<T>() + r * a.x.cols(), a.x.cols(), T{});
      } else {
        visit_activation(a.kind, [&]<ActivationKind kind>() { expert_backward_row<kind, T>(a, r, source); });
      }
    }
  });
}

/// Whether one kernel has computed and quantized the result.
bool quantized_activation([[maybe_unused]] const Context& context,
                          [[maybe_unused]] const ExpertActivation& a) {
#ifdef TE_WITH_CUDA
  if (!context.is_cuda()) return false;
  if (a.y_groups.wants_data()) return cuda::expert_activation_groups(context, a);
  if (a.y_fp8.wants_data()) return cuda::expert_activation_fp8(context, a);
#endif
  return false;
}
bool quantized_gradient([[maybe_unused]] const Context& context,
                        [[maybe_unused]] const ExpertActivationBackward& a) {
#ifdef TE_WITH_CUDA
  if (!context.is_cuda()) return false;
  if (a.dx_groups.wants_data()) return cuda::expert_activation_backward_groups(context, a);
  if (a.dx_fp8.wants_data()) return cuda::expert_activation_backward_fp8(context, a);
#endif
  return false;
}

}  // namespace

void expert_activation(const Context& context, const ExpertActivation& a) {
  const char* op = "expert_activation";
  check_expert_activation(op, a, a.y);
  check_quantization(op, a, a.y_fp8, a.y_groups, a.y);
  TE_BEGIN_OP(context, op, a);
  if (quantized_activation(context, a)) return;
  activation_values(context, a);
  quantize_result(context, a.y, a.offsets, a.experts, a.y_fp8, a.y_groups);
}

void expert_activation_backward(const Context& context, const ExpertActivationBackward& a) {
  const char* op = "expert_activation_backward";
  check_expert_activation(op, a, a.dy);
  check_dtype(op, "dx", a.dx, a.x.dtype);
  check_shape(op, "dx", a.dx, a.x.shape);
  check_dtype(op, "d_probs", a.d_probs, DType::f32);
  check_shape(op, "d_probs", a.d_probs, a.probs.shape);
  check_quantization(op, a, a.dx_fp8, a.dx_groups, a.dx);
  TE_BEGIN_OP(context, op, a);
  if (quantized_gradient(context, a)) return;
  gradient_values(context, a);
  quantize_result(context, a.dx, a.offsets, a.experts, a.dx_fp8, a.dx_groups);
}

}  // namespace te::kernels
