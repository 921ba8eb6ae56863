#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "parallel/watchdog.h"
#include "train/data_check.h"
#include "train/flops.h"
#include "train/fp8_health.h"
#include "train/kept_tokenizer.h"
#include "train/memory_verdict.h"
#include "train/remaining_time.h"
#include "train/validation.h"

namespace te::train {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Trainer::Trainer(const config::Config& config, Context& context, parallel::World& world,
                 const parallel::Groups& groups, bool overwrite)
    : config_(config),
      context_(context),
      world_(world),
      overwrite_(overwrite),
      runner_(config, context, groups),
      // Guessing costs the logarithm of the vocabulary.
      spikes_(config.training.loss_spike_threshold,
              2 * std::log(static_cast<double>(config.model.vocab_size))),
      best_(config) {}

void Trainer::make_samples_with(std::unique_ptr<SampleMaker> maker) {
  sample_maker_ = std::move(maker);
  sample_maker_->plan(runner_.plan());
}

// --- before the first step ---------------------------------------------------------------------------------

void Trainer::open_data() {
  const config::TrainingConfig& training = config_.training;
  world_.together([&] {
    batches_ = std::make_unique<Batches>(
        BatchOptions{.data = config_.data,
                     .seq_length = config_.model.seq_length,
                     .vocab_size = config_.model.vocab_size,
                     .seed = training.seed,
                     .micro_batch_size = training.micro_batch_size,
                     .eval_microbatches = training.eval_interval > 0 ? training.eval_microbatches : 0,
                     .context_rank = runner_.split().rank(),
                     .context_ranks = runner_.split().ranks()});
    if (world_.leader()) check_data(config_);
  });
}

// Before memory is allocated: mistakes shall show at once.
void Trainer::take_folders() {
  world_.together([&] {
    if (!world_.leader()) return;
    folder_.emplace(RunFolderOptions{.logs = config_.logging.directory,
                                     .csv = config_.logging.csv,
                                     .jsonl = config_.logging.jsonl,
                                     .checkpoints = config_.checkpoint.directory,
                                     .saves = saves()});
    if (config_.checkpoint.resume == "never" && !overwrite_) folder_->refuse_earlier_run();
  });
}

// All ranks write checkpoints, so all see to it that they can.
std::unique_ptr<checkpoint::Saver> Trainer::make_saver() {
  const config::CheckpointConfig& options = config_.checkpoint;
  std::unique_ptr<checkpoint::Saver> saver;
  world_.together([&] {
    saver = std::make_unique<checkpoint::Saver>(
        context_,
        checkpoint::SaverOptions{.directory = options.directory,
                                 .config = config::to_yaml(config_),
                                 .keep = options.keep,
                                 .optimizer = options.save_optimizer,
                                 .background = options.async && saves_on_its_way()},
        training_state(runner_),
        checkpoint::Job{.who = {world_.rank(), world_.size()},
                        .host_ranks = world_.local_size(),
                        .barrier = [this] { world_.barrier(); },
                        .timeout_seconds = config_.parallel.timeout_seconds});
    if (saves()) saver->check_limits();
  });
  return saver;
}

void Trainer::prepare_folders(const StartPoint& start, const std::function<void()>& record) {
  const config::CheckpointConfig& options = config_.checkpoint;
  world_.together([&] {
    if (!world_.leader()) return;
    if (saves()) {
      keep_tokenizer(config_.data.tokenizer, options.directory, {start.weights, options.init_from});
    }
    if (overwrite_) folder_->remove_earlier_run(start.weights);
    if (progress_.step == 0) folder_->set_logs_aside();
    folder_->cut_logs(progress_.step);
    folder_->warn_of_later_checkpoints(progress_.step, options.keep);
    if (record) record();
  });
  best_.resume(progress_.validation, world_);
}

void Trainer::calibrate() {
  const config::PrecisionConfig& precision = config_.precision;
  if (!runner_.model().recipe().starts_from_history() || precision.fp8_calibration_passes == 0) return;
  read_batch(0, host_batches_[0]);
  give_up();
  train::calibrate(runner_, *batches_, config_.training.micro_batch_size, precision.fp8_calibration_passes,
                   host_batches_[0].counted);
}

Outcome Trainer::run(Requests& requests, const std::function<void()>& record) {
  open_data();
  take_folders();
  world_.together([&] {
    const std::string shortage =
        memory_shortage(plan(), config_, context_, free_memory(context_, world_.local_size()));
    if (!shortage.empty()) user_error("{}", shortage);
  });
  runner_.allocate();
  if (sample_maker_) sample_maker_->bind(runner_.model().parameters());
  for (HostBatch& batch : host_batches_) batch = runner_.make_host_batch();
  std::unique_ptr<checkpoint::Saver> saver = make_saver();
  const StartPoint start = Startup(config_, context_, world_, runner_).run();
  progress_ = start.progress;
  saves_.emplace(std::move(saver), world_, start.checkpoint);
  if (progress_.step >= config_.training.train_steps) {
    spdlog::info("nothing to do: the checkpoint is at step {} of {}", progress_.step,
                 config_.training.train_steps);
    return Outcome::finished;
  }
  if (best_.exhausted(progress_.validation)) {
    spdlog::info("nothing to do: the run stopped early after step {}: {}; a larger patience goes on",
                 progress_.step, best_.describe(progress_.validation));
    return Outcome::finished;
  }
  prepare_folders(start, record);
  if (start.checkpoint.empty()) calibrate();
  return loop(requests);
}

// --- one step ----------------------------------------------------------------------------------------------

void Trainer::read_batch(int64_t first_sample, HostBatch& batch) {
  int64_t counted = 0;
  try {
    counted = batches_->read(first_sample + runner_.first_local_sample(), runner_.local_samples(), batch);
  } catch (const UserError& error) {
    bad_data_ = error.what();
  }
  batch.counted = world_.sum_i64(counted, runner_.groups().data().world_ranks());
}

// Only some of the ranks may have read what is wrong.
void Trainer::give_up() {
  world_.together([&] {
    if (!bad_data_.empty()) user_error("{}", bad_data_);
  });
}

// A rank that does not come is missed here, on a GPU; on the CPU, in the operation that needs it.
void Trainer::wait_for_device(int64_t step) {
  const parallel::Watchdog::Guard guard(context_, fmt::format("step {}", step));
  context_.synchronize();
}

// What the host learns from a finished step; advances progress_.
StepMetrics Trainer::finish_step(const HostBatch& batch, double seconds) {
  optim::Optimizer& optimizer = runner_.optimizer();
  const optim::StepStatus status = optimizer.status();
  const int64_t samples = config_.training.global_batch_size, seq = config_.model.seq_length;
  optimizer.finish_step(status.skipped != 0);
  progress_.step += 1;
  progress_.updates = optimizer.updates();
  progress_.consumed_samples += samples;

  StepMetrics metrics;
  metrics.step = progress_.step;
  metrics.consumed_samples = progress_.consumed_samples;
  metrics.consumed_tokens = progress_.consumed_samples * seq;
  metrics.loss =
      static_cast<double>(status.loss_sum) / static_cast<double>(std::max<int64_t>(1, batch.counted));
  metrics.grad_norm = status.grad_norm;
  metrics.lr = optimizer.schedule().at(progress_.step);
  metrics.seconds = seconds;
  metrics.tokens_per_s = static_cast<double>(samples * seq) / seconds;
  metrics.tflops = flops_per_token(config_.model) * metrics.tokens_per_s / 1e12 / world_.size();
  metrics.skipped = status.skipped != 0;
  look_for_spike(metrics);
  const bool lost = metrics.skipped && !metrics.spike;
  skipped_in_a_row_ = lost ? skipped_in_a_row_ + 1 : 0;
  skipped_total_ += metrics.skipped ? 1 : 0;
  metrics.skipped_total = skipped_total_;
  if (!metrics.skipped && spikes_.calm()) saves_->step_was_good();
  return metrics;
}

// The same on all ranks: they have the same loss, bit for bit.
void Trainer::look_for_spike(StepMetrics& metrics) {
  if (config_.training.loss_spikes == config::LossSpikes::off) return;
  if (!std::isfinite(metrics.loss) || !std::isfinite(metrics.grad_norm)) return;
  const double limit = spikes_.limit(), median = spikes_.median();
  // What the device has skipped is a spike, though its limit was rounded.
  metrics.spike = spikes_.add(metrics.loss) || metrics.skipped;
  metrics.spikes_total = spikes_.total();
  metrics.rollbacks_total = rollbacks_;
  if (!metrics.spike || spikes_.in_a_row() > 1) return;
  spdlog::warn("loss spike in step {}: {:.4f} is above {:.4f} ({}; training.loss_spikes: {})", metrics.step,
               metrics.loss, limit,
               median > 0 ? fmt::format("the median was {:.4f}", median) : "twice that of guessing",
               to_string(config_.training.loss_spikes));
}

// The samples since the checkpoint are left out: progress_.consumed_samples stays.
void Trainer::roll_back() {
  saves_->wait();
  runner_.optimizer().gatherer().wait_all(context_);
  wait_for_device(progress_.step);
  const checkpoint::Progress spiked = progress_;
  const StartPoint point = Startup(config_, context_, world_, runner_).go_back(saves_->good());
  saves_->go_back_to_good();
  progress_ = point.progress;
  progress_.consumed_samples = spiked.consumed_samples;
  spikes_.forget(spiked.step - progress_.step);
  best_.resume(progress_.validation, world_);
  if (sources_) sources_->clear();
  if (guard_) guard_->forget(progress_);
  world_.together([&] {
    if (world_.leader()) folder_->cut_logs(progress_.step);
  });
  spdlog::warn("rolled back from step {} to {}; the samples since then are left out ({} rollbacks so far)",
               spiked.step, point.checkpoint.string(), rollbacks_);
}

void Trainer::make_guard() {
  if (config_.guard.every == 0) return;
  guard_.emplace(
      config_, context_, runner_,
      Guard::Services{.read = [this](int64_t first, HostBatch& batch) { read_batch(first, batch); },
                      .wait = [this](int64_t step) { wait_for_device(step); },
                      .validate = [this]() -> std::optional<double> {
                        return deciding_loss(
                            config_, validation_losses(runner_, *batches_, config_.training.micro_batch_size,
                                                       world_, bad_data_));
                      }});
}

// Checkpoints of the steps that are taken again are written again.
void Trainer::go_back_to(const checkpoint::Progress& start) {
  saves_->wait();
  spikes_.forget(progress_.step - start.step);
  progress_ = start;
  best_.resume(progress_.validation, world_);
  if (sources_) sources_->clear();
  world_.together([&] {
    if (world_.leader()) folder_->cut_logs(progress_.step);
  });
}

void Trainer::evaluate(StepMetrics& metrics) {
  metrics.valid = validation_losses(runner_, *batches_, config_.training.micro_batch_size, world_, bad_data_);
  metrics.valid_loss = deciding_loss(config_, metrics.valid);
  if (metrics.valid_loss) best_.evaluated(progress_.validation, *metrics.valid_loss);
}

// Of a skipped step the losses may be no numbers.
void Trainer::add_source_losses(const HostBatch& batch, int64_t first_sample, const StepMetrics& metrics) {
  const parallel::Coordinates& at = runner_.groups().at();
  if (!sources_ || metrics.skipped || at.tensor != 0 || !runner_.groups().last_stage()) return;
  sources_->add(batches_->sources_of(first_sample + runner_.first_local_sample(), runner_.local_samples()),
                runner_.sample_losses(), batch.targets.as<const int32_t>(), runner_.split().local());
}

// One replica of the model does it; the others wait for it in the next step.
void Trainer::make_samples(int64_t step) {
  runner_.optimizer().gatherer().wait_all(context_);
  wait_for_device(step);
  if (runner_.groups().data().rank() != 0) return;
  const std::vector<Sample> samples = sample_maker_->make();
  if (sample_log_) sample_log_->write(step, samples);
}

Fp8Statistics Trainer::observe(const HostBatch& batch) {
  return merge_fp8_statistics(world_, runner_.observe(batch, progress_.consumed_samples));
}

void Trainer::log_statistics(const Fp8Statistics& statistics, StepMetrics& metrics, MetricsWriter* writer) {
  metrics.fp8_statistics = summary(statistics);
  if (!world_.leader()) return;
  const nlohmann::json record = to_json(metrics.step, statistics);
  if (statistics_log_) statistics_log_->write(record);
  if (writer != nullptr) writer->fp8_statistics(record);
  spdlog::info("step {}: {}", metrics.step, describe(statistics));
}

bool Trainer::save(const StepMetrics& metrics, bool anyway, bool whole) {
  const bool best = metrics.valid_loss && !metrics.skipped && !metrics.spike &&
                    best_.among_best(progress_.validation, *metrics.valid_loss);
  if (best) {
    const std::vector<int64_t> drop =
        best_.add(progress_.validation, metrics.step, *metrics.valid_loss, !anyway);
    saves_->save_best(progress_, whole, *metrics.valid_loss, drop);
  } else if (anyway) {
    saves_->save(progress_, whole);
  }
  return best || anyway;
}

// The flags are read once a step, so that no signal can end the loop unsaved.
Trainer::Ask Trainer::agree(Requests& requests) {
  Ask own = requests.stop != 0 ? Ask::stop : requests.save != 0 ? Ask::save : Ask::nothing;
  if (!bad_data_.empty()) own = Ask::give_up;
  const auto all = static_cast<Ask>(world_.max_i64(static_cast<int64_t>(own)));
  if (all != Ask::nothing) requests.save = 0;
  return all;
}

// --- the loop ----------------------------------------------------------------------------------------------

std::unique_ptr<MetricsWriter> Trainer::make_writer() {
  const config::LoggingConfig& logging = config_.logging;
  std::unique_ptr<MetricsWriter> writer;
  std::vector<std::string> sets;
  for (const config::ValidationSet& set : config_.data.valid) sets.push_back(set.name);
  if (sets == std::vector<std::string>{config::ValidationSet{}.name} || batches_->validation_sets() == 0)
    sets.clear();
  world_.together([&] {
    if (!world_.leader()) return;
    writer =
        std::make_unique<MetricsWriter>(MetricsOptions{.directory = logging.directory,
                                                       .csv = logging.csv,
                                                       .jsonl = logging.jsonl,
                                                       .tensorboard = logging.tensorboard,
                                                       .first_step = progress_.step + 1,
                                                       .config = config::to_yaml(config_),
                                                       .valid_sets = sets,
                                                       .train_steps = config_.training.train_steps,
                                                       .show_tflops = context_.is_cuda(),
                                                       .fp8 = config_.precision.fp8 != config::Fp8Mode::off});
    if (sample_maker_) sample_log_.emplace(logging.directory);
    if (logging.fp8_statistics_every > 0) statistics_log_.emplace(logging.directory);
  });
  return writer;
}

Outcome Trainer::loop(Requests& requests) {
  const config::TrainingConfig& training = config_.training;
  const config::LoggingConfig& logging = config_.logging;
  const int64_t first_step = progress_.step;
  const bool skip_spikes = training.loss_spikes == config::LossSpikes::skip;
  const std::unique_ptr<MetricsWriter> writer = make_writer();
  if (!runner_.sample_losses().empty()) sources_.emplace(batches_->training_sources());
  make_guard();
  Fp8HealthReader fp8_health(context_, runner_.model().recipe().table());
  read_batch(progress_.consumed_samples, host_batches_[0]);
  give_up();

  RemainingTime remaining({.train_steps = training.train_steps,
                           .eval_interval = batches_->validation_sets() > 0 ? training.eval_interval : 0,
                           .save_every = config_.checkpoint.save_every});
  const double loop_start = now_seconds();
  double in_steps = 0;  // without validation, logs and checkpoints
  int64_t steps = 0;    // taken here, those that were rolled back included
  bool stopping = agree(requests) == Ask::stop;
  while (progress_.step < training.train_steps && !stopping && !best_.exhausted(progress_.validation)) {
    const int64_t step = progress_.step + 1;
    const bool last = step == training.train_steps, first = step == first_step + 1;
    const HostBatch& batch = host_batches_[steps % 2];
    HostBatch& next = host_batches_[++steps % 2];
    const bool log = step % logging.every == 0 || first || last;
    const bool fp8_stats =
        log && logging.fp8_stats_every > 0 && (step % logging.fp8_stats_every == 0 || first || last);

    // The step; while the device works on it, the next step's samples are read.
    if (guard_) guard_->before_step(progress_);
    const bool observes = logging.fp8_statistics_every > 0 &&
                          (step % logging.fp8_statistics_every == 0 || last) &&
                          !runner_.model().recipe().high_precision();
    std::optional<Fp8Statistics> statistics;
    if (observes) statistics = observe(batch);
    const double start = now_seconds();
    runner_.launch(batch, step, progress_.consumed_samples, fp8_stats,
                   skip_spikes ? spikes_.limit() : std::numeric_limits<double>::infinity());
    if (fp8_stats) fp8_health.fetch();
    if (!last) read_batch(progress_.consumed_samples + training.global_batch_size, next);
    wait_for_device(step);
    const double seconds = now_seconds() - start;
    in_steps += seconds;
    remaining.step(seconds);
    const int64_t first_sample = progress_.consumed_samples;
    StepMetrics metrics = finish_step(batch, seconds);
    add_source_losses(batch, first_sample, metrics);
    const Guard::Verdict verdict =
        guard_ ? guard_->after_step(progress_, metrics.loss) : Guard::Verdict::none;
    if (guard_) metrics.guard = guard_->record();
    if (statistics) log_statistics(*statistics, metrics, writer.get());
    saves_->poll();

    // Validation and logs.
    const bool evaluates = batches_->validation_sets() > 0 && (step % training.eval_interval == 0 || last);
    if (evaluates) {
      const double before = now_seconds();
      evaluate(metrics);
      remaining.validation(now_seconds() - before);
    }
    if (log || evaluates || statistics || !metrics.guard.empty() || metrics.skipped || metrics.spike) {
      if (sources_) metrics.sources = sources_->take(world_);
      const std::vector<Fp8Health> health =
          fp8_stats ? merge_fp8_health(world_, fp8_health.read()) : std::vector<Fp8Health>{};
      if (writer) writer->step(metrics, health, remaining.after(step));
    }
    if (verdict == Guard::Verdict::roll_back) {
      go_back_to(guard_->start());
      if (writer) writer->start_at(progress_.step + 1);
      read_batch(progress_.consumed_samples, next);
      give_up();
      continue;
    }
    if (sample_maker_ && (step % logging.generate_every == 0 || last)) make_samples(step);
    if (skipped_in_a_row_ >= training.max_nonfinite_steps) {
      return stop_diverged(
          fmt::format("loss or gradient was not finite in {} steps in a row (training.max_nonfinite_steps)",
                      skipped_in_a_row_));
    }
    if (skip_spikes && spikes_.lost()) {
      return stop_diverged(
          fmt::format("{} loss spikes in a row, each worse than guessing (training.loss_spikes: skip)",
                      spikes_.in_a_row()));
    }
    if (metrics.spike && training.loss_spikes == config::LossSpikes::rollback && !saves_->good().empty()) {
      if (++rollbacks_ > training.max_nonfinite_steps)
        return stop_diverged(
            fmt::format("a loss spike after {} rollbacks (training.max_nonfinite_steps)", rollbacks_ - 1));
      roll_back();
      if (writer) writer->start_at(progress_.step + 1);
      read_batch(progress_.consumed_samples, next);
      give_up();
      continue;
    }

    // Checkpoints. A skipped step saves none on its way: if the weights are the reason, `latest` would move
    // farther from the last good one.
    const Ask ask = agree(requests);
    stopping = ask == Ask::stop || ask == Ask::give_up;
    const bool due =
        ask == Ask::save || (config_.checkpoint.save_every > 0 && step % config_.checkpoint.save_every == 0);
    const bool end = last || best_.exhausted(progress_.validation);
    const double before_save = now_seconds();
    if (save(metrics,
             (due && !metrics.skipped) || (end && config_.checkpoint.save_last) || (stopping && !end),
             stopping))
      remaining.save(now_seconds() - before_save);
  }
  saves_->finish();
  give_up();
  return report(steps, in_steps, now_seconds() - loop_start);
}

Outcome Trainer::stop_diverged(const std::string& why) {
  saves_->wait();
  spdlog::error("stopped: {}; {}", why,
                saves_->good().empty() ? "no good checkpoint was saved"
                                       : "the last good checkpoint is " + saves_->good().string());
  return Outcome::diverged;
}

Outcome Trainer::report(int64_t steps, double in_steps, double in_loop) const {
  const config::TrainingConfig& training = config_.training;
  spdlog::info("{} steps in {} ({} with validation, logs and checkpoints), {:.0f} tokens/s on average", steps,
               human_time(in_steps), human_time(in_loop),
               static_cast<double>(steps * training.global_batch_size * config_.model.seq_length) /
                   std::max(in_steps, 1e-9));
  if (spikes_.total() > 0) {
    spdlog::warn("{} steps had a loss spike{}; {}", spikes_.total(),
                 spikes_.in_a_row() > 0 ? ", the last one too: the run has probably diverged" : "",
                 saves_->good().empty() ? "no checkpoint was saved and trained on without one"
                                        : "the last good checkpoint is " + saves_->good().string());
  }
  if (progress_.step >= training.train_steps) return Outcome::finished;
  if (best_.exhausted(progress_.validation)) {
    spdlog::info("stopped early after step {}: {}", progress_.step, best_.describe(progress_.validation));
    return Outcome::finished;
  }
  spdlog::warn(
      "interrupted after step {}; {}", progress_.step,
      saves_->newest().empty() ? "nothing was trained" : "the checkpoint is " + saves_->newest().string());
  return Outcome::interrupted;
}

}  // namespace te::train
