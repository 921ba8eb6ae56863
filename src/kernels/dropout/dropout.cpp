// Checks, dispatch and CPU reference of dropout.
#include "kernels/dropout/dropout.h"

#include <algorithm>

#include "core/float_types.h"
#include "core/random.h"
#include "kernels/common/checks.h"
#include "kernels/dropout/dropout_rule.h"

namespace te::kernels {
namespace {

template <class T>
void dropout_cpu(const Dropout& args) {
  const DropoutRule rule = dropout_rule(args);
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  // One Philox call serves the four indices of a group; the first and last groups may be partial.
  const uint64_t begin = rule.first_index, end = begin + static_cast<uint64_t>(args.x.numel());
  const int64_t first_group = static_cast<int64_t>(begin / 4);
  const int64_t last_group = static_cast<int64_t>((end + 3) / 4);
#pragma omp parallel for schedule(static)
  for (int64_t group = first_group; group < last_group; ++group) {
    const uint64_t group_begin = static_cast<uint64_t>(group) * 4;
    const Philox4 random = philox(args.seed, args.stream, static_cast<uint64_t>(group));
    const uint64_t stop = std::min(group_begin + 4, end);
    for (uint64_t i = std::max(group_begin, begin); i < stop; ++i) {
      const bool keep = random.word[i % 4] >= rule.threshold;
      y[i - begin] = from_float<T>(keep ? to_float(x[i - begin]) * rule.scale : 0.0f);
    }
  }
}

}  // namespace

void dropout(const Context& context, const Dropout& args) {
  check_high_precision("dropout", "x", args.x);
  check_dtype("dropout", "y", args.y, args.x.dtype);
  check_shape("dropout", "y", args.y, args.x.shape);
  TE_CHECK(args.probability >= 0.0f && args.probability < 1.0f,
           "dropout: probability {} must be at least 0 and below 1", args.probability);
  if (args.x.numel() == 0) return;
  TE_DISPATCH_CUDA(context, dropout, args);
  visit_high_precision(args.x.dtype, [&](auto zero) { dropout_cpu<decltype(zero)>(args); });
}

}  // namespace te::kernels
