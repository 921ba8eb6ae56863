// Selection of experts for one token, shared by both backends.
#pragma once

#include "core/random.h"
#include "kernels/moe/router.h"

namespace te::kernels {

/// Added to the sum of the selected scores, as in Megatron-LM: sigmoid scores may all underflow.
constexpr float kScoreEpsilon = 1e-20f;

/// Order of selection: larger keys first, the lower index first of equal ones. NaN comes last.
TE_HOST_DEVICE bool precedes(float a, int i, float b, int j) {
  const bool a_nan = !(a == a), b_nan = !(b == b);
  if (a_nan || b_nan) return a_nan == b_nan ? i < j : b_nan;
  return a > b || (a == b && i < j);
}

/// The first of [begin, end) in the order of selection that `usable(i)` admits, or -1.
template <class Key, class Usable>
TE_HOST_DEVICE int first_of(const Key& key, const Usable& usable, int begin, int end) {
  int best = -1;
  for (int i = begin; i < end; ++i)
    if (usable(i) && (best < 0 || precedes(key(i), i, key(best), best))) best = i;
  return best;
}

/// Sum of the `count` largest keys of [begin, end), the score of a group of experts.
template <class Key>
TE_HOST_DEVICE float sum_of_largest(const Key& key, int begin, int end, int count) {
  float sum = 0.0f, last = 0.0f;
  int last_index = -1;
  for (int n = 0; n < count; ++n) {
    const auto after_last = [&](int i) { return last_index < 0 || precedes(last, last_index, key(i), i); };
    const int next = first_of(key, after_last, begin, end);
    if (next < 0) break;
    last_index = next, last = key(next), sum += last;
  }
  return sum;
}

/// Gradient of a selected score: p_i = scaling * s_i / sum(s), or scaling * s_i.
/// `sum`: of the selected scores; `along`: sum of d_probs_i * s_i.
TE_HOST_DEVICE float selected_score_gradient(bool normalize, float scaling, float d_prob, float sum,
                                             float along) {
  return normalize ? scaling * (d_prob - along / sum) / sum : scaling * d_prob;
}

TE_HOST_DEVICE float bias_step(float bias, float rate, float mean, int32_t count) {
  const float excess = mean - static_cast<float>(count);
  return bias + (excess > 0.0f ? rate : excess < 0.0f ? -rate : 0.0f);
}

}  // namespace te::kernels
