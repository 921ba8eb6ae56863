// Checks, dispatch and CPU reference of dropout and noise.
#include "kernels/dropout/dropout.h"

#include <algorithm>

#include "core/float_types.h"
#include "core/random.h"
#include "kernels/common/checks.h"
#include "kernels/dropout/dropout_rule.h"

namespace te::kernels {
namespace {

/// Calls use(element, word) for `count` elements whose first has the index `begin`. One Philox call serves the four
/// indices of a group; the first and last groups may be partial.
template <class Use>
void for_words(uint64_t begin, int64_t count, uint64_t seed, uint64_t stream, Use&& use) {
  const uint64_t end = begin + static_cast<uint64_t>(count);
  const int64_t first_group = static_cast<int64_t>(begin / 4);
  const int64_t last_group = static_cast<int64_t>((end + 3) / 4);
#pragma omp parallel for schedule(static)
  for (int64_t group = first_group; group < last_group; ++group) {
    const uint64_t group_begin = static_cast<uint64_t>(group) * 4;
    const Philox4 random = philox(seed, stream, static_cast<uint64_t>(group));
    const uint64_t stop = std::min(group_begin + 4, end);
    for (uint64_t i = std::max(group_begin, begin); i < stop; ++i) use(i - begin, random.word[i % 4]);
  }
}

template <class T>
void dropout_cpu(const Dropout& args) {
  const DropoutRule rule = dropout_rule(args);
  const int64_t run = rule.skip > 0 ? rule.cols : args.x.numel();
  for (int64_t at = 0, row = 0; at < args.x.numel(); at += run, ++row) {
    const T* x = args.x.as<T>() + at;
    T* y = args.y.as<T>() + at;
    for_words(rule.first_index + static_cast<uint64_t>(at + row * rule.skip), run, args.seed, args.stream,
              [&](uint64_t i, uint32_t word) {
                y[i] = from_float<T>(word >= rule.threshold ? to_float(x[i]) * rule.scale : 0.0f);
              });
  }
}

template <class T>
void dropout_numbered_cpu(const Dropout& args) {
  const DropoutRule rule = dropout_rule(args);
  const auto cols = static_cast<uint64_t>(rule.cols);
  for (int64_t row = 0; row < args.x.rows(); ++row) {
    const int64_t at = args.source ? args.source.as<int32_t>()[row] : row;
    const T* x = args.x.as<T>() + row * rule.cols;
    T* y = args.y.as<T>() + row * rule.cols;
    if (at < 0) {
      std::fill_n(y, cols, from_float<T>(0.0f));
      continue;
    }
    for_words(args.numbers.as<uint32_t>()[at] * cols, rule.cols, args.seed, args.stream,
              [&](uint64_t i, uint32_t word) {
                y[i] = from_float<T>(word >= rule.threshold ? to_float(x[i]) * rule.scale : 0.0f);
              });
  }
}

template <class T>
void uniform_noise_cpu(const UniformNoise& args) {
  T* x = args.x.as<T>();
  for_words(args.first_row * static_cast<uint64_t>(args.x.cols()), args.x.numel(), args.seed, args.stream,
            [&](uint64_t i, uint32_t word) {
              x[i] = from_float<T>(to_float(x[i]) + args.amplitude * signed_uniform(word));
            });
}

}  // namespace

void dropout(const Context& context, const Dropout& args) {
  check_high_precision("dropout", "x", args.x);
  check_tensor("dropout", "y", args.y, args.x.dtype, args.x.shape);
  TE_CHECK(args.probability >= 0.0f && args.probability < 1.0f,
           "dropout: probability {} must be at least 0 and below 1", args.probability);
  TE_CHECK(args.all_cols == 0 || (args.first_col + args.x.cols() <= args.all_cols && args.x.cols() % 8 == 0 &&
                                  args.first_col % 8 == 0 && args.all_cols % 8 == 0),
           "dropout: columns {}+{} of {} are not multiples of 8", args.first_col, args.x.cols(),
           args.all_cols);
  if (args.numbers) {
    check_dtype("dropout", "numbers", args.numbers, DType::i32);
    TE_CHECK(args.all_cols == 0 && args.first_row == 0, "dropout: numbered rows have all columns");
    if (args.source) check_dtype("dropout", "source", args.source, DType::i32);
    TE_CHECK((args.source ? args.source : args.numbers).numel() >= args.x.rows(),
             "dropout: numbers or source of {} rows, must be {}",
             (args.source ? args.source : args.numbers).numel(), args.x.rows());
  }
  if (args.x.numel() == 0) return;
  TE_DISPATCH_CUDA(context, dropout, args);
  visit_high_precision(args.x.dtype, [&](auto zero) {
    args.numbers ? dropout_numbered_cpu<decltype(zero)>(args) : dropout_cpu<decltype(zero)>(args);
  });
}

void row_numbers(const Context& context, const RowNumbers& args) {
  check_dtype("row_numbers", "numbers", args.numbers, DType::i32);
  if (args.columns) check_dtype("row_numbers", "columns", args.columns, DType::i32);
  if (args.columns) check_shape("row_numbers", "columns", args.columns, args.numbers.shape);
  if (args.numbers.numel() == 0) return;
  TE_DISPATCH_CUDA(context, row_numbers, args);
  const int64_t n = args.numbers.cols();
  for (int64_t i = 0; i < args.numbers.numel(); ++i) {
    const uint64_t row = args.first_row + static_cast<uint64_t>(i / n);
    args.numbers.as<uint32_t>()[i] = static_cast<uint32_t>(row * static_cast<uint64_t>(args.width)) +
                                     (args.columns ? args.columns.as<uint32_t>()[i] : 0);
  }
}

void uniform_noise(const Context& context, const UniformNoise& args) {
  check_high_precision("uniform_noise", "x", args.x);
  if (args.x.numel() == 0) return;
  TE_DISPATCH_CUDA(context, uniform_noise, args);
  visit_high_precision(args.x.dtype, [&](auto zero) { uniform_noise_cpu<decltype(zero)>(args); });
}

}  // namespace te::kernels
