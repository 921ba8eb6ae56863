#include "train/config_changes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "optim/lr_schedule.h"
#include "train/data_check.h"

namespace te::train {
namespace {

bool is_among(const std::string& path, std::initializer_list<std::string_view> paths) {
  return std::ranges::find(paths, path) != paths.end();
}

bool changes_training(const std::string& path, const config::Config& now) {
  if (path == "optimizer.wsd_decay_steps" && now.optimizer.decay != config::LrDecay::wsd) return false;
  return !path.starts_with("checkpoint.") && !path.starts_with("logging.") &&
         !is_among(path, {"training.device", "training.eval_interval", "training.eval_microbatches",
                          "training.early_stopping_patience", "training.max_nonfinite_steps",
                          "training.gemm_autotune", "training.recompute", "parallel.timeout_seconds",
                          "precision.fp8_keep_weights", "optimizer.offload", "data.valid", "data.tokenizer",
                          "data.check", "model.make_vocab_size_divisible_by"});
}

/// The effect of partitioning a step's samples differently into microbatches or across ranks.
std::string effect_of_partition(const std::string& path, const config::Config& now) {
  const config::ModelConfig& m = now.model;
  const bool microbatch = path == "training.micro_batch_size";
  const bool tokens =
      microbatch || is_among(path, {"parallel.tensor", "parallel.context", "parallel.sequence"});
  const bool global = m.moe_router_load_balancing_type == config::BalanceScope::global;
  std::vector<std::string_view> changed;
  if (microbatch && m.attention_dropout > 0.0) changed.emplace_back("other attention dropout masks");
  if (tokens && m.moe_expert_capacity_factor > 0.0)
    changed.emplace_back("other tokens are above the experts' capacity");
  // A step's loads so far include all data-parallel ranks, whose number follows from the other parallel sizes.
  const bool balanced =
      microbatch ? m.moe_router_load_balancing_type != config::BalanceScope::sequence
                 : global && is_among(path, {"parallel.tensor", "parallel.context", "parallel.pipeline"});
  if (balanced && m.moe_aux_loss_coeff > 0.0)
    changed.emplace_back("the balance loss of experts counts other tokens together");
  if (changed.empty()) return "different summation order: equal within rounding";
  return fmt::format("{}", fmt::join(changed, "; "));
}

/// The effect of changing a key; empty if its name says it.
std::string effect_of(const std::string& path, const config::Config& now) {
  if (path == "model.seq_length")
    return "samples are split differently: some data is repeated or skipped; consumed_tokens counts as if "
           "all samples had had the new length";
  if (path == "training.global_batch_size") return "samples per step from here on";
  if (path == "model.max_position_embeddings") return "maximum sequence length";
  if (path == "training.train_steps") return "the run's last step";
  if (path == "optimizer.decay_steps") return "the step at which the learning rate reaches optimizer.min_lr";
  if (path == "optimizer.wsd_decay_steps") return "the decay starts this many steps before decay_steps";
  if (path == "optimizer.warmup_steps") return "the learning rate increases until this step";
  if (is_among(path, {"optimizer.lr", "optimizer.min_lr", "optimizer.decay"}))
    return "learning rate from here on";
  if (path == "training.seed") return "other data order and dropout masks: some data is repeated or skipped";
  if (is_among(path, {"data.train", "data.format", "data.synthetic", "data.overlong"}))
    return "other samples in a different order: some data is repeated or skipped";
  if (path.starts_with("parallel.") || path == "training.micro_batch_size")
    return effect_of_partition(path, now);
  if (path.starts_with("precision.")) return "number formats from here on";
  if (path.starts_with("optimizer.") || path.starts_with("training.")) return "from the next step on";
  return "";
}

bool shapes_schedule(const std::string& path) {
  return is_among(path, {"optimizer.lr", "optimizer.min_lr", "optimizer.warmup_steps", "optimizer.decay",
                         "optimizer.decay_steps", "optimizer.wsd_decay_steps"});
}

/// The checkpoint's config; empty if this version cannot parse it.
std::optional<config::Config> config_before(const std::string& before) {
  try {
    return config::parse_config(before, "checkpoint");
  } catch (const UserError&) {
    return std::nullopt;
  }
}

/// The effect of changing data.train, whose weights are relative and whose paths have several spellings.
std::string_view effect_on_data(const std::vector<config::DataSource>& before,
                                const std::vector<config::DataSource>& now) {
  if (shares(before) != shares(now))
    return "other samples in a different order: some data is repeated or skipped";
  const bool same = std::ranges::equal(
      before, now, {}, [](const auto& source) { return data_file_of(source.prefix); },
      [](const auto& source) { return data_file_of(source.prefix); });
  return same ? "the same files in the same order"
              : "other samples unless the files have the same data: some data is repeated or skipped";
}

}  // namespace

std::vector<double> shares(const std::vector<config::DataSource>& sources) {
  std::vector<double> weights;
  for (const config::DataSource& source : sources) weights.push_back(source.weight);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= total;
  return weights;
}

std::string describe_config_changes(const std::string& before, const config::Config& now, int64_t step) {
  std::string text;
  bool schedule = false;
  const std::optional<config::Config> old = config_before(before);
  for (const config::ChangedKey& key : config::changed_keys(before, now)) {
    if (!changes_training(key.path, now)) continue;
    const std::string effect = key.path == "data.train" && old
                                   ? std::string(effect_on_data(old->data.train, now.data.train))
                                   : effect_of(key.path, now);
    text += fmt::format("  {}: {} -> {}{}\n", key.path, key.before, key.now,
                        effect.empty() ? "" : fmt::format("  ({})", effect));
    schedule = schedule || shapes_schedule(key.path);
  }
  if (schedule && old) {
    text += fmt::format("  learning rate of step {}: {:.3g}, was {:.3g}\n", step + 1,
                        optim::schedule_of(now.optimizer).at(step + 1),
                        optim::schedule_of(old->optimizer).at(step + 1));
  }
  return text;
}

bool changes_losses(const std::string& before, const config::Config& now) {
  return std::ranges::any_of(config::changed_keys(before, now), [&now](const config::ChangedKey& key) {
    return changes_training(key.path, now) && !key.path.starts_with("parallel.") &&
           !is_among(key.path, {"training.micro_batch_size", "training.train_steps"});
  });
}

}  // namespace te::train
