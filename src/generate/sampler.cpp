#include "generate/sampler.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/random.h"

namespace te::generate {
namespace {

void check_logits(std::span<const float> logits) {
  bool finite = false;
  for (const float logit : logits) {
    if (std::isnan(logit) || logit == INFINITY)
      user_error(
          "the model's logits are not finite: its weights are broken, or --fp8 or --dtype do not suit it");
    finite |= std::isfinite(logit);
  }
  if (!finite) user_error("the model gives no token a probability: its weights are broken");
}

int32_t most_probable(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

std::vector<Candidate> candidates(std::span<const float> logits, const SamplingOptions& options) {
  check_logits(logits);
  if (options.temperature == 0.0) return {{most_probable(logits), 1.0}};
  // 1. Unnormalised probabilities at this temperature.
  const double largest = logits[static_cast<size_t>(most_probable(logits))];
  std::vector<Candidate> all(logits.size());
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = {static_cast<int32_t>(i), std::exp((logits[i] - largest) / options.temperature)};
  // 2. The k most probable ones, sorted.
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
  };
  const size_t kept =
      options.top_k > 0 ? std::min(static_cast<size_t>(options.top_k), all.size()) : all.size();
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept), all.end(), before);
  all.resize(kept);
  // 3. Of these as many as reach top_p.
  double total = 0.0;
  for (const Candidate& candidate : all) total += candidate.probability;
  if (options.top_p < 1.0) {
    double reached = 0.0;
    size_t count = 0;
    while (count < all.size() && reached < options.top_p * total) reached += all[count++].probability;
    all.resize(std::max<size_t>(count, 1));
    total = count > 0 ? reached : all[0].probability;
  }
  for (Candidate& candidate : all) candidate.probability /= total;
  return all;
}

int32_t sample(std::span<const float> logits, const SamplingOptions& options, uint64_t sequence,
               uint64_t position) {
  if (options.temperature == 0.0) {
    check_logits(logits);
    return most_probable(logits);
  }
  const std::vector<Candidate> all = candidates(logits, options);
  const Philox4 random = philox(options.seed, stream_of("generate") + sequence, position);
  const uint64_t bits = (static_cast<uint64_t>(random.word[0]) << 32 | random.word[1]) >> 11;
  double left = static_cast<double>(bits) * 0x1p-53;
  for (const Candidate& candidate : all) {
    left -= candidate.probability;
    if (left < 0.0) return candidate.token;
  }
  return all.back().token;  // rounding
}

}  // namespace te::generate
