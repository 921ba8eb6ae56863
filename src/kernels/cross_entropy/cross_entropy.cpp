// Checks, dispatch and CPU reference of the cross-entropy.
#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/common/soft_cap.h"
#include "kernels/cross_entropy/cross_entropy_cuda.h"
#include "kernels/cross_entropy/z_loss_math.h"

namespace te::kernels {

namespace {

void check_z_losses(const char* op, const Tensor& z_losses, int64_t rows) {
  if (!z_losses) return;
  check_tensor(op, "z_losses", z_losses, DType::f32, {rows});
}

void check_cross_entropy(const CrossEntropy& a) {
  const char* op = "cross_entropy";
  check_high_precision(op, "logits", a.logits);
  const int64_t rows = a.logits.rows();
  check_tensor(op, "targets", a.targets, DType::i32, {rows});
  check_tensor(op, "losses", a.losses, DType::f32, {rows});
  check_z_losses(op, a.z_losses, rows);
  TE_CHECK(a.vocab > 0 && a.vocab <= a.logits.cols(), "{}: vocab {} must be from 1 to the logits' {} columns",
           op, a.vocab, a.logits.cols());
}

/// Checks that both vocabulary-parallel ops share; returns the number of rows.
int64_t check_slice(const char* op, const Tensor& logits, const Tensor& targets, int64_t first,
                    int64_t vocab) {
  check_high_precision(op, "logits", logits);
  const int64_t rows = logits.rows();
  check_tensor(op, "targets", targets, DType::i32, {rows});
  TE_CHECK(first >= 0, "{}: first {} must not be negative", op, first);
  TE_CHECK(vocab > 0, "{}: vocab {} must be positive", op, vocab);
  return rows;
}

void check_targets(const char* op, const Tensor& targets, int64_t vocab) {
  const int32_t* target = targets.as<int32_t>();
  const int64_t rows = targets.numel();
  for (int64_t r = 0; r < rows; ++r)
    TE_CHECK(target[r] >= kPaddingTarget && target[r] < vocab,
             "{}: target {} of row {} must be from -2 to {}", op, target[r], r, vocab - 1);
}

/// Number of columns of a slice that are not padding.
int64_t valid_columns(const Tensor& logits, int64_t first, int64_t vocab) {
  return std::clamp<int64_t>(vocab - first, 0, logits.cols());
}

struct Softmax {
  // Starts from a finite maximum, so that a logit of -inf gets probability 0 instead of inf - inf.
  float largest = std::numeric_limits<float>::lowest();
  float sum = 0.0f;

  float log_z() const { return std::log(sum) + largest; }
};

/// Maximum and sum of exp(logit - maximum) of capped logits; writes the exponentials to `row`.
template <class T>
Softmax row_softmax(const T* logits, int64_t count, float cap, float* row) {
  Softmax all;
  for (int64_t c = 0; c < count; ++c) {
    row[c] = soft_cap(to_float(logits[c]), cap);
    all.largest = std::max(all.largest, row[c]);
  }
  const float largest = all.largest;
  for (int64_t c = 0; c < count; ++c) row[c] = std::exp(row[c] - largest);
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < count; ++c) sum += row[c];
  all.sum = sum;
  return all;
}

/// Replaces the logits in `gradient` by their gradient, from their exponentials in `row`. `target` is a column, or any
/// other number if no column is the target.
template <class T>
void write_gradient(const float* row, const Softmax& all, int64_t target, float grad_scale, float z_loss,
                    float cap, int64_t count, int64_t columns, T* gradient) {
  const float inverse = softmax_factor(z_loss, all.log_z()) / all.sum;
  for (int64_t c = 0; c < count; ++c) {
    const float one = c == target ? 1.0f : 0.0f;
    const float slope = soft_cap_slope(soft_cap(to_float(gradient[c]), cap), cap);
    gradient[c] = from_float<T>((row[c] * inverse - one) * grad_scale * slope);
  }
  std::fill(gradient + count, gradient + columns, T{});
}

void write_z_loss(const Tensor& z_losses, int64_t row, float value) {
  if (z_losses) z_losses.as<float>()[row] = value;
}

/// Softmax of a full row and the target's capped logit.
struct RowStatistics {
  Softmax all;
  float target_logit = std::numeric_limits<float>::quiet_NaN();
};

/// Losses and gradients of `count` columns from column `first` of the vocabulary on. statistics_of(r, logits, row)
/// returns the statistics of a row; for the gradient it also writes the exponentials of its logits to `row`.
template <class T, class Args, class StatisticsOf>
void losses_cpu(const Args& a, int64_t first, int64_t count, StatisticsOf&& statistics_of) {
  const int64_t rows = a.logits.rows(), columns = a.logits.cols();
  const int32_t* targets = a.targets.template as<int32_t>();
  float* losses = a.losses.template as<float>();
  const bool backward = a.grad_scale != 0.0f;
#pragma omp parallel
  {
    std::vector<float> row(static_cast<size_t>(count));
#pragma omp for
    for (int64_t r = 0; r < rows; ++r) {
      T* logits = a.logits.template as<T>() + r * columns;
      if (is_ignored(targets[r])) {
        losses[r] = 0.0f;
        write_z_loss(a.z_losses, r, 0.0f);
        if (backward) std::fill(logits, logits + columns, T{});
        continue;
      }
      const auto [all, target_logit] = statistics_of(r, logits, row.data());
      losses[r] = std::log(all.sum) - (target_logit - all.largest);
      write_z_loss(a.z_losses, r, z_loss_term(a.z_loss, all.log_z()));
      if (backward)
        write_gradient(row.data(), all, targets[r] - first, a.grad_scale, a.z_loss, a.soft_cap, count,
                       columns, logits);
    }
  }
}

template <class T>
void cross_entropy_cpu(const CrossEntropy& a) {
  check_targets("cross_entropy", a.targets, a.vocab);
  losses_cpu<T>(a, 0, a.vocab, [&](int64_t r, const T* logits, float* row) -> RowStatistics {
    return {row_softmax(logits, a.vocab, a.soft_cap, row),
            soft_cap(to_float(logits[a.targets.as<int32_t>()[r]]), a.soft_cap)};
  });
}

template <class T>
void statistics_cpu(const CrossEntropyStatistics& a) {
  const int64_t rows = a.logits.rows(), columns = a.logits.cols();
  const int64_t count = valid_columns(a.logits, a.first, a.vocab);
  const int32_t* targets = a.targets.as<int32_t>();
  float* largest = a.statistics.as<float>();
  float *sum = largest + rows, *target_logit = sum + rows;
  float* preceded = a.preceded.as<float>();
#pragma omp parallel
  {
    std::vector<float> row(static_cast<size_t>(count));
#pragma omp for
    for (int64_t r = 0; r < rows; ++r) {
      const T* logits = a.logits.as<T>() + r * columns;
      const Softmax mine = row_softmax(logits, count, a.soft_cap, row.data());
      const int64_t target = targets[r] - a.first;
      largest[r] = mine.largest;
      sum[r] = mine.sum;
      const bool here = targets[r] >= 0 && target >= 0 && target < count;
      const float logit =
          here ? soft_cap(to_float(logits[target]), a.soft_cap) : std::numeric_limits<float>::quiet_NaN();
      target_logit[r] = logit;
      if (preceded == nullptr) continue;
      const auto is_as_large = [&](T other) { return soft_cap(to_float(other), a.soft_cap) >= logit; };
      preceded[r] = here && std::any_of(logits, logits + target, is_as_large) ? 1.0f : 0.0f;
    }
  }
}

/// Combines the statistics that all ranks have of a row.
RowStatistics combine(const float* statistics, int64_t ranks, int64_t rows, int64_t row) {
  RowStatistics result;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* mine = statistics + rank * 3 * rows + row;
    result.all.largest = std::max(result.all.largest, mine[0]);
    if (!std::isnan(mine[2 * rows])) result.target_logit = mine[2 * rows];
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* mine = statistics + rank * 3 * rows + row;
    result.all.sum += mine[rows] * std::exp(mine[0] - result.all.largest);
  }
  return result;
}

template <class T>
void from_statistics_cpu(const CrossEntropyFromStatistics& a) {
  const int64_t count = valid_columns(a.logits, a.first, a.vocab);
  losses_cpu<T>(a, a.first, count, [&](int64_t r, const T* logits, float* row) {
    const RowStatistics statistics =
        combine(a.statistics.as<float>(), a.statistics.dim(0), a.logits.rows(), r);
    const float largest = statistics.all.largest;
    if (a.grad_scale == 0.0f) return statistics;
    for (int64_t c = 0; c < count; ++c)
      row[c] = std::exp(soft_cap(to_float(logits[c]), a.soft_cap) - largest);
    return statistics;
  });
}

}  // namespace

void cross_entropy(const Context& context, const CrossEntropy& args) {
  check_cross_entropy(args);
  TE_DISPATCH_CUDA(context, cross_entropy, args);
  visit_high_precision(args.logits.dtype, [&](auto zero) { cross_entropy_cpu<decltype(zero)>(args); });
}

void cross_entropy_statistics(const Context& context, const CrossEntropyStatistics& args) {
  const char* op = "cross_entropy_statistics";
  const int64_t rows = check_slice(op, args.logits, args.targets, args.first, args.vocab);
  check_tensor(op, "statistics", args.statistics, DType::f32, {3, rows});
  if (args.preceded) check_tensor(op, "preceded", args.preceded, DType::f32, {rows});
  TE_DISPATCH_CUDA(context, cross_entropy_statistics, args);
  check_targets(op, args.targets, args.vocab);
  visit_high_precision(args.logits.dtype, [&](auto zero) { statistics_cpu<decltype(zero)>(args); });
}

void cross_entropy_from_statistics(const Context& context, const CrossEntropyFromStatistics& args) {
  const char* op = "cross_entropy_from_statistics";
  const int64_t rows = check_slice(op, args.logits, args.targets, args.first, args.vocab);
  check_dtype(op, "statistics", args.statistics, DType::f32);
  TE_CHECK(args.statistics.shape.rank() == 3, "{}: statistics have shape {}, must be [ranks, 3, {}]", op,
           args.statistics.shape.str(), rows);
  check_shape(op, "statistics", args.statistics, {args.statistics.dim(0), 3, rows});
  check_tensor(op, "losses", args.losses, DType::f32, {rows});
  check_z_losses(op, args.z_losses, rows);
  TE_DISPATCH_CUDA(context, cross_entropy_from_statistics, args);
  check_targets(op, args.targets, args.vocab);
  visit_high_precision(args.logits.dtype, [&](auto zero) { from_statistics_cpu<decltype(zero)>(args); });
}

void accumulate_sum(const Context& context, const Tensor& values, const Tensor& sum) {
  const char* op = "accumulate_sum";
  check_dtype(op, "values", values, DType::f32);
  check_dtype(op, "sum", sum, DType::f32);
  TE_CHECK(sum.numel() == 1, "{}: sum must have one element, not {}", op, sum.numel());
  TE_DISPATCH_CUDA(context, accumulate_sum, values, sum);
  const int64_t count = values.numel();
  const float* p = values.as<float>();
  float total = 0.0f;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < count; ++i) total += p[i];
  *sum.as<float>() += total;
}

}  // namespace te::kernels
