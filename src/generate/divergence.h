// How far one model's distributions of the next token are from another's, on a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "generate/loaded_model.h"

namespace te::generate {

struct Divergence {
  int64_t tokens = 0;               ///< positions that were compared
  double mean_kl = 0.0;             ///< KL(reference || model), natural logarithm
  double largest_kl = 0.0;          ///< of a position
  int64_t agreeing = 0;             ///< positions whose most probable token is the same
  double largest_difference = 0.0;  ///< of two logits
  double top1_agreement() const { return static_cast<double>(agreeing) / static_cast<double>(tokens); }
};

/// Adds a position: logits [vocab] of both. UserError when one is not a number.
void add_position(std::span<const float> reference, std::span<const float> model, Divergence& sum);

/// Runs consecutive cuts of `length` tokens through both models, which have room for one sequence of that length and
/// the same vocabulary. Collective among tensor ranks; `progress` is told the tokens so far.
Divergence compare(LoadedModel& reference, LoadedModel& model, std::span<const int32_t> tokens,
                   int64_t length, const std::function<void(int64_t)>& progress);

}  // namespace te::generate
