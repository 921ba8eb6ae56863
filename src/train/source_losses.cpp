#include "train/source_losses.h"

#include <algorithm>

#include "core/error.h"
#include "train/batches.h"

namespace te::train {

SourceLosses::SourceLosses(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto found = std::ranges::find(names_, name);
    place_.push_back(static_cast<size_t>(found - names_.begin()));
    if (found == names_.end()) names_.push_back(name);
  }
  sums_.resize(names_.size());
}

void SourceLosses::add(std::span<const int32_t> sources, std::span<const float> losses,
                       const int32_t* targets, int64_t seq_length) {
  TE_CHECK(sources.size() == losses.size(), "{} sources of {} samples", sources.size(), losses.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    Sum& sum = sums_[place_.at(static_cast<size_t>(sources[i]))];
    sum.loss += losses[i];
    sum.tokens += Batches::counted(targets + static_cast<int64_t>(i) * seq_length, seq_length);
  }
}

std::vector<SourceLoss> SourceLosses::take(parallel::World& world) {
  std::vector<SourceLoss> result;
  for (size_t i = 0; i < names_.size(); ++i) {
    const double loss = world.sum_f64(sums_[i].loss);
    const int64_t tokens = world.sum_i64(sums_[i].tokens);
    result.push_back({names_[i], mean_loss(loss, tokens), tokens});
  }
  clear();
  return result;
}

void SourceLosses::clear() {
  std::ranges::fill(sums_, Sum{});
}

}  // namespace te::train
