#include "train/startup.h"

#include <fmt/ranges.h>

#include <string_view>
#include <tuple>
#include <vector>

#include "config/adapter.h"
#include "convert/adapter.h"
#include "convert/foreign_model.h"
#include "core/error.h"
#include "core/log.h"
#include "train/config_changes.h"

namespace te::train {

namespace fs = std::filesystem;

namespace {

/// Tensors of equal shapes may belong to other matrices, so the targets must be the same.
void check_same_adapter(const convert::Adapter& adapter, const config::Config& config) {
  const config::AdapterConfig &has = adapter.config, &wants = config.adapter;
  const std::string title = adapter.weights->title();
  if (has.rank != wants.rank || has.scale() != wants.scale())
    user_error(
        "{}: has rank {}, alpha {} and use_rslora {}, but adapter.rank is {}, adapter.alpha {} and "
        "adapter.use_rslora {}; set them to its values",
        title, has.rank, has.alpha, has.use_rslora, wants.rank, wants.alpha, wants.use_rslora);
  const std::vector<std::string> present = config::adapted_matrices(has, config.model),
                                 targeted = config::adapted_matrices(wants, config.model);
  if (present != targeted)
    user_error("{}: has adapters of {}, but adapter.target selects {}; set it to [{}]", title,
               fmt::join(present, ", "), fmt::join(targeted, ", "), fmt::join(present, ", "));
  // Checkpoints have the parameters that are trained, so they would lack what this adapter has changed.
  for (const auto& [key, there, here] : {std::tuple("train_norms", has.train_norms, wants.train_norms),
                                         {"train_embeddings", has.train_embeddings, wants.train_embeddings}})
    if (there && !here)
      user_error(
          "{}: was trained with adapter.{}; set it to true, or merge the adapter into the weights first "
          "(te-convert merge)",
          title, key);
}

}  // namespace

std::optional<checkpoint::Base> find_base(const config::Config& config, parallel::World& world) {
  if (!config.adapter.on()) return {};
  std::string path, hash;
  world.run_collectively([&] {
    if (!world.leader()) return;
    try {
      const fs::path weights = convert::resolve_weights(config.checkpoint.init_from);
      path = fs::absolute(weights).string();
      hash = fmt::format("{:016x}", convert::open_weights(weights)->hash());
    } catch (const UserError& error) {
      user_error("checkpoint.init_from: {}", error.what());
    }
  });
  path = world.broadcast_string(path);
  return checkpoint::Base{path, std::stoull(world.broadcast_string(hash), nullptr, 16)};
}

Startup::Startup(const config::Config& config, const Context& context, parallel::World& world,
                 StepRunner& runner, const std::optional<checkpoint::Base>& base)
    : config_(config), context_(context), world_(world), runner_(runner), base_(base) {}

StartPoint Startup::run() {
  if (const fs::path folder = find(); !folder.empty()) {
    StartPoint of_base;
    if (base_) load_weights(of_base);
    StartPoint point = resume(folder);
    point.hashes = of_base.hashes;
    return point;
  }
  runner_.initialize();
  StartPoint point;
  if (config_.checkpoint.init_from.empty()) return point;
  load_weights(point);
  if (!config_.adapter.init_from.empty() && base_) load_adapter(point);
  runner_.publish_weights();
  log_info("starts with the weights of {}", point.weights.string());
  return point;
}

// The hash reads a Hugging Face folder a second time, by then from the page cache.
void Startup::load_weights(StartPoint& start) {
  const std::string& path = config_.checkpoint.init_from;
  world_.run_collectively([&] {
    try {
      start.weights = convert::resolve_weights(path);
      const std::unique_ptr<checkpoint::WeightSource> source = convert::open_weights(start.weights);
      checkpoint::load_weights(context_, *source, config_, runner_.training_state());
      if (world_.leader()) start.hashes[path] = base_ ? base_->hash : source->hash();
    } catch (const UserError& error) {
      user_error("checkpoint.init_from: {}", error.what());
    }
  });
}

void Startup::load_adapter(StartPoint& start) {
  world_.run_collectively([&] {
    try {
      const convert::Adapter adapter = convert::open_adapter(config_.adapter.init_from, config_.model);
      if (adapter.base != 0 && adapter.base != base_->hash)
        user_error("{}: was trained on other files than checkpoint.init_from ({}), or they have changed",
                   adapter.weights->title(), base_->path);
      check_same_adapter(adapter, config_);
      start.adapter = config_.adapter.init_from;
      if (const auto* reader = dynamic_cast<const checkpoint::Reader*>(adapter.weights.get()))
        start.adapter = reader->folder();
      checkpoint::load_adapter(context_, *adapter.weights, config_, runner_.training_state());
      if (world_.leader()) start.hashes[config_.adapter.init_from] = adapter.weights->hash();
    } catch (const UserError& error) {
      user_error("adapter.init_from: {}", error.what());
    }
  });
  log_info("starts with the adapter of {}", config_.adapter.init_from);
}

fs::path Startup::find() {
  const config::CheckpointConfig& options = config_.checkpoint;
  if (options.resume == "never") return {};
  if (options.resume != "auto") return options.resume;
  const std::string found = world_.from_leader(  // only one rank searches, so that all agree
      [&] { return checkpoint::find_latest(options.directory).value_or("").string(); });
  if (found.empty())
    log_info("checkpoint.resume auto: no checkpoint in {}; the run starts at step 1", options.directory);
  return found;
}

// With `auto`, falls back from a damaged checkpoint to the one before it.
StartPoint Startup::resume(fs::path folder) {
  const config::CheckpointConfig& options = config_.checkpoint;
  for (;;) {
    bool damaged = false;
    try {
      const StartPoint point = load(folder, {.optimizer = options.load_optimizer}, damaged);
      log_info("resumed from {} after step {}", point.checkpoint.string(), point.progress.step);
      return point;
    } catch (const std::exception& error) {
      if (!damaged || options.resume != "auto") throw;
      const fs::path older = previous(folder);
      if (older.empty()) throw;
      // The error of a job with several ranks starts with "error: ".
      std::string_view reason = error.what();
      reason.remove_prefix(reason.starts_with("error: ") ? std::string_view("error: ").size() : 0);
      log_warning("{}", reason);
      log_warning(
          "{} is damaged: resuming from {}, the checkpoint before it (to stop instead, name the checkpoint "
          "in checkpoint.resume)",
          folder.string(), older.filename().string());
      folder = older;
    }
  }
}

StartPoint Startup::load(const fs::path& path, const checkpoint::LoadOptions& options, bool& damaged) {
  StartPoint point;
  bool damaged_here = false;
  const auto read = [&] {
    try {
      const checkpoint::Reader reader(path);
      config::check_resumable(reader.manifest().config);
      if (base_ && reader.manifest().base && reader.manifest().base->hash != base_->hash)
        user_error(
            "{}: its adapter was trained on {}, which is not checkpoint.init_from ({}) or has changed since",
            reader.folder().string(), reader.manifest().base->path, base_->path);
      const checkpoint::Loaded loaded =
          checkpoint::load(context_, reader, config_, runner_.training_state(), options);
      point = {.progress = loaded.progress,
               .checkpoint = checkpoint::in_directory(config_.checkpoint.directory, reader.folder()),
               .weights = reader.folder(),
               .scales = loaded.scales,
               .moments = loaded.optimizer,
               .datasets = reader.manifest().datasets};
      if (!loaded.optimizer) log_info("Adam moments are not loaded and start at zero");
      report_changes(reader.config(), point.progress);
    } catch (const UserError& error) {
      damaged_here = dynamic_cast<const checkpoint::Damaged*>(&error) != nullptr;
      user_error("checkpoint.resume: {}", error.what());
    }
  };
  try {
    world_.run_collectively(read);
  } catch (...) {
    // In a job, all ranks get here, whichever of them failed.
    damaged = world_.max_i64(damaged_here ? 1 : 0) != 0;
    throw;
  }
  runner_.optimizer().set_updates(point.progress.updates);
  // After a rollback, of the weights that it discards.
  if (const fp8::ScaleTable& table = runner_.model().recipe().table(); table.size() > 0)
    context_.zero(table.amax);
  runner_.publish_weights();
  return point;
}

StartPoint Startup::rollback_to(const fs::path& folder, bool optimizer) {
  bool damaged = false;
  return load(folder, {.optimizer = optimizer}, damaged);
}

void Startup::report_changes(const std::string& before, checkpoint::Progress& progress) const {
  std::string changes = describe_config_changes(before, config_, progress.step);
  if (changes.empty()) return;
  changes.pop_back();  // the newline
  log_info("the config differs from the checkpoint's:\n{}", changes);
  if (progress.guard.began < 0 || !changes_losses(before, config_)) return;
  // Its BF16 losses are of the old config's data and learning rates.
  log_info("guard: the comparison that began after step {} is dropped: the config has changed",
           progress.guard.began);
  progress.guard.drop_comparison();
}

fs::path Startup::previous(const fs::path& damaged) {
  return world_.from_leader([&] { return checkpoint::checkpoint_before(damaged).value_or("").string(); });
}

void calibrate(StepRunner& runner, const Batches& batches, int64_t micro_batch_size, int64_t microbatches,
               int64_t first_sample, int64_t counted) {
  std::vector<data::Batch> held;
  std::vector<HostMicrobatch> views;
  for (int64_t i = 0; i < microbatches; ++i)
    held.push_back(batches.training(first_sample + i * micro_batch_size));
  for (const data::Batch& batch : held) views.push_back(Batches::view(batch));
  runner.calibrate(views, counted);
  log_info("FP8 scales calibrated on the {} {} microbatches", first_sample == 0 ? "first" : "next",
           microbatches);
}

}  // namespace te::train
