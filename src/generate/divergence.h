// Divergence between two models' next-token distributions on a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "generate/loaded_model.h"

namespace te::generate {

struct Divergence {
  int64_t tokens = 0;               ///< number of compared positions
  double mean_kl = 0.0;             ///< mean KL(reference || model) over the positions, in nats
  double largest_kl = 0.0;          ///< maximum over the positions, in nats
  int64_t agreeing = 0;             ///< positions with the same most probable token
  double largest_difference = 0.0;  ///< maximum difference of two logits
  double top1_agreement() const { return static_cast<double>(agreeing) / static_cast<double>(tokens); }
};

/// Adds a position to `sum`: logits [vocab] of both models. UserError if a logit is NaN.
void add_position(std::span<const float> reference, std::span<const float> model, Divergence& sum);

/// Runs consecutive samples of `length` tokens through both models, which must support one sequence of that length and
/// have the same vocabulary. Collective among the ranks of the model. Calls `progress` with the number of tokens so
/// far.
Divergence compare(LoadedModel& reference, LoadedModel& model, std::span<const int32_t> tokens,
                   int64_t length, const std::function<void(int64_t)>& progress);

}  // namespace te::generate
