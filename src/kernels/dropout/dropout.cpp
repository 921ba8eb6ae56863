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
  check_dtype("dropout", "y", args.y, args.x.dtype);
  check_shape("dropout", "y", args.y, args.x.shape);
  TE_CHECK(args.probability >= 0.0f && args.probability < 1.0f,
           "dropout: probability {} must be at least 0 and below 1", args.probability);
  TE_CHECK(args.all_cols == 0 || (args.first_col + args.x.cols() <= args.all_cols && args.x.cols() % 8 == 0 &&
                                  args.first_col % 8 == 0 && args.all_cols % 8 == 0),
           "dropout: columns {}+{} of {} are not multiples of 8", args.first_col, args.x.cols(),
           args.all_cols);
  if (args.x.numel() == 0) return;
  TE_DISPATCH_CUDA(context, dropout, args);
  visit_high_precision(args.x.dtype, [&](auto zero) { dropout_cpu<decltype(zero)>(args); });
}

void uniform_noise(const Context& context, const UniformNoise& args) {
  check_high_precision("uniform_noise", "x", args.x);
  if (args.x.numel() == 0) return;
  TE_DISPATCH_CUDA(context, uniform_noise, args);
  visit_high_precision(args.x.dtype, [&](auto zero) { uniform_noise_cpu<decltype(zero)>(args); });
}

}  // namespace te::kernels
