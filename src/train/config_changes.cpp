#include "train/config_changes.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "core/error.h"
#include "optim/lr_schedule.h"

namespace te::train {
namespace {

bool is_among(const std::string& path, std::initializer_list<std::string_view> paths) {
  return std::ranges::find(paths, path) != paths.end();
}

bool changes_training(const std::string& path) {
  return !path.starts_with("checkpoint.") && !path.starts_with("logging.") &&
         !is_among(path, {"training.device", "training.eval_interval", "training.eval_microbatches",
                          "training.early_stopping_patience", "training.max_nonfinite_steps",
                          "training.gemm_autotune", "training.recompute", "parallel.timeout_seconds",
                          "precision.fp8_keep_weights", "optimizer.offload", "data.valid", "data.tokenizer",
                          "data.check", "model.make_vocab_size_divisible_by"});
}

/// The effect of changing a key; empty if its name says it.
std::string_view effect_of(const std::string& path) {
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
    return "different summation order: equal within rounding";
  if (path.starts_with("precision.")) return "number formats from here on";
  if (path.starts_with("optimizer.") || path.starts_with("training.")) return "from the next step on";
  return "";
}

bool shapes_schedule(const std::string& path) {
  return is_among(path, {"optimizer.lr", "optimizer.min_lr", "optimizer.warmup_steps", "optimizer.decay",
                         "optimizer.decay_steps", "optimizer.wsd_decay_steps"});
}

/// The learning rate of a step by the checkpoint's config; empty if this version cannot parse that.
std::optional<float> lr_before(const std::string& before, int64_t step) {
  try {
    return optim::schedule_of(config::parse_config(before, "checkpoint").optimizer).at(step);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

std::string describe_config_changes(const std::string& before, const config::Config& now, int64_t step) {
  std::string text;
  bool schedule = false;
  for (const config::ChangedKey& key : config::changed_keys(before, now)) {
    if (!changes_training(key.path) ||
        (key.path == "optimizer.wsd_decay_steps" && now.optimizer.decay != config::LrDecay::wsd))
      continue;
    const std::string_view effect = effect_of(key.path);
    text += fmt::format("  {}: {} -> {}{}\n", key.path, key.before, key.now,
                        effect.empty() ? "" : fmt::format("  ({})", effect));
    schedule = schedule || shapes_schedule(key.path);
  }
  if (!schedule) return text;
  if (const std::optional<float> old = lr_before(before, step + 1)) {
    text += fmt::format("  learning rate of step {}: {:.3g}, was {:.3g}\n", step + 1,
                        optim::schedule_of(now.optimizer).at(step + 1), *old);
  }
  return text;
}

}  // namespace te::train
