#include "train/best_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "checkpoint/folder.h"
#include "core/log.h"
#include "train/batches.h"
#include "train/config_changes.h"

namespace te::train {

using checkpoint::Validation;

std::optional<double> deciding_loss(const std::string& set, const std::vector<SetLoss>& losses) {
  for (const SetLoss& loss : losses)
    if (loss.name == set) return loss.loss;
  return std::nullopt;
}

std::string deciding_samples(const config::Config& config, int64_t samples,
                             const std::vector<checkpoint::Dataset>& datasets) {
  const config::DataConfig& data = config.data;
  if (samples == 0) return "";
  std::string text = fmt::format("{} of {} tokens", samples, config.model.seq_length);
  if (data.document_mask) text += ", document_mask";
  if (data.eod_mask_loss) text += ", eod_mask_loss";
  if (data.overlong == config::Overlong::drop) text += ", without overlong ones";
  for (const double share : shares(data.valid.front().sources)) text += fmt::format(", {}", share);
  for (const checkpoint::Dataset& dataset : datasets)
    if (dataset.key == key_of(data.valid.front())) text += fmt::format(", xxh3:{:016x}", dataset.hash);
  return text;
}

BestCheckpoints::BestCheckpoints(const config::Config& config)
    : set_(config.data.deciding_set()),
      directory_(config.checkpoint.directory),
      keep_(config.checkpoint.keep_best),
      patience_(config.training.early_stopping_patience) {}

void BestCheckpoints::resume(Validation& state, const std::string& samples, parallel::World& world) {
  samples_ = world.broadcast_string(samples);
  restore(state, world);
}

void BestCheckpoints::restore(Validation& state, parallel::World& world) const {
  if (!state.set.empty() && state.set != set_) {
    log_warning(
        "the best losses so far are of validation set {}; best losses of {}, the first of data.valid, start",
        state.set, set_.empty() ? "no set" : set_);
    state = {};
  } else if (!state.samples.empty() && !samples_.empty() && state.samples != samples_) {
    log_warning(
        "the best losses so far are of other samples of data.valid ({}; now {}); best losses start over",
        state.samples, samples_);
    state = {};
  }
  // Only one rank checks, so that all ranks get the same answer.
  const std::string there = world.from_leader([&] {
    std::string found;
    for (const Validation::Best& item : state.best) {
      const auto folder = std::filesystem::path(directory_) / checkpoint::step_name(item.step);
      found += std::filesystem::exists(folder / "manifest.json") ? '1' : '0';
    }
    return found;
  });
  std::vector<Validation::Best> kept;
  for (size_t i = 0; i < there.size(); ++i)
    if (there[i] == '1' && static_cast<int64_t>(kept.size()) < keep_) kept.push_back(state.best[i]);
  state.best = std::move(kept);
  world.run_collectively([&] {
    if (!world.leader() || keep_ == 0) return;
    std::vector<int64_t> steps;
    for (const Validation::Best& item : state.best) steps.push_back(item.step);
    checkpoint::mark_best(directory_, steps);
  });
}

void BestCheckpoints::evaluated(Validation& state, double loss) const {
  state.set = set_;
  state.samples = samples_;
  const bool gain = std::isfinite(loss) && (!state.lowest || loss < *state.lowest);
  if (gain) state.lowest = loss;
  state.without_gain = gain ? 0 : state.without_gain + 1;
}

bool BestCheckpoints::among_best(const Validation& state, double loss) const {
  if (keep_ == 0 || !std::isfinite(loss)) return false;
  return static_cast<int64_t>(state.best.size()) < keep_ ||
         loss < state.best[static_cast<size_t>(keep_ - 1)].loss;
}

std::vector<int64_t> BestCheckpoints::add(Validation& state, int64_t step, double loss, bool extra) const {
  // A run that was resumed before this step saves it again.
  std::erase_if(state.best, [&](const Validation::Best& item) { return item.step == step; });
  // On equal losses the earlier checkpoint comes first.
  const auto place =
      std::ranges::find_if(state.best, [&](const Validation::Best& item) { return item.loss > loss; });
  state.best.insert(place, {step, loss, extra});
  std::vector<int64_t> superfluous;
  while (static_cast<int64_t>(state.best.size()) > keep_) {
    if (state.best.back().extra) superfluous.push_back(state.best.back().step);
    state.best.pop_back();
  }
  return superfluous;
}

bool BestCheckpoints::exhausted(const Validation& state) const {
  return patience_ > 0 && state.without_gain >= patience_;
}

std::string BestCheckpoints::describe(const Validation& state) const {
  return fmt::format(
      "the loss of validation set {} has not improved in {} evaluations "
      "(training.early_stopping_patience); {}",
      set_, state.without_gain,
      state.lowest ? fmt::format("the lowest loss is {:.4f}", *state.lowest) : "it never improved");
}

}  // namespace te::train
