#include "generate/sampler.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/random.h"

namespace te::generate {
namespace {

/// The largest logit, and whether one is NaN or +infinity. Written as a loop that compilers vectorize, because it runs
/// over the vocabulary for every token.
struct LargestLogit {
  float value = -INFINITY;
  bool broken = false;
};
LargestLogit largest_logit(std::span<const float> logits) {
  float largest = -INFINITY;
  int broken = 0;
  const float* const all = logits.data();
#pragma omp simd reduction(max : largest) reduction(| : broken)
  for (size_t i = 0; i < logits.size(); ++i) {
    largest = all[i] > largest ? all[i] : largest;
    broken |= all[i] < INFINITY ? 0 : 1;
  }
  return {largest, broken != 0};
}

/// The first token with the largest logit.
int32_t argmax(std::span<const float> logits, float largest) {
  return static_cast<int32_t>(std::ranges::find(logits, largest) - logits.begin());
}

/// Keeps the k most probable tokens and those as probable as the k-th, sorted.
void keep_top_k(std::vector<Candidate>& all, int64_t k) {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
  };
  const auto at = [&](size_t i) { return all.begin() + static_cast<std::ptrdiff_t>(i); };
  size_t kept = k > 0 ? std::min(static_cast<size_t>(k), all.size()) : all.size();
  std::partial_sort(all.begin(), at(kept), all.end(), before);
  const double least = all[kept - 1].probability;
  const auto equal =
      std::partition(at(kept), all.end(), [&](const Candidate& c) { return c.probability == least; });
  std::sort(at(kept), equal, before);
  all.erase(equal, all.end());
}

}  // namespace

float check_logits(std::span<const float> logits) {
  const LargestLogit largest = largest_logit(logits);
  if (largest.broken)
    user_error(
        "the model's logits are not finite; its weights are damaged, or --fp8 or --dtype is unsuitable");
  if (!std::isfinite(largest.value))
    user_error("the model's logits are all -infinity; its weights are damaged");
  return largest.value;
}

void penalize_repetitions(std::span<float> scores, double penalty,
                          std::initializer_list<std::span<const int32_t>> seen) {
  if (penalty == 1.0) return;
  std::vector<int32_t> tokens;
  for (const std::span<const int32_t> list : seen) tokens.insert(tokens.end(), list.begin(), list.end());
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  const auto factor = static_cast<float>(penalty);
  for (const int32_t token : tokens) {
    float& score = scores[static_cast<size_t>(token)];
    score = score < 0.0f ? score * factor : score / factor;
  }
}

std::vector<Candidate> candidates(std::span<const float> logits, const SamplingOptions& options) {
  const double largest = check_logits(logits);
  if (options.temperature == 0.0) return {{argmax(logits, static_cast<float>(largest)), 1.0}};
  // 1. Unnormalized probabilities at this temperature.
  std::vector<Candidate> all(logits.size());
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = {static_cast<int32_t>(i), std::exp((logits[i] - largest) / options.temperature)};
  // 2. The k most probable tokens, sorted.
  keep_top_k(all, options.top_k);
  // 3. Of these, as many as reach top_p.
  double total = 0.0;
  for (const Candidate& candidate : all) total += candidate.probability;
  if (options.top_p < 1.0) {
    double reached = 0.0;
    size_t count = 0;
    while (count < all.size() && reached < options.top_p * total) reached += all[count++].probability;
    all.resize(std::max<size_t>(count, 1));
  }
  // 4. Of these, the ones that min_p allows; the first is the most probable.
  if (options.min_p > 0.0) {
    const double least = options.min_p * all.front().probability;
    std::erase_if(all, [&](const Candidate& candidate) { return candidate.probability < least; });
  }
  total = 0.0;
  for (const Candidate& candidate : all) total += candidate.probability;
  for (Candidate& candidate : all) candidate.probability /= total;
  return all;
}

int32_t sample(std::span<const float> logits, const SamplingOptions& options, uint64_t sequence,
               uint64_t position) {
  if (options.temperature == 0.0) return argmax(logits, check_logits(logits));
  const std::vector<Candidate> all = candidates(logits, options);
  const Philox4 random = philox(options.seed, stream_of("generate") + sequence, position);
  const uint64_t bits = (static_cast<uint64_t>(random.word[0]) << 32 | random.word[1]) >> 11;
  double left = static_cast<double>(bits) * 0x1p-53;
  for (const Candidate& candidate : all) {
    left -= candidate.probability;
    if (left < 0.0) return candidate.token;
  }
  return all.back().token;  // because of rounding, the probabilities may sum up to less than 1
}

}  // namespace te::generate
