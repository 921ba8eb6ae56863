// Chooses the next token from its logits: the most probable token, or a draw from a filtered distribution. Definitions
// and order are those of transformers' logits processors: repetition penalty, temperature, top-k, top-p, min-p.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace te::generate {

struct SamplingOptions {
  /// Above 1, tokens that are already in the sequence become less probable: a positive logit is divided by the penalty,
  /// a negative logit is multiplied. 1: none.
  double repetition_penalty = 1.0;
  double temperature =
      0.0;            ///< 0: the most probable token (the first one if equal); else logits are divided by it
  int64_t top_k = 0;  ///< keep the k most probable tokens and those as probable as the k-th; 0: all
  double top_p =
      1.0;  ///< then the smallest set of most probable tokens whose probabilities sum up to at least p
  double min_p = 0.0;  ///< then those with at least min_p times the probability of the most probable token
  uint64_t seed = 0;
};

struct Candidate {
  int32_t token = 0;
  double probability = 0.0;
};

/// Applies a repetition penalty to scores [vocab] (logits or log probabilities), once for every token in one of the
/// lists.
void penalize_repetitions(std::span<float> scores, double penalty,
                          std::initializer_list<std::span<const int32_t>> seen);

/// The distribution to draw from, most probable token first (the smaller token if equal); the probabilities sum up to
/// 1. The caller applies the repetition penalty before. UserError if a logit is NaN or +infinity, or all are -infinity.
std::vector<Candidate> candidates(std::span<const float> logits, const SamplingOptions& options);

/// The token at a position of a sequence, from logits after the repetition penalty. Depends only on the arguments, not
/// on other sequences.
int32_t sample(std::span<const float> logits, const SamplingOptions& options, uint64_t sequence,
               uint64_t position);

/// The largest logit. UserError if a logit is NaN or +infinity, or all are -infinity.
float check_logits(std::span<const float> logits);

}  // namespace te::generate
