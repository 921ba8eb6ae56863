// Checks, dispatch and CPU reference of the norms.
#include "kernels/norm/norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/common/column_sum_cpu.h"
#include "kernels/common/fp8_cpu.h"
#include "kernels/norm/norm_cuda.h"

namespace te::kernels {

namespace {

/// Column sums combine FP32 sums of this many rows each, so that the error grows with the number of groups instead of
/// rows.
constexpr int64_t kRowGroup = 64;
/// Columns that a thread sums at a time.
constexpr int64_t kColumnGroup = 64;

void check_forward(const NormForward& a) {
  const char* op = "norm_forward";
  check_high_precision(op, "x", a.x);
  const DType type = a.x.dtype;
  const int64_t rows = a.x.rows(), hidden = a.x.cols();
  TE_CHECK(hidden > 0, "{}: x has shape {}, hidden must be positive", op, a.x.shape.str());
  if (a.delta) {
    check_tensor(op, "delta", a.delta, type, a.x.shape);
    check_tensor(op, "sum", a.sum, type, a.x.shape);
  }
  check_tensor(op, "gamma", a.gamma, type, {hidden});
  check_tensor(op, "rstd", a.rstd, DType::f32, {rows});
  if (a.kind == NormKind::layer) {
    check_tensor(op, "beta", a.beta, type, {hidden});
    check_tensor(op, "mean", a.mean, DType::f32, {rows});
  }
  TE_CHECK(a.y || a.y_fp8.wants_data(), "{}: y, or y_fp8 with data, is required", op);
  if (a.y) check_tensor(op, "y", a.y, type, a.x.shape);
  check_fp8_output(op, a.y_fp8, rows, hidden);
}

void check_backward(const NormBackward& a) {
  const char* op = "norm_backward";
  check_high_precision(op, "x", a.x);
  const DType type = a.x.dtype;
  const int64_t rows = a.x.rows(), hidden = a.x.cols();
  TE_CHECK(hidden > 0, "{}: x has shape {}, hidden must be positive", op, a.x.shape.str());
  check_tensor(op, "dy", a.dy, type, a.x.shape);
  check_tensor(op, "gamma", a.gamma, type, {hidden});
  check_tensor(op, "rstd", a.rstd, DType::f32, {rows});
  if (a.dresidual) check_tensor(op, "dresidual", a.dresidual, type, a.x.shape);
  check_tensor(op, "dx", a.dx, type, a.x.shape);
  const DType grads = grad_dtype(a);
  if (a.dgamma) {
    check_grad(op, "dgamma", a.dgamma);
    check_shape(op, "dgamma", a.dgamma, {hidden});
  }
  if (a.kind == NormKind::layer) {
    check_tensor(op, "mean", a.mean, DType::f32, {rows});
    if (a.dbeta) check_tensor(op, "dbeta", a.dbeta, grads, {hidden});
  }
  if (a.dbias) check_tensor(op, "dbias", a.dbias, grads, {hidden});
  check_fp8_output(op, a.dx_fp8, rows, hidden);
  check_dtype(op, "scratch", a.scratch, DType::f32);
  TE_CHECK(a.scratch.numel() >= norm_backward_scratch_elements(hidden),
           "{}: scratch has {} elements, needs {}", op, a.scratch.numel(),
           norm_backward_scratch_elements(hidden));
}

/// Formula of an element, with the order of operations of the CUDA kernels.
inline float normalized(bool layer, float x, float mean, float rstd, float gamma, float beta) {
  return layer ? (x - mean) * rstd * gamma + beta : x * rstd * gamma;
}

template <class T>
std::vector<float> as_floats(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(tensor.as<T>()[i]);
  return values;
}

/// Factors of the normalized values.
template <class T>
std::vector<float> gains(NormKind kind, const Tensor& gamma) {
  std::vector<float> values = as_floats<T>(gamma);
  if (kind == NormKind::rms_zero_centered)
    for (float& value : values) value += 1.0f;
  return values;
}

struct RowStatistics {
  float mean;
  float rstd;
};

/// Sum of value(0) ... value(count - 1) in 16 partial sums of every 16th value. This reduces the error, lets the
/// compiler vectorize the loop, and gives the same bits whether or not it does.
template <class Value>
float sum_of(int64_t count, Value value) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += value(c + lane);
  }
  for (int64_t lane = 0; c + lane < count; ++lane) lanes[lane] += value(c + lane);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

RowStatistics row_statistics(bool layer, const float* x, int64_t hidden, float eps) {
  const float count = static_cast<float>(hidden);
  const float mean = layer ? sum_of(hidden, [=](int64_t c) { return x[c]; }) / count : 0.0f;
  const float squares = sum_of(hidden, [=](int64_t c) { return (x[c] - mean) * (x[c] - mean); });
  return {mean, 1.0f / std::sqrt(squares / count + eps)};
}

template <class T>
void forward_cpu(const Context& context, const NormForward& a) {
  const int64_t rows = a.x.rows(), hidden = a.x.cols();
  const bool layer = a.kind == NormKind::layer;
  const std::vector<float> gamma = gains<T>(a.kind, a.gamma);
  const std::vector<float> beta = layer ? as_floats<T>(a.beta) : std::vector<float>(gamma.size(), 0.0f);
  const T* normalized_input = a.delta ? a.sum.as<T>() : a.x.as<T>();
#pragma omp parallel
  {
    std::vector<float> row(static_cast<size_t>(hidden));
#pragma omp for
    for (int64_t r = 0; r < rows; ++r) {
      const T* x = a.x.as<T>() + r * hidden;
      for (int64_t c = 0; c < hidden; ++c) row[c] = to_float(x[c]);
      if (a.delta) {
        const T* delta = a.delta.as<T>() + r * hidden;
        T* sum = a.sum.as<T>() + r * hidden;
        for (int64_t c = 0; c < hidden; ++c) {
          sum[c] = from_float<T>(row[c] + to_float(delta[c]));
          row[c] = to_float(sum[c]);
        }
      }
      const RowStatistics s = row_statistics(layer, row.data(), hidden, a.eps);
      a.rstd.as<float>()[r] = s.rstd;
      if (layer) a.mean.as<float>()[r] = s.mean;
      if (!a.y) continue;
      T* y = a.y.as<T>() + r * hidden;
      for (int64_t c = 0; c < hidden; ++c)
        y[c] = from_float<T>(normalized(layer, row[c], s.mean, s.rstd, gamma[c], beta[c]));
    }
  }
  write_fp8_output_cpu(context, a.y_fp8, rows, hidden, [&](int64_t r, int64_t c) {
    if (a.y) return to_float(a.y.as<T>()[r * hidden + c]);
    const float mean = layer ? a.mean.as<float>()[r] : 0.0f;
    const float x = to_float(normalized_input[r * hidden + c]);
    return to_float(from_float<T>(normalized(layer, x, mean, a.rstd.as<float>()[r], gamma[c], beta[c])));
  });
}

/// dgamma += sum over rows of dy * x_hat, dbeta += sum over rows of dy. A thread owns columns and adds rows in
/// ascending order, so the result does not depend on the number of threads. Grad: dtype of dgamma and dbeta.
template <class T, class Grad>
void parameter_gradients_cpu(const NormBackward& a) {
  const int64_t rows = a.x.rows(), hidden = a.x.cols();
  const bool layer = a.kind == NormKind::layer;
#pragma omp parallel for
  for (int64_t begin = 0; begin < hidden; begin += kColumnGroup) {
    const int64_t columns = std::min(kColumnGroup, hidden - begin);
    float dgamma[kColumnGroup] = {}, dbeta[kColumnGroup] = {};
    for (int64_t first = 0; first < rows; first += kRowGroup) {
      float group_dgamma[kColumnGroup] = {}, group_dbeta[kColumnGroup] = {};
      for (int64_t r = first; r < std::min(rows, first + kRowGroup); ++r) {
        const T* dy = a.dy.as<T>() + r * hidden + begin;
        const T* x = a.x.as<T>() + r * hidden + begin;
        const float rstd = a.rstd.as<float>()[r], mean = layer ? a.mean.as<float>()[r] : 0.0f;
        for (int64_t c = 0; c < columns; ++c) {
          const float gradient = to_float(dy[c]);
          group_dgamma[c] += gradient * ((to_float(x[c]) - mean) * rstd);
          group_dbeta[c] += gradient;
        }
      }
      for (int64_t c = 0; c < columns; ++c) {
        dgamma[c] += group_dgamma[c];
        dbeta[c] += group_dbeta[c];
      }
    }
    const auto add = [&](const Tensor& gradient, const float* sums) {
      Grad* const to = gradient.as<Grad>() + begin;
      for (int64_t c = 0; c < columns; ++c) to[c] = from_float<Grad>(to_float(to[c]) + sums[c]);
    };
    if (a.dgamma) add(a.dgamma, dgamma);
    if (layer && a.dbeta) add(a.dbeta, dbeta);
  }
}

/// With g = dy * gamma and means over the row:
///   rms    dx = rstd * (g - x_hat * mean(g x_hat))
///   layer  dx = rstd * (g - mean(g) - x_hat * mean(g x_hat))
template <class T>
void input_gradient_cpu(const NormBackward& a) {
  const int64_t rows = a.x.rows(), hidden = a.x.cols();
  const bool layer = a.kind == NormKind::layer;
  const std::vector<float> gamma = gains<T>(a.kind, a.gamma);
#pragma omp parallel
  {
    std::vector<float> g(static_cast<size_t>(hidden)), x_hat(static_cast<size_t>(hidden));
#pragma omp for
    for (int64_t r = 0; r < rows; ++r) {
      const T* dy = a.dy.as<T>() + r * hidden;
      const T* x = a.x.as<T>() + r * hidden;
      const float rstd = a.rstd.as<float>()[r], mean = layer ? a.mean.as<float>()[r] : 0.0f;
      for (int64_t c = 0; c < hidden; ++c) {
        g[c] = to_float(dy[c]) * gamma[c];
        x_hat[c] = (to_float(x[c]) - mean) * rstd;
      }
      const float count = static_cast<float>(hidden);
      const float mean_g = layer ? sum_of(hidden, [&](int64_t c) { return g[c]; }) / count : 0.0f;
      const float mean_gx = sum_of(hidden, [&](int64_t c) { return g[c] * x_hat[c]; }) / count;
      const T* dresidual = a.dresidual ? a.dresidual.as<T>() + r * hidden : nullptr;
      T* dx = a.dx.as<T>() + r * hidden;
      for (int64_t c = 0; c < hidden; ++c) {
        float value = rstd * (g[c] - mean_g - x_hat[c] * mean_gx);
        if (dresidual != nullptr) value += to_float(dresidual[c]);
        dx[c] = from_float<T>(value);
      }
    }
  }
}

}  // namespace

int64_t norm_backward_scratch_elements(int64_t hidden) {
  return 3 * norm_partial_blocks(hidden) * hidden;
}

void norm_forward(const Context& context, const NormForward& args) {
  check_forward(args);
  TE_DISPATCH_CUDA(context, norm_forward, args);
  visit_high_precision(args.x.dtype, [&](auto zero) { forward_cpu<decltype(zero)>(context, args); });
}

DType grad_dtype(const NormBackward& args) {
  for (const Tensor* sum : {&args.dgamma, &args.dbeta, &args.dbias})
    if (*sum) return sum->dtype;
  return DType::f32;
}

void norm_backward(const Context& context, const NormBackward& args) {
  check_backward(args);
  TE_DISPATCH_CUDA(context, norm_backward, args);
  visit_high_precision(args.x.dtype, [&](auto zero) {
    visit_grad(grad_dtype(args), [&](auto grad_zero) {  // first, because dx may be dy itself
      parameter_gradients_cpu<decltype(zero), decltype(grad_zero)>(args);
    });
    input_gradient_cpu<decltype(zero)>(args);
    const auto* dx = args.dx.as<decltype(zero)>();
    const int64_t rows = args.dx.rows(), hidden = args.dx.cols();
    const auto stored = [=](int64_t r, int64_t c) { return to_float(dx[r * hidden + c]); };
    if (args.dbias) add_column_sums_cpu(rows, hidden, args.dbias, stored);
    write_fp8_output_cpu(context, args.dx_fp8, rows, hidden, stored);
  });
}

}  // namespace te::kernels
