// Checks, dispatch and CPU reference of the cross-entropy.
#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/cross_entropy/cross_entropy_cuda.h"

namespace te::kernels {

namespace {

void check_cross_entropy(const CrossEntropy& a) {
  const char* op = "cross_entropy";
  check_hp(op, "logits", a.logits);
  const int64_t rows = a.logits.rows();
  check_dtype(op, "targets", a.targets, DType::i32);
  check_shape(op, "targets", a.targets, {rows});
  check_dtype(op, "losses", a.losses, DType::f32);
  check_shape(op, "losses", a.losses, {rows});
  TE_CHECK(a.vocab > 0 && a.vocab <= a.logits.cols(), "{}: vocab {} must be in 1..{}, the logits' columns",
           op, a.vocab, a.logits.cols());
}

template <class T>
void cross_entropy_cpu(const CrossEntropy& a) {
  const int64_t rows = a.logits.rows(), columns = a.logits.cols();
  const int32_t* targets = a.targets.as<int32_t>();
  for (int64_t r = 0; r < rows; ++r)
    TE_CHECK(targets[r] >= -1 && targets[r] < a.vocab, "cross_entropy: target {} of row {} is not in -1..{}",
             targets[r], r, a.vocab - 1);
  const bool backward = a.grad_scale != 0.0f;
#pragma omp parallel
  {
    std::vector<float> row(static_cast<size_t>(a.vocab));
#pragma omp for
    for (int64_t r = 0; r < rows; ++r) {
      T* logits = a.logits.as<T>() + r * columns;
      if (targets[r] < 0) {
        a.losses.as<float>()[r] = 0.0f;
        if (backward) std::fill(logits, logits + columns, T{});
        continue;
      }
      // A finite start, so that a logit of -inf means probability 0 rather than inf - inf.
      float largest = std::numeric_limits<float>::lowest(), sum = 0.0f;
      for (int64_t c = 0; c < a.vocab; ++c) {
        row[c] = to_float(logits[c]);
        largest = std::max(largest, row[c]);
      }
      const float target_logit = row[targets[r]];
      for (int64_t c = 0; c < a.vocab; ++c) row[c] = std::exp(row[c] - largest);
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < a.vocab; ++c) sum += row[c];
      a.losses.as<float>()[r] = std::log(sum) - (target_logit - largest);
      if (!backward) continue;
      const float inverse = 1.0f / sum;
      for (int64_t c = 0; c < a.vocab; ++c) {
        const float one = c == targets[r] ? 1.0f : 0.0f;
        logits[c] = from_float<T>((row[c] * inverse - one) * a.grad_scale);
      }
      std::fill(logits + a.vocab, logits + columns, T{});
    }
  }
}

}  // namespace

void cross_entropy(const Context& context, const CrossEntropy& args) {
  check_cross_entropy(args);
  TE_DISPATCH_CUDA(context, cross_entropy, args);
  visit_hp(args.logits.dtype, [&](auto zero) { cross_entropy_cpu<decltype(zero)>(args); });
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
