#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "parallel/watchdog.h"
#include "train/flops.h"
#include "train/fp8_health.h"
#include "train/kept_tokenizer.h"
#include "train/memory_verdict.h"
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
      runner_(config, context, groups) {}

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
                     .eval_microbatches = training.eval_interval > 0 ? training.eval_microbatches : 0});
    if (world_.leader())
      check_tokenizer(config_.data.tokenizer, config_.model.vocab_size, config_.checkpoint.directory);
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
                                 .background = options.async && options.save_every > 0},
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
}

void Trainer::calibrate() {
  const config::PrecisionConfig& precision = config_.precision;
  if (!runner_.model().recipe().starts_from_history() || precision.fp8_calibration_passes == 0) return;
  read_batch(0, host_batches_[0]);
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
  prepare_folders(start, record);
  if (start.checkpoint.empty()) calibrate();
  return loop(requests);
}

// --- one step ----------------------------------------------------------------------------------------------

void Trainer::read_batch(int64_t first_sample, HostBatch& batch) const {
  const int64_t counted =
      batches_->read(first_sample + runner_.first_local_sample(), runner_.local_samples(), batch);
  batch.counted = world_.sum_i64(counted, runner_.groups().data().world_ranks());
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
  skipped_in_a_row_ = status.skipped != 0 ? skipped_in_a_row_ + 1 : 0;
  skipped_total_ += status.skipped != 0 ? 1 : 0;
  if (status.skipped == 0) saves_->step_was_finite();

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
  metrics.skipped_total = skipped_total_;
  return metrics;
}

// The flags are read once a step, so that no signal can end the loop unsaved.
Trainer::Ask Trainer::agree(Requests& requests) {
  const Ask own = requests.stop != 0 ? Ask::stop : requests.save != 0 ? Ask::save : Ask::nothing;
  const auto all = static_cast<Ask>(world_.max_i64(static_cast<int64_t>(own)));
  if (all != Ask::nothing) requests.save = 0;
  return all;
}

// --- the loop ----------------------------------------------------------------------------------------------

Outcome Trainer::loop(Requests& requests) {
  const config::TrainingConfig& training = config_.training;
  const config::LoggingConfig& logging = config_.logging;
  const int64_t first_step = progress_.step;
  std::optional<MetricsWriter> writer;
  world_.together([&] {
    if (!world_.leader()) return;
    writer.emplace(MetricsOptions{.directory = logging.directory,
                                  .csv = logging.csv,
                                  .jsonl = logging.jsonl,
                                  .train_steps = training.train_steps,
                                  .show_tflops = context_.is_cuda(),
                                  .fp8 = config_.precision.fp8 != config::Fp8Mode::off});
  });
  Fp8HealthReader fp8_health(context_, runner_.model().recipe().table());
  read_batch(progress_.consumed_samples, host_batches_[0]);

  const double loop_start = now_seconds();
  double in_steps = 0;  // without validation, logs and checkpoints
  bool stopping = agree(requests) == Ask::stop;
  while (progress_.step < training.train_steps && !stopping) {
    const int64_t step = progress_.step + 1;
    const bool last = step == training.train_steps, first = step == first_step + 1;
    const HostBatch& batch = host_batches_[(step - first_step - 1) % 2];
    HostBatch& next = host_batches_[(step - first_step) % 2];
    const bool log = step % logging.every == 0 || first || last;
    const bool fp8_stats =
        log && logging.fp8_stats_every > 0 && (step % logging.fp8_stats_every == 0 || first || last);

    // The step; while the device works on it, the next step's samples are read.
    const double start = now_seconds();
    runner_.launch(batch, step, progress_.consumed_samples, fp8_stats);
    if (fp8_stats) fp8_health.fetch();
    if (!last) read_batch(progress_.consumed_samples + training.global_batch_size, next);
    wait_for_device(step);
    const double seconds = now_seconds() - start;
    in_steps += seconds;
    StepMetrics metrics = finish_step(batch, seconds);
    saves_->poll();

    // Validation and logs.
    const bool evaluate = batches_->validates() && (step % training.eval_interval == 0 || last);
    if (evaluate) metrics.valid_loss = validation_loss(runner_, *batches_, training.micro_batch_size, world_);
    if (log || evaluate || metrics.skipped) {
      const double per_step = (now_seconds() - loop_start) / static_cast<double>(step - first_step);
      const std::vector<Fp8Health> health =
          fp8_stats ? merge_fp8_health(world_, fp8_health.read()) : std::vector<Fp8Health>{};
      if (writer) writer->step(metrics, health, per_step * static_cast<double>(training.train_steps - step));
    }
    if (skipped_in_a_row_ >= training.max_nonfinite_steps) return stop_diverged();

    // Checkpoints. A skipped step saves none on its way: if the weights are the reason, `latest` would move
    // farther from the last good one.
    const Ask ask = agree(requests);
    stopping = ask == Ask::stop;
    const bool due =
        ask == Ask::save || (config_.checkpoint.save_every > 0 && step % config_.checkpoint.save_every == 0);
    if ((due && !metrics.skipped) || (last && config_.checkpoint.save_last) || (stopping && !last))
      saves_->save(progress_, stopping);
  }
  saves_->finish();
  return report(first_step, in_steps, now_seconds() - loop_start);
}

Outcome Trainer::stop_diverged() {
  saves_->wait();
  spdlog::error(
      "stopped: loss or gradient was not finite in {} steps in a row (training.max_nonfinite_steps); {}",
      skipped_in_a_row_,
      saves_->good().empty() ? "no good checkpoint was saved"
                             : "the last good checkpoint is " + saves_->good().string());
  return Outcome::diverged;
}

Outcome Trainer::report(int64_t first_step, double in_steps, double in_loop) const {
  const config::TrainingConfig& training = config_.training;
  const int64_t steps = progress_.step - first_step;
  spdlog::info("{} steps in {} ({} with validation, logs and checkpoints), {:.0f} tokens/s on average", steps,
               human_time(in_steps), human_time(in_loop),
               static_cast<double>(steps * training.global_batch_size * config_.model.seq_length) /
                   std::max(in_steps, 1e-9));
  if (progress_.step >= training.train_steps) return Outcome::finished;
  spdlog::warn(
      "interrupted after step {}; {}", progress_.step,
      saves_->newest().empty() ? "nothing was trained" : "the checkpoint is " + saves_->newest().string());
  return Outcome::interrupted;
}

}  // namespace te::train
