// The choice of the next token from its logits: the most probable one, or a draw from a distribution that has been
// narrowed. Definitions and order are those of transformers' logits processors: repetition penalty, temperature, top-k,
// top-p, min-p.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace te::generate {

struct SamplingOptions {
  /// Above 1, tokens that the sequence has already become less probable: a positive logit is divided by it, a negative
  /// one multiplied. 1: none.
  double repetition_penalty = 1.0;
  double temperature =
      0.0;             ///< 0: the most probable token, of equal ones the first; else logits are divided by it
  int64_t top_k = 0;   ///< the k most probable tokens, and those as probable as the k-th; 0: all
  double top_p = 1.0;  ///< then the fewest most probable tokens whose probabilities reach p
  double min_p = 0.0;  ///< then those at least min_p times as probable as the most probable one
  uint64_t seed = 0;
};

struct Candidate {
  int32_t token = 0;
  double probability = 0.0;
};

/// Applies a repetition penalty to scores [vocab] (logits, or logarithms of probabilities): once to every token that is
/// in one of the lists.
void penalize_repetitions(std::span<float> scores, double penalty,
                          std::initializer_list<std::span<const int32_t>> seen);

/// What is drawn from, most probable first (of equal ones the smaller token); probabilities add up to 1. The repetition
/// penalty is the caller's business. UserError when a logit is not a number or all are -infinity.
std::vector<Candidate> candidates(std::span<const float> logits, const SamplingOptions& options);

/// The token at a position of a sequence, from logits after the repetition penalty: a function of the arguments alone,
/// whatever else is generated beside it.
int32_t sample(std::span<const float> logits, const SamplingOptions& options, uint64_t sequence,
               uint64_t position);

/// The largest logit. UserError when one is not a number or all are -infinity.
float check_logits(std::span<const float> logits);

}  // namespace te::generate
