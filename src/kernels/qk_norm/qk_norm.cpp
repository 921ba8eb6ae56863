// Checks, dispatch and CPU reference of the RMSNorm of queries and keys.
#include "kernels/qk_norm/qk_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/qk_norm/qk_norm_cuda.h"

namespace te::kernels {
namespace {

void check_gain(const char* op, const char* name, const Tensor& gain, const Tensor& qkv, int64_t width) {
  check_dtype(op, name, gain, qkv.dtype);
  TE_CHECK(gain.shape.rank() == 1 && gain.numel() > 0 && width % gain.numel() == 0,
           "{}: {} has shape {}, must be one dimension that divides {}", op, name, gain.shape.str(), width);
}

template <class Args>
void check_common(const char* op, const Args& a, const Tensor& packed) {
  check_high_precision(op, "qkv", packed);
  const QkShape& s = a.shape;
  TE_CHECK(s.num_heads > 0 && s.num_query_groups > 0 && s.head_dim > 0 &&
               packed.cols() == s.q_width() + 2 * s.k_width(),
           "{}: {} columns, must be (heads {} + 2 * groups {}) * head_dim {}", op, packed.cols(), s.num_heads,
           s.num_query_groups, s.head_dim);
  check_gain(op, "q_gain", a.q_gain, packed, s.q_width());
  check_gain(op, "k_gain", a.k_gain, packed, s.k_width());
  const Shape statistics{packed.rows(), qk_norm_segments(s, a.q_gain.numel(), a.k_gain.numel())};
  TE_CHECK(a.ranks > 0, "{}: ranks {} must be positive", op, a.ranks);
  if (a.ranks > 1) {
    TE_CHECK(a.q_gain.numel() == s.q_width() && a.k_gain.numel() == s.k_width(),
             "{}: {} ranks share norms of {} of {} columns; shared norms must cover all heads", op, a.ranks,
             a.q_gain.numel(), s.q_width());
    check_tensor(op, "sums", a.sums, DType::f32, statistics);
  }
  if (!a.raw) return;
  check_tensor(op, "raw", a.raw, packed.dtype, {packed.rows(), s.q_width() + s.k_width()});
  check_tensor(op, "rstd", a.rstd, DType::f32, statistics);
}

/// The part of a packed buffer that the sums read, for the profiler's count of bytes.
Tensor queries_and_keys(const Tensor& packed, const QkShape& shape) {
  return {packed.data, packed.dtype, {packed.rows(), shape.q_width() + shape.k_width()}};
}

/// A segment of a row: first column, width and gain.
struct Segment {
  int64_t begin, width;
  const Tensor& gain;
  bool query;
  float shift;  ///< added to the gain

  template <class T>
  float gain_at(int64_t c) const {
    return to_float(gain.as<T>()[c]) + shift;
  }
};

template <class Args>
std::vector<Segment> segments_of(const Args& a) {
  std::vector<Segment> segments;
  const int64_t q = a.shape.q_width(), k = a.shape.k_width();
  const float shift = a.zero_centered ? 1.0f : 0.0f;
  for (int64_t at = 0; at < q; at += a.q_gain.numel())
    segments.push_back({at, a.q_gain.numel(), a.q_gain, true, shift});
  for (int64_t at = 0; at < k; at += a.k_gain.numel())
    segments.push_back({q + at, a.k_gain.numel(), a.k_gain, false, shift});
  return segments;
}

template <class T>
float squares_of(const T* x, int64_t width) {
  float squares = 0.0f;
  for (int64_t c = 0; c < width; ++c) squares += to_float(x[c]) * to_float(x[c]);
  return squares;
}

template <class T>
float along_of(const T* dy, const Segment& segment, const T* x, float rstd) {
  float along = 0.0f;
  for (int64_t c = 0; c < segment.width; ++c)
    along += to_float(dy[c]) * segment.gain_at<T>(c) * to_float(x[c]) * rstd;
  return along;
}

template <class T>
void forward_sums_cpu(const QkNormForward& a) {
  const std::vector<Segment> segments = segments_of(a);
  const auto count = static_cast<int64_t>(segments.size());
#pragma omp parallel for
  for (int64_t r = 0; r < a.qkv.rows(); ++r)
    for (int64_t p = 0; p < count; ++p) {
      const Segment& segment = segments[static_cast<size_t>(p)];
      a.sums.as<float>()[r * count + p] =
          squares_of(a.qkv.as<T>() + r * a.qkv.cols() + segment.begin, segment.width);
    }
}

template <class T>
void backward_sums_cpu(const QkNormBackward& a) {
  const std::vector<Segment> segments = segments_of(a);
  const auto count = static_cast<int64_t>(segments.size());
#pragma omp parallel for
  for (int64_t r = 0; r < a.dqkv.rows(); ++r)
    for (int64_t p = 0; p < count; ++p) {
      const Segment& segment = segments[static_cast<size_t>(p)];
      a.sums.as<float>()[r * count + p] =
          along_of(a.dqkv.as<T>() + r * a.dqkv.cols() + segment.begin, segment,
                   a.raw.as<T>() + r * a.raw.cols() + segment.begin, a.rstd.as<float>()[r * count + p]);
    }
}

template <class T>
void forward_cpu(const QkNormForward& a) {
  const std::vector<Segment> segments = segments_of(a);
  const int64_t columns = a.qkv.cols(), kept = a.shape.q_width() + a.shape.k_width();
  const auto count = static_cast<int64_t>(segments.size());
#pragma omp parallel for
  for (int64_t r = 0; r < a.qkv.rows(); ++r) {
    T* const row = a.qkv.as<T>() + r * columns;
    if (a.raw) std::copy_n(row, kept, a.raw.as<T>() + r * kept);
    for (int64_t p = 0; p < count; ++p) {
      const Segment& segment = segments[static_cast<size_t>(p)];
      T* const x = row + segment.begin;
      const float squares = a.ranks > 1 ? a.sums.as<float>()[r * count + p] : squares_of(x, segment.width);
      const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(segment.width * a.ranks) + a.eps);
      for (int64_t c = 0; c < segment.width; ++c)
        x[c] = from_float<T>(to_float(x[c]) * rstd * segment.gain_at<T>(c));
      if (a.raw) a.rstd.as<float>()[r * count + p] = rstd;
    }
  }
}

/// Adds the gain gradients of rows [first, end) to sums: those of q, then those of k.
template <class T>
void sum_gains(const QkNormBackward& a, const std::vector<Segment>& segments, int64_t first, int64_t end,
               float* sums) {
  const int64_t columns = a.dqkv.cols(), kept = a.raw.cols();
  for (int64_t r = first; r < end; ++r) {
    for (size_t p = 0; p < segments.size(); ++p) {
      const Segment& segment = segments[p];
      const T* const dy = a.dqkv.as<T>() + r * columns + segment.begin;
      const T* const x = a.raw.as<T>() + r * kept + segment.begin;
      const float rstd =
          a.rstd.as<float>()[r * static_cast<int64_t>(segments.size()) + static_cast<int64_t>(p)];
      float* const sum = sums + (segment.query ? 0 : a.q_gain.numel());
      for (int64_t c = 0; c < segment.width; ++c) sum[c] += to_float(dy[c]) * to_float(x[c]) * rstd;
    }
  }
}

void add_to(const Tensor& grad, const float* parts, int64_t stride) {
  visit_grad(grad.dtype, [&](auto zero) {
    using G = decltype(zero);
    for (int64_t c = 0; c < grad.numel(); ++c) {
      float sum = 0.0f;
      for (int64_t part = 0; part < kQkNormParts; ++part) sum += parts[part * stride + c];
      grad.as<G>()[c] = from_float<G>(to_float(grad.as<G>()[c]) + sum);
    }
  });
}

template <class T>
void backward_cpu(const QkNormBackward& a) {
  const std::vector<Segment> segments = segments_of(a);
  const int64_t rows = a.dqkv.rows(), columns = a.dqkv.cols(), kept = a.raw.cols();
  const int64_t gains = a.q_gain.numel() + a.k_gain.numel(),
                per_part = (rows + kQkNormParts - 1) / kQkNormParts;
  if (a.dq_gain || a.dk_gain) {
    auto* const parts = a.scratch.as<float>();
    std::fill_n(parts, kQkNormParts * gains, 0.0f);
#pragma omp parallel for
    for (int64_t part = 0; part < kQkNormParts; ++part)
      sum_gains<T>(a, segments, std::min(rows, part * per_part), std::min(rows, (part + 1) * per_part),
                   parts + part * gains);
    if (a.dq_gain) add_to(a.dq_gain, parts, gains);
    if (a.dk_gain) add_to(a.dk_gain, parts + a.q_gain.numel(), gains);
  }
  const auto count = static_cast<int64_t>(segments.size());
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t p = 0; p < count; ++p) {
      const Segment& segment = segments[static_cast<size_t>(p)];
      T* const dy = a.dqkv.as<T>() + r * columns + segment.begin;
      const T* const x = a.raw.as<T>() + r * kept + segment.begin;
      const float rstd = a.rstd.as<float>()[r * count + p];
      const float sum = a.ranks > 1 ? a.sums.as<float>()[r * count + p] : along_of(dy, segment, x, rstd);
      const float along = sum / static_cast<float>(segment.width * a.ranks);
      for (int64_t c = 0; c < segment.width; ++c)
        dy[c] =
            from_float<T>(rstd * (to_float(dy[c]) * segment.gain_at<T>(c) - to_float(x[c]) * rstd * along));
    }
  }
}

}  // namespace

void qk_norm_forward(const Context& context, const QkNormForward& args) {
  check_common("qk_norm_forward", args, args.qkv);
  TE_DISPATCH_CUDA(context, qk_norm_forward, args);
  visit_high_precision(args.qkv.dtype, [&](auto zero) { forward_cpu<decltype(zero)>(args); });
}

void qk_norm_forward_sums(const Context& context, const QkNormForward& args) {
  constexpr const char* op = "qk_norm_forward_sums";
  TE_CHECK(args.ranks > 1, "{}: sums are only used with ranks > 1", op);
  check_common(op, args, args.qkv);
  TE_BEGIN_OP(context, op, queries_and_keys(args.qkv, args.shape), args.sums);
  TE_ASK_CUDA(context, qk_norm_forward_sums, args);
  visit_high_precision(args.qkv.dtype, [&](auto zero) { forward_sums_cpu<decltype(zero)>(args); });
}

void qk_norm_backward_sums(const Context& context, const QkNormBackward& args) {
  constexpr const char* op = "qk_norm_backward_sums";
  TE_CHECK(args.ranks > 1 && args.raw, "{}: sums are only used with ranks > 1 and require raw", op);
  check_common(op, args, args.dqkv);
  TE_BEGIN_OP(context, op, queries_and_keys(args.dqkv, args.shape), args.raw, args.rstd, args.sums);
  TE_ASK_CUDA(context, qk_norm_backward_sums, args);
  visit_high_precision(args.dqkv.dtype, [&](auto zero) { backward_sums_cpu<decltype(zero)>(args); });
}

void qk_norm_backward(const Context& context, const QkNormBackward& args) {
  constexpr const char* op = "qk_norm_backward";
  TE_CHECK(args.raw, "{}: raw is required", op);
  check_common(op, args, args.dqkv);
  if (args.dq_gain) {
    check_grad(op, "dq_gain", args.dq_gain);
    check_shape(op, "dq_gain", args.dq_gain, args.q_gain.shape);
  }
  if (args.dk_gain) {
    check_grad(op, "dk_gain", args.dk_gain);
    if (args.dq_gain) check_dtype(op, "dk_gain", args.dk_gain, args.dq_gain.dtype);
    check_shape(op, "dk_gain", args.dk_gain, args.k_gain.shape);
  }
  check_dtype(op, "scratch", args.scratch, DType::f32);
  const int64_t elements = qk_norm_scratch_elements(args.q_gain.numel(), args.k_gain.numel());
  TE_CHECK(args.scratch.numel() >= elements, "{}: scratch has {} elements, needs {}", op,
           args.scratch.numel(), elements);
  TE_DISPATCH_CUDA(context, qk_norm_backward, args);
  visit_high_precision(args.dqkv.dtype, [&](auto zero) { backward_cpu<decltype(zero)>(args); });
}

int64_t qk_norm_segments(const QkShape& shape, int64_t q_gain, int64_t k_gain) {
  return shape.q_width() / q_gain + shape.k_width() / k_gain;
}

int64_t qk_norm_scratch_elements(int64_t q_gain, int64_t k_gain) {
  return kQkNormParts * (q_gain + k_gain);
}

}  // namespace te::kernels
