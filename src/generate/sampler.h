// The choice of the next token from its logits: the most probable one, or a draw from a distribution that temperature,
// top-k and top-p have narrowed, in this order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace te::generate {

struct SamplingOptions {
  double temperature =
      0.0;             ///< 0: the most probable token, of equal ones the first; else logits are divided by it
  int64_t top_k = 0;   ///< the k most probable tokens; 0: all
  double top_p = 1.0;  ///< then the fewest most probable tokens whose probabilities reach p
  uint64_t seed = 0;
};

struct Candidate {
  int32_t token = 0;
  double probability = 0.0;
};

/// What is drawn from, most probable first (of equal ones the smaller token); probabilities add up to 1. UserError when
/// a logit is not a number or all are -infinity.
std::vector<Candidate> candidates(std::span<const float> logits, const SamplingOptions& options);

/// The token at a position of a sequence: a function of the arguments alone, whatever else is generated beside it.
int32_t sample(std::span<const float> logits, const SamplingOptions& options, uint64_t sequence,
               uint64_t position);

}  // namespace te::generate
