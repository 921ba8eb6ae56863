#include "train/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/folder.h"
#include "checkpoint/reader.h"
#include "convert/adapter.h"
#include "convert/foreign_model.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/host_memory.h"
#include "core/log.h"
#include "core/strings.h"
#include "train/data_check.h"
#include "train/kept_tokenizer.h"
#include "train/loss_spikes.h"
#include "train/measured_rates.h"
#include "train/memory_check.h"
#include "train/same_on_all_ranks.h"
#include "train/state_copy.h"

namespace te::train {
namespace {

namespace fs = std::filesystem;

/// logging.every of the run that saved the checkpoint; 0 without one.
int64_t logged_every(const fs::path& checkpoint) {
  return checkpoint.empty() ? 0 : checkpoint::Reader(checkpoint).run_config().logging.every;
}

}  // namespace

Trainer::Trainer(const config::Config& config, Context& context, parallel::World& world,
                 const parallel::Groups& groups, bool overwrite)
    : config_(config),
      context_(context),
      world_(world),
      overwrite_(overwrite),
      runner_(config, context, groups),
      best_checkpoints_(config) {}

void Trainer::make_samples_with(std::unique_ptr<SampleMaker> maker) {
  sample_maker_ = std::move(maker);
  sample_maker_->plan(runner_.plan());
}

void Trainer::set_evaluator(std::unique_ptr<Evaluator> evaluator) {
  evaluator_ = std::move(evaluator);
  evaluator_->plan(runner_.plan());
}

// --- before the first step ---------------------------------------------------------------------------------

void Trainer::open_data() {
  const config::TrainingConfig& training = config_.training;
  world_.run_collectively([&] {
    // First, since it says what is wrong with a dataset; sources only find a token that is too large.
    if (world_.local_rank() == 0)
      datasets_ = check_data(config_.data, config_.model.vocab_size, kept_by_resumed(config_.checkpoint));
    batches_ = std::make_unique<Batches>(
        BatchOptions{.data = config_.data,
                     .seq_length = config_.model.seq_length,
                     .vocab_size = config_.model.vocab_size,
                     .seed = training.seed,
                     .micro_batch_size = training.micro_batch_size,
                     .eval_microbatches = training.eval_interval > 0 ? training.eval_microbatches : 0,
                     .context_rank = runner_.split().rank(),
                     .context_ranks = runner_.split().ranks()});
  });
  check_same_datasets(world_, datasets_);
  for (const std::string& line : batches_->describe()) log_info("{}", line);
  reader_.emplace(*batches_, runner_, world_);
}

// Called before memory is allocated, so that mistakes show at once.
void Trainer::lock_folders() {
  world_.run_collectively([&] {
    if (!world_.leader()) return;
    folder_.emplace(RunFolderOptions{
        .logs = config_.logging.directory, .checkpoints = config_.checkpoint.directory, .saves = saves()});
    if (config_.checkpoint.resume == "never" && !overwrite_) folder_->refuse_earlier_run();
    if (overwrite_) folder_->refuse_other_run();
  });
  if (saves() && world_.size() > 1) check_shared_folder();
}

// All ranks write a checkpoint, and rank 0 waits for the files of all.
void Trainer::check_shared_folder() {
  const fs::path lock = fs::path(config_.checkpoint.directory) / FolderLock::kName;
  const std::string expected = world_.from_leader([&] { return read_file(lock).text; });
  world_.run_collectively([&] {
    // A network file system may show the file late.
    const int64_t limit = config_.parallel.timeout_seconds;
    const double end = now_seconds() + (limit == 0 ? 10.0 : std::min(10.0, static_cast<double>(limit) / 2));
    while (read_file(lock).text != expected) {
      if (now_seconds() > end)
        user_error(
            "checkpoint.directory: {} of {} is not rank 0's folder; set a folder of a file system that all "
            "hosts share, "
            "and start all ranks in the same working directory",
            fs::absolute(config_.checkpoint.directory).string(), host_name());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
}

// All ranks write checkpoints, so each checks that it can.
std::unique_ptr<checkpoint::Saver> Trainer::make_saver() {
  const config::CheckpointConfig& options = config_.checkpoint;
  std::unique_ptr<checkpoint::Saver> saver;
  // One number for all ranks, so that they decide alike.
  const int64_t free_host_bytes = world_.min_i64(available_host_bytes());
  world_.run_collectively([&] {
    saver = std::make_unique<checkpoint::Saver>(
        context_,
        checkpoint::SaverOptions{.directory = options.directory,
                                 .config = config::to_yaml(config_),
                                 .datasets = datasets_,
                                 .base = base_,
                                 .keep = options.keep,
                                 .optimizer = options.save_optimizer,
                                 .background = options.async && saves_periodically()},
        runner_.training_state(),
        checkpoint::Job{.who = {world_.rank(), world_.size()},
                        .host_ranks = world_.local_size(),
                        .free_host_bytes = free_host_bytes,
                        .barrier = [this] { world_.barrier(); },
                        .timeout_seconds = config_.parallel.timeout_seconds});
    if (saves()) saver->check_limits();
  });
  return saver;
}

void Trainer::prepare_folders(StartPoint& start, const Record& record) {
  const config::CheckpointConfig& options = config_.checkpoint;
  world_.run_collectively([&] {
    if (!world_.leader()) return;
    if (saves()) {
      check_base_is_elsewhere();
      keep_tokenizer(config_.data.tokenizer, options.directory,
                     {start.adapter, start.weights, options.init_from});
    }
    if (overwrite_) folder_->remove_earlier_run({start.weights, start.adapter});
    if (options.resume == "auto" && !start.checkpoint.empty()) folder_->warn_of_other_run();
    if (start.progress.step == 0) folder_->rotate_logs();
    folder_->make_latest(start.checkpoint);
    folder_->truncate_logs(start.progress.step,
                           std::max(config_.logging.every, logged_every(start.checkpoint)));
    folder_->warn_of_later_checkpoints(start.progress.step, options.keep);
    if (record) record({contents(start), start.moments ? 0 : start.progress.step});
  });
}

// Saving would replace the base's steps, and checkpoint.keep would delete it.
void Trainer::check_base_is_elsewhere() const {
  if (!base_) return;
  std::vector<std::filesystem::path> bases = {base_->path};
  if (!convert::is_foreign_model(base_->path)) {
    const std::vector<std::filesystem::path> more = convert::bases_of(checkpoint::Reader(base_->path));
    bases.insert(bases.end(), more.begin(), more.end());
  }
  for (const std::filesystem::path& base : bases) {
    if (checkpoint::step_of(base.filename().string()) < 0) continue;
    std::error_code error;
    if (std::filesystem::equivalent(base.parent_path(), config_.checkpoint.directory, error) && !error)
      user_error(
          "checkpoint.directory ({}): contains the base of this run's adapter, {}, which its checkpoints "
          "would "
          "replace; choose another directory (logging.directory, checkpoint.directory)",
          config_.checkpoint.directory, base.string());
  }
}

std::map<std::string, std::string> Trainer::contents(const StartPoint& start) const {
  std::map<std::string, std::string> found;
  for (const checkpoint::Dataset& dataset : datasets_) found[dataset.prefix] = content_of(dataset);
  for (const auto& [path, hash] : start.hashes) found[path] = fmt::format("xxh3:{:016x}", hash);
  return found;
}

// The leader writes the metrics that need the rates. Measuring needs memory, so it precedes the allocation.
void Trainer::find_gpu() {
  if (!context_.is_cuda()) return;
  const std::string name = context_.info().name;
  if (const GpuModel* const known = gpu_model(name)) {
    gpu_ = *known;
    return;
  }
  world_.run_collectively([&] {
    if (!world_.leader()) return;
    gpu_ = measured_rates(context_);
    if (!gpu_) return;
    log_info("rates of {}, measured: {:.0f} TFLOP/s in BF16,{} {:.2f} TB/s of memory", name,
             gpu_->bf16 / 1e12, gpu_->fp8 > 0 ? fmt::format(" {:.0f} in FP8,", gpu_->fp8 / 1e12) : "",
             gpu_->memory / 1e12);
  });
}

// Page-locking much host memory takes some time, so it is reported.
void Trainer::allocate() {
  const double before = now_seconds();
  runner_.allocate();
  if (context_.is_cuda() && plan().total_host_bytes() > 0)
    log_info("optimizer.offload: {} of host memory page-locked in {:.1f} s",
             human_bytes(plan().total_host_bytes()), now_seconds() - before);
}

// As the loop that took the last step judged.
Outcome Trainer::end_of(checkpoint::Progress& progress) const {
  const std::string last = diverged_steps(progress.faults, LossSpikes(config_, progress.spikes));
  if (last.empty()) return Outcome::finished;
  log_warning("{}: the run has probably diverged", last);
  return Outcome::diverged;
}

Outcome Trainer::run(Requests& requests, const Record& record) {
  open_data();
  lock_folders();
  world_.run_collectively([&] {
    const std::string shortage = memory_shortage(plan(), config_, context_, runner_.groups().data().size(),
                                                 free_memory(context_, world_.local_size()),
                                                 config_.guard.every > 0 ? state_copy_bytes(runner_) : 0);
    if (!shortage.empty()) user_error("{}", shortage);
  });
  find_gpu();
  allocate();
  if (sample_maker_) sample_maker_->bind(runner_.model().parameters());
  if (evaluator_) evaluator_->bind(runner_.model().parameters());
  base_ = find_base(config_, world_);
  std::unique_ptr<checkpoint::Saver> saver = make_saver();
  StartPoint start = Startup(config_, context_, world_, runner_, base_).run();
  world_.run_collectively([&] {
    if (world_.leader() && !start.checkpoint.empty())
      check_same_data(start.checkpoint.string(), start.datasets, datasets_, config_.data.check);
  });
  const int64_t samples = batches_->validation_sets() > 0 ? batches_->validation_samples(0) : 0;
  best_checkpoints_.resume(start.progress.validation, deciding_samples(config_, samples, datasets_), world_);
  const checkpoint::Progress& progress = start.progress;
  checkpoint_manager_.emplace(std::move(saver), world_, start.checkpoint, progress.checkpoints);
  if (progress.step >= config_.training.train_steps) {
    log_info("nothing to do: the checkpoint is at step {} of {}", progress.step,
             config_.training.train_steps);
    return end_of(start.progress);
  }
  if (best_checkpoints_.exhausted(progress.validation)) {
    log_info(
        "nothing to do: the run stopped early after step {}: {}; increase training.early_stopping_patience "
        "to continue",
        progress.step, best_checkpoints_.describe(progress.validation));
    return end_of(start.progress);
  }
  prepare_folders(start, record);
  return TrainingLoop({.config = config_,
                       .context = context_,
                       .world = world_,
                       .runner = runner_,
                       .base = base_,
                       .batches = *batches_,
                       .reader = *reader_,
                       .checkpoint_manager = *checkpoint_manager_,
                       .best_checkpoints = best_checkpoints_,
                       .gpu = gpu_ ? &*gpu_ : nullptr,
                       .folder = folder_ ? &*folder_ : nullptr,
                       .samples = sample_maker_.get(),
                       .tasks = evaluator_.get()},
                      start)
      .run(requests);
}

}  // namespace te::train
