// Checks, dispatch and CPU reference of the activations.
#include "kernels/activation/activation.h"

#include "core/float_types.h"
#include "kernels/activation/activation_cpu.h"
#include "kernels/common/checks.h"
#include "kernels/common/column_sum_cpu.h"
#include "kernels/common/fp8_cpu.h"

namespace te::kernels {

namespace cuda {
void activation_forward(const Context& context, const ActivationForward& args);
void activation_backward(const Context& context, const ActivationBackward& args);
}  // namespace cuda

namespace {

void check_clamp(const char* op, ActivationKind kind, float clamp) {
  TE_CHECK(kind != ActivationKind::swiglu_clamped || clamp > 0.0f, "{}: clamp {} must be above 0", op, clamp);
}

/// Number of columns of y for an input x; x of a gated kind holds gate and up next to each other.
int64_t output_cols(const char* op, ActivationKind kind, const Tensor& x) {
  if (!is_gated(kind)) return x.cols();
  TE_CHECK(x.cols() % 2 == 0, "{}: x has {} columns, but gate and up need an even number", op, x.cols());
  return x.cols() / 2;
}

template <ActivationKind kind, class T>
float forward_at(const T* x, float clamp, int64_t ffn, int64_t r, int64_t c) {
  constexpr bool gated = is_gated(kind);
  const T* const row = x + r * (gated ? 2 * ffn : ffn);
  const float gate = to_float(row[c]);
  const float up = gated ? to_float(row[ffn + c]) : 0.0f;
  return to_float(from_float<T>(activation_cpu<kind>(gate, up, clamp)));
}

/// A value of a [rows, ffn] or [rows, cols] result, computed or stored. FP8 outputs of all kinds and types take this
/// function pointer, because code of their own for each would take 20 seconds to compile.
template <class Args>
struct ResultAt {
  float (*at)(const Args& args, int64_t ffn, int64_t r, int64_t c);
  const Args& args;
  int64_t ffn;

  float operator()(int64_t r, int64_t c) const { return at(args, ffn, r, c); }
};

template <ActivationKind kind, class T>
void forward_cpu(const Context& context, const ActivationForward& args, int64_t rows, int64_t ffn) {
  using Result = ResultAt<ActivationForward>;
  const T* const x = args.x.as<T>();
  T* const y = args.y.as<T>();
  if (y == nullptr) {
    const auto computed = [](const ActivationForward& a, int64_t width, int64_t r, int64_t c) {
      return forward_at<kind>(a.x.as<T>(), a.clamp, width, r, c);
    };
    write_fp8_output_cpu(context, args.y_fp8, rows, ffn, Result{computed, args, ffn});
    return;
  }
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < ffn; ++c)
      y[r * ffn + c] = from_float<T>(forward_at<kind>(x, args.clamp, ffn, r, c));
  const auto stored = [](const ActivationForward& a, int64_t width, int64_t r, int64_t c) {
    return to_float(a.y.as<T>()[r * width + c]);
  };
  write_fp8_output_cpu(context, args.y_fp8, rows, ffn, Result{stored, args, ffn});
}

/// dx[r, c] in FP32. For gated kinds, columns below ffn belong to the gate and the others to the up projection.
template <ActivationKind kind, class T>
float backward_at(const T* x, const T* dy, float clamp, int64_t ffn, int64_t r, int64_t c) {
  if constexpr (!is_gated(kind)) {
    const float value = to_float(x[r * ffn + c]);
    return plain_gradient<kind>(value, activation_factor_cpu<kind>(value), to_float(dy[r * ffn + c]));
  } else {
    const int64_t column = c < ffn ? c : c - ffn;
    const T* const row = x + r * 2 * ffn;
    const float gate = to_float(row[column]), s = activation_factor_cpu<kind>(gate_within<kind>(gate, clamp));
    const GatedGradient d =
        gated_gradient<kind>(gate, to_float(row[ffn + column]), s, to_float(dy[r * ffn + column]), clamp);
    return c < ffn ? d.gate : d.up;
  }
}

/// Fills dx. dx may be x, so both halves of a gated row are computed before either is written.
template <ActivationKind kind, class T>
void store_gradient(const T* x, const T* dy, T* dx, float clamp, int64_t rows, int64_t ffn) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < ffn; ++c) {
      if constexpr (!is_gated(kind)) {
        dx[r * ffn + c] = from_float<T>(backward_at<kind>(x, dy, clamp, ffn, r, c));
      } else {
        const int64_t at = r * 2 * ffn + c;
        const float gate = to_float(x[at]), s = activation_factor_cpu<kind>(gate_within<kind>(gate, clamp));
        const GatedGradient d =
            gated_gradient<kind>(gate, to_float(x[at + ffn]), s, to_float(dy[r * ffn + c]), clamp);
        dx[at] = from_float<T>(d.gate);
        dx[at + ffn] = from_float<T>(d.up);
      }
    }
  }
}

template <ActivationKind kind, class T>
void backward_cpu(const Context& context, const ActivationBackward& args, int64_t rows, int64_t ffn) {
  const auto computed = [](const ActivationBackward& a, int64_t width, int64_t r, int64_t c) {
    return to_float(from_float<T>(backward_at<kind>(a.x.as<T>(), a.dy.as<T>(), a.clamp, width, r, c)));
  };
  const auto stored = [](const ActivationBackward& a, int64_t, int64_t r, int64_t c) {
    return to_float(a.dx.as<T>()[r * a.dx.cols() + c]);
  };
  const int64_t cols = args.x.cols();
  ResultAt<ActivationBackward> result{computed, args, ffn};
  if (args.dx) {
    store_gradient<kind>(args.x.as<T>(), args.dy.as<T>(), args.dx.as<T>(), args.clamp, rows, ffn);
    result.at = stored;
  }
  write_fp8_output_cpu(context, args.dx_fp8, rows, cols, result);
  if (args.dbias) add_column_sums_cpu(rows, cols, args.dbias, result);
}

}  // namespace

void activation_forward(const Context& context, const ActivationForward& args) {
  const char* op = "activation_forward";
  check_high_precision(op, "x", args.x);
  check_clamp(op, args.kind, args.clamp);
  const int64_t rows = args.x.rows(), ffn = output_cols(op, args.kind, args.x);
  TE_CHECK(args.y || args.y_fp8.wants_data(), "{}: y, or y_fp8 with data, is required", op);
  if (args.y) check_tensor(op, "y", args.y, args.x.dtype, {rows, ffn});
  check_fp8_output(op, args.y_fp8, rows, ffn);
  TE_DISPATCH_CUDA(context, activation_forward, args);
  visit_high_precision(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    visit_activation(args.kind,
                     [&]<ActivationKind kind>() { forward_cpu<kind, T>(context, args, rows, ffn); });
  });
}

void activation_backward(const Context& context, const ActivationBackward& args) {
  const char* op = "activation_backward";
  check_high_precision(op, "x", args.x);
  check_clamp(op, args.kind, args.clamp);
  const int64_t rows = args.x.rows(), cols = args.x.cols(), ffn = output_cols(op, args.kind, args.x);
  check_tensor(op, "dy", args.dy, args.x.dtype, {rows, ffn});
  TE_CHECK(args.dx || args.dx_fp8.wants_data(), "{}: dx, or dx_fp8 with data, is required", op);
  if (args.dx) check_tensor(op, "dx", args.dx, args.x.dtype, {rows, cols});
  check_fp8_output(op, args.dx_fp8, rows, cols);
  if (args.dbias) check_column_sums(op, args.dbias, args.scratch, rows, cols);
  TE_DISPATCH_CUDA(context, activation_backward, args);
  visit_high_precision(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    visit_activation(args.kind,
                     [&]<ActivationKind kind>() { backward_cpu<kind, T>(context, args, rows, ffn); });
  });
}

}  // namespace te::kernels
