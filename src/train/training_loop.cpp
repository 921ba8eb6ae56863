#include "train/training_loop.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/clock.h"
#include "core/log.h"
#include "core/strings.h"
#include "parallel/watchdog.h"
#include "train/flops.h"
#include "train/validation.h"

namespace te::train {

TrainingLoop::TrainingLoop(const LoopParts& parts, const StartPoint& start)
    : config_(parts.config),
      context_(parts.context),
      world_(parts.world),
      runner_(parts.runner),
      base_(parts.base),
      batches_(parts.batches),
      reader_(parts.reader),
      checkpoint_manager_(parts.checkpoint_manager),
      best_checkpoints_(parts.best_checkpoints),
      folder_(parts.folder),
      sample_maker_(parts.samples),
      evaluator_(parts.tasks),
      progress_(start.progress),
      scales_(start.scales),
      precision_(config_.precision, config_.guard.every > 0, context_, runner_, world_),
      scaler_(config_.precision),
      first_step_(progress_.step + 1),
      gpu_(parts.gpu),
      token_flops_(flops_per_token(config_)),
      speed_of_light_(speed_of_light(config_, gpu_, world_.size())),
      host_batches_{runner_.make_host_batch(), runner_.make_host_batch()},
      spikes_(config_, progress_.spikes),
      fp8_health_(context_, runner_.model().recipe().table()),
      routing_(context_, runner_.model().routing(), runner_.model().parameters()),
      remaining_({.train_steps = config_.training.train_steps,
                  .eval_interval = batches_.validation_sets() > 0 ? config_.training.eval_interval : 0,
                  .save_every = config_.checkpoint.save_every,
                  .task_interval = evaluator_ != nullptr ? config_.evaluation.every : 0}) {
  progress_.loss_scale = scaler_.start(progress_.loss_scale);
  warn_about_missing_state(!start.checkpoint.empty());
}

Outcome TrainingLoop::run(Requests& requests) {
  start();
  const double before = now_seconds();
  // A request to save waits for the first step.
  bool stopping = world_.max_i64(requests.stop != 0 ? 1 : 0) != 0;
  while (progress_.step < config_.training.train_steps && !stopping &&
         !best_checkpoints_.exhausted(progress_.validation)) {
    const Due due = next_step();
    StepMetrics metrics = run_step(due);
    // A guard that rolls back has already restored other weights.
    const bool kept = verdict_ != Guard::Verdict::roll_back, evaluated = kept && evaluate(due, metrics),
               tasks_evaluated = kept && evaluate_tasks(due, metrics);
    if (evaluated || tasks_evaluated || due.log || due.fp8_statistics || !metrics.guard.empty() ||
        metrics.skipped || metrics.spike)
      write_logs(due, metrics);
    switch (decide(metrics)) {
      case StepDecision::diverged:
        return Outcome::diverged;
      case StepDecision::rolled_back:
        continue;
      case StepDecision::proceed:
        break;
    }
    stopping = checkpoint(due, metrics, requests);
    if (sample_maker_ != nullptr && (due.step % config_.logging.generate_every == 0 || ends(due)))
      make_samples(due.step);
  }
  checkpoint_manager_.finish();
  reader_.throw_pending_data_error();
  return report(now_seconds() - before);
}

// --- before the first step ---------------------------------------------------------------------------------

void TrainingLoop::start() {
  open_logs();
  if (!runner_.sample_losses().empty()) sources_.emplace(batches_.training_sources());
  make_guard();
  reader_.read(progress_.consumed_samples, next_batch());
  reader_.throw_pending_data_error();
}

void TrainingLoop::open_logs() {
  const config::LoggingConfig& logging = config_.logging;
  std::vector<std::string> sets;
  for (const config::ValidationSet& set : config_.data.valid) sets.push_back(set.name);
  if (sets == std::vector<std::string>{config::ValidationSet{}.name} || batches_.validation_sets() == 0)
    sets.clear();
  world_.run_collectively([&] {
    if (!world_.leader()) return;
    writer_ = std::make_unique<MetricsWriter>(
        MetricsOptions{.directory = logging.directory,
                       .tensorboard = logging.tensorboard,
                       .first_step = first_step_,
                       .config = config::to_yaml(config_),
                       .valid_sets = sets,
                       .tasks = evaluator_ != nullptr ? evaluator_->names() : std::vector<TaskResult>{},
                       .train_steps = config_.training.train_steps,
                       .show_tflops = context_.is_cuda(),
                       .bf16_peak = gpu_ != nullptr ? gpu_->bf16 : 0.0,
                       .fp8 = config_.precision.fp8 != config::Fp8Mode::off,
                       .fp8_statistics = logging.fp8_statistics_every > 0});
    if (sample_maker_ != nullptr) sample_log_.emplace(logging.directory);
  });
}

void TrainingLoop::make_guard() {
  checkpoint::Guard& open = progress_.guard;
  const bool continues = config_.guard.every > 0 && config_.precision.fp8 != config::Fp8Mode::off &&
                         progress_.step == open.began + static_cast<int64_t>(open.fp8.size());
  if (open.began >= 0 && !continues) {
    log_info("guard: the comparison that began after step {} is dropped: this run does not continue it",
             open.began);
    open.drop_comparison();
  }
  if (config_.guard.every == 0) return;
  guard_.emplace(
      config_, context_, runner_, precision_,
      Guard::Services{.read = [this](int64_t first, HostBatch& batch) { reader_.read(first, batch); },
                      .wait = [this](int64_t step) { wait_for_device(step); }});
}

// Reports that decisions may differ from those of an uninterrupted run.
void TrainingLoop::warn_about_missing_state(bool resumed) const {
  if (!resumed) return;
  const checkpoint::SpikeHistory& spikes = progress_.spikes;
  if (config_.training.loss_spikes != config::LossSpikes::off && spikes.accepted.empty() &&
      spikes.row.empty()) {
    log_info(
        "the checkpoint has no loss history: for the next {} steps, only a loss above {:.4f} counts as a "
        "spike (training.loss_spikes: {})",
        LossSpikes::kMinAccepted, spikes_.limit(), to_string(config_.training.loss_spikes));
  }
  if (config_.guard.every > 0 && config_.guard.action == config::GuardAction::rollback &&
      progress_.guard.began >= 0) {
    log_info(
        "resumed within a guard comparison, whose initial state is not in the checkpoint: if FP8 is worse, "
        "guard.action is bf16 this time, not rollback");
  }
}

// --- one step ----------------------------------------------------------------------------------------------

TrainingLoop::Due TrainingLoop::next_step() const {
  const config::LoggingConfig& logging = config_.logging;
  Due due{.step = progress_.step + 1};
  const bool first = due.step == first_step_;
  due.last = due.step == config_.training.train_steps;
  due.log = due.step % logging.every == 0 || first || due.last;
  due.fp8_health = due.log && logging.fp8_stats_every > 0 &&
                   (due.step % logging.fp8_stats_every == 0 || first || due.last);
  due.fp8_statistics =
      logging.fp8_statistics_every > 0 && (due.step % logging.fp8_statistics_every == 0 || due.last);
  return due;
}

StepMetrics TrainingLoop::run_step(const Due& due) {
  const HostBatch& batch = next_batch();
  const int64_t first_sample = progress_.consumed_samples;
  if (guard_) guard_->inject_outlier(due.step);
  set_step_precision(batch);
  if (guard_) guard_->before_step(progress_);
  std::optional<Fp8Statistics> statistics;
  if (due.fp8_statistics && !runner_.model().recipe().high_precision())
    statistics = merge_fp8_statistics(world_, runner_.observe(batch, first_sample));

  const double start = now_seconds();
  runner_.launch(batch, due.step, first_sample, due.fp8_health, spikes_.skip_limit(),
                 scaler_.factor(progress_.loss_scale));
  if (due.fp8_health) fp8_health_.fetch();
  if (due.log) routing_.fetch();
  ++steps_taken_;
  if (!due.last) reader_.read(first_sample + config_.training.global_batch_size, next_batch());
  wait_for_device(due.step);
  const double seconds = now_seconds() - start;
  in_steps_ += seconds;
  remaining_.step(seconds);

  StepMetrics metrics = finish_step(batch, seconds);
  if (due.log) metrics.routing = routing_.read(world_);
  add_source_losses(batch, first_sample, metrics);
  verdict_ = guard_ ? guard_->after_step(progress_, metrics.loss) : Guard::Verdict::none;
  if (guard_) metrics.guard = guard_->record();
  if (statistics) log_statistics(*statistics, metrics);
  checkpoint_manager_.poll();
  return metrics;
}

// BF16 steps record amaxes, but the values of the first FP8 step may exceed them.
void TrainingLoop::set_step_precision(const HostBatch& batch) {
  precision_.enter(progress_);
  if (precision_.calibrates(progress_, scales_)) {
    calibrate(runner_, batches_, config_.training.micro_batch_size, kCalibrationPasses,
              progress_.consumed_samples, batch.counted);
  }
  scales_ = true;
}

// Missing ranks are detected here on a GPU; on the CPU, in the collective that needs them.
void TrainingLoop::wait_for_device(int64_t step) {
  const parallel::Watchdog::Guard guard(context_, fmt::format("step {}", step));
  context_.synchronize();
}

// Reads the results of a finished step; advances progress_.
StepMetrics TrainingLoop::finish_step(const HostBatch& batch, double seconds) {
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
  metrics.loss = mean_loss(status.loss_sum, batch.counted);
  if (config_.training.z_loss_coefficient != 0.0)
    metrics.z_loss = mean_loss(status.z_loss_sum, batch.counted);
  metrics.grad_norm = status.grad_norm;
  metrics.lr = optimizer.schedule().at(progress_.step);
  metrics.seconds = seconds;
  metrics.tokens_per_s = static_cast<double>(samples * seq) / seconds;
  metrics.tflops = token_flops_ * metrics.tokens_per_s / 1e12 / world_.size();
  metrics.skipped = status.skipped != 0;
  if (config_.precision.fp8 != config::Fp8Mode::off)
    metrics.in_fp8 = !runner_.model().recipe().high_precision();
  if (speed_of_light_)
    metrics.speed_of_light =
        (metrics.in_fp8.value_or(false) ? speed_of_light_->fp8_step : speed_of_light_->high_precision_step) /
        seconds;
  detect_spike(metrics);
  adapt_loss_scale(metrics);
  const bool lost = metrics.skipped && !metrics.spike && !metrics.overflow;
  checkpoint::Faults& faults = progress_.faults;
  faults.consecutive_skipped = lost ? faults.consecutive_skipped + 1 : 0;
  faults.skipped_total += metrics.skipped ? 1 : 0;
  metrics.skipped_total = faults.skipped_total;
  if (!metrics.skipped && spikes_.is_stable()) checkpoint_manager_.confirm_checkpoint();
  return metrics;
}

// The same decision on all ranks, as their losses are bitwise equal.
void TrainingLoop::detect_spike(StepMetrics& metrics) {
  if (config_.training.loss_spikes == config::LossSpikes::off) return;
  if (!std::isfinite(metrics.loss) || !std::isfinite(metrics.grad_norm)) return;
  const double limit = spikes_.limit(), median = spikes_.median();
  // A step that the device has skipped is a spike, even if rounding of its limit hides it.
  metrics.spike = spikes_.add(metrics.loss) || metrics.skipped;
  metrics.spikes_total = spikes_.total();
  metrics.rollbacks_total = progress_.faults.rollbacks;
  if (!metrics.spike || spikes_.consecutive() > 1) return;
  log_warning(
      "loss spike in step {}: {:.4f} is above {:.4f} ({}; training.loss_spikes: {})", metrics.step,
      metrics.loss, limit,
      median > 0 ? fmt::format("the median was {:.4f}", median) : "twice the loss of a uniform predictor",
      to_string(config_.training.loss_spikes));
}

// A non-finite loss is not a loss-scale overflow, although it lowers the scale.
void TrainingLoop::adapt_loss_scale(StepMetrics& metrics) {
  if (!scaler_.active()) return;
  metrics.loss_scale = progress_.loss_scale.scale;
  const bool adapts = scaler_.update(progress_.loss_scale, std::isfinite(metrics.grad_norm));
  metrics.overflow = adapts && std::isfinite(metrics.loss);
  metrics.next_loss_scale = progress_.loss_scale.scale;
}

// The losses of a skipped step may be NaN.
void TrainingLoop::add_source_losses(const HostBatch& batch, int64_t first_sample,
                                     const StepMetrics& metrics) {
  const parallel::Coordinates& at = runner_.groups().at();
  if (!sources_ || metrics.skipped || at[parallel::Axis::tensor] != 0 || !runner_.groups().last_stage())
    return;
  sources_->add(batches_.sources_of(first_sample + runner_.first_local_sample(), runner_.local_samples()),
                runner_.sample_losses(), batch.targets.as<const int32_t>(), runner_.split().local());
}

void TrainingLoop::log_statistics(const Fp8Statistics& statistics, StepMetrics& metrics) {
  metrics.fp8_statistics = summary(statistics);
  if (!world_.leader()) return;
  if (writer_) writer_->fp8_statistics(to_json(metrics.step, statistics));
  log_info("step {}: {}", metrics.step, describe(statistics));
}

// --- after it ----------------------------------------------------------------------------------------------

bool TrainingLoop::evaluate(const Due& due, StepMetrics& metrics) {
  const bool now =
      batches_.validation_sets() > 0 && (due.step % config_.training.eval_interval == 0 || due.last);
  if (!now) return false;
  const double before = now_seconds();
  metrics.valid =
      validation_losses(runner_, batches_, config_.training.micro_batch_size, world_, reader_.bad_data());
  metrics.valid_loss = deciding_loss(config_.data.deciding_set(), metrics.valid);
  if (metrics.valid_loss) best_checkpoints_.evaluated(progress_.validation, *metrics.valid_loss);
  remaining_.validation(now_seconds() - before);
  return true;
}

bool TrainingLoop::ends(const Due& due) const {
  return due.last || best_checkpoints_.exhausted(progress_.validation);
}

// All replicas of the model share the evaluation.
bool TrainingLoop::evaluate_tasks(const Due& due, StepMetrics& metrics) {
  if (evaluator_ == nullptr || (due.step % config_.evaluation.every != 0 && !ends(due))) return false;
  const double before = now_seconds();
  runner_.optimizer().gatherer().wait_all(context_);
  wait_for_device(due.step);
  metrics.tasks = evaluator_->evaluate();
  remaining_.tasks(now_seconds() - before);
  return true;
}

void TrainingLoop::write_logs(const Due& due, StepMetrics& metrics) {
  if (sources_) metrics.sources = sources_->take(world_);
  std::vector<Fp8Health> health =
      due.fp8_health ? merge_fp8_health(world_, fp8_health_.read()) : std::vector<Fp8Health>{};
  // Recipes without a history do not record amaxes in BF16 steps, and their scales are old.
  if (!metrics.in_fp8.value_or(true))
    std::erase_if(health, [](const Fp8Health& operand) { return operand.amax == 0; });
  if (writer_) writer_->step(metrics, health, remaining_.after(due.step));
}

TrainingLoop::StepDecision TrainingLoop::decide(const StepMetrics& metrics) {
  const config::TrainingConfig& training = config_.training;
  if (verdict_ == Guard::Verdict::roll_back) {
    restore_progress(guard_->start());
    return StepDecision::rolled_back;
  }
  checkpoint::Faults& faults = progress_.faults;
  if (faults.consecutive_skipped >= training.max_nonfinite_steps) {
    return diverged(
        fmt::format("loss or gradient was not finite in {} consecutive steps (training.max_nonfinite_steps)",
                    faults.consecutive_skipped));
  }
  if (training.loss_spikes == config::LossSpikes::skip && spikes_.has_diverged()) {
    return diverged(
        fmt::format("{} consecutive loss spikes, whose median is above twice the loss of a uniform predictor "
                    "(training.loss_spikes: skip)",
                    spikes_.consecutive()));
  }
  if (!metrics.spike || training.loss_spikes != config::LossSpikes::rollback) return StepDecision::proceed;
  const std::filesystem::path last_verified = checkpoint_manager_.broadcast_last_verified();
  if (last_verified.empty()) return StepDecision::proceed;
  if (++faults.rollbacks > training.max_nonfinite_steps) {
    return diverged(
        fmt::format("a loss spike after {} rollbacks (training.max_nonfinite_steps)", faults.rollbacks - 1));
  }
  rollback_to_verified(last_verified);
  return StepDecision::rolled_back;
}

TrainingLoop::StepDecision TrainingLoop::diverged(const std::string& why) const {
  checkpoint_manager_.wait();
  if (!world_.leader()) return StepDecision::diverged;  // rank 0 reports
  log_error("stopped: {}; {}", why,
            checkpoint_manager_.last_verified().empty()
                ? "no good checkpoint was saved"
                : "the last good checkpoint is " + checkpoint_manager_.last_verified().string());
  return StepDecision::diverged;
}

// Repeated steps write their checkpoints again. Counters keep their values.
void TrainingLoop::restore_progress(const checkpoint::Progress& progress) {
  checkpoint_manager_.rollback_to(progress.step);
  const checkpoint::Progress undone = std::exchange(progress_, progress);
  spikes_.rollback(undone.spikes);
  progress_.faults.skipped_total = undone.faults.skipped_total;
  progress_.faults.rollbacks = undone.faults.rollbacks;
  progress_.loss_scale = scaler_.start(progress.loss_scale);
  best_checkpoints_.restore(progress_.validation, world_);
  if (sources_) sources_->clear();
  world_.run_collectively([&] {
    if (world_.leader()) folder_->truncate_logs(progress_.step, config_.logging.every);
  });
  if (writer_) writer_->start_at(progress_.step + 1);
  if (sample_log_) sample_log_->start_at(progress_.step + 1);
  reader_.read(progress_.consumed_samples, next_batch());
  reader_.throw_pending_data_error();
}

// The samples since the checkpoint are skipped: consumed_samples is kept.
void TrainingLoop::rollback_to_verified(const std::filesystem::path& verified_checkpoint) {
  runner_.optimizer().gatherer().wait_all(context_);
  wait_for_device(progress_.step);
  const int64_t spiked = progress_.step;
  // The moments of the checkpoint that the run resumed from are not its own if it started without them.
  const bool own = checkpoint::step_of(verified_checkpoint.filename().string()) >= first_step_;
  const StartPoint point = Startup(config_, context_, world_, runner_, base_)
                               .rollback_to(verified_checkpoint, own || config_.checkpoint.load_optimizer);
  scales_ = point.scales;
  checkpoint::Progress resumed = point.progress;
  resumed.consumed_samples = progress_.consumed_samples;
  if (guard_) guard_->discard(resumed);
  restore_progress(resumed);
  log_warning("rolled back from step {} to {}; the samples since then are skipped ({} rollbacks so far)",
              spiked, point.checkpoint.string(), progress_.faults.rollbacks);
}

// One model replica generates; the others wait for it in the next step.
void TrainingLoop::make_samples(int64_t step) {
  runner_.optimizer().gatherer().wait_all(context_);
  wait_for_device(step);
  const bool first = runner_.groups().data().rank() == 0;
  const std::vector<Sample> samples = make_on_first_replica(*sample_maker_, world_, first);
  if (sample_log_) sample_log_->write(step, samples);
}

// --- checkpoints -------------------------------------------------------------------------------------------

// A skipped step does not save a periodic checkpoint: if damaged weights are the cause, `latest` would move further
// away from the last good one. A step that only lowers the loss scale does save.
bool TrainingLoop::checkpoint(const Due& due, const StepMetrics& metrics, Requests& requests) {
  const config::CheckpointConfig& options = config_.checkpoint;
  const StepRequest request = reduce_requests(requests);
  const bool stopping = request == StepRequest::stop || request == StepRequest::data_error;
  const bool periodic = options.save_every > 0 && due.step % options.save_every == 0, end = ends(due);
  const double before = now_seconds();
  if (save(metrics,
           request == StepRequest::save || (periodic && (!metrics.skipped || metrics.overflow)) ||
               (end && options.save_last) || (stopping && !end),
           stopping))
    remaining_.save(now_seconds() - before);
  return stopping;
}

bool TrainingLoop::save(const StepMetrics& metrics, bool anyway, bool blocking) {
  const bool best = metrics.valid_loss && !metrics.skipped && !metrics.spike &&
                    best_checkpoints_.among_best(progress_.validation, *metrics.valid_loss);
  if (best || anyway)
    world_.run_collectively([&] {
      if (world_.leader()) folder_->check_locks();
    });
  if (best) {
    const std::vector<int64_t> drop =
        best_checkpoints_.add(progress_.validation, metrics.step, *metrics.valid_loss, !anyway);
    checkpoint_manager_.save_best(progress_, blocking, *metrics.valid_loss, drop);
  } else if (anyway) {
    checkpoint_manager_.save(progress_, blocking);
  }
  return best || anyway;
}

// Reads the flags once per step, so that a signal cannot end the loop without saving.
TrainingLoop::StepRequest TrainingLoop::reduce_requests(Requests& requests) {
  StepRequest own = requests.stop != 0   ? StepRequest::stop
                    : requests.save != 0 ? StepRequest::save
                                         : StepRequest::none;
  if (!reader_.bad_data().empty()) own = StepRequest::data_error;
  const auto all = static_cast<StepRequest>(world_.max_i64(static_cast<int64_t>(own)));
  if (all != StepRequest::none) requests.save = 0;
  return all;
}

Outcome TrainingLoop::report(double in_loop) const {
  const config::TrainingConfig& training = config_.training;
  log_info("{} steps in {} ({} with validation, logs and checkpoints), {:.0f} tokens/s on average",
           steps_taken_, human_time(in_steps_), human_time(in_loop),
           static_cast<double>(steps_taken_ * training.global_batch_size * config_.model.seq_length) /
               std::max(in_steps_, 1e-9));
  const std::string last = diverged_steps(progress_.faults, spikes_);
  if (spikes_.total() > 0 || !last.empty()) {
    log_warning("{}{}{}", last.empty() ? "" : last + ": the run has probably diverged; ",
                spikes_.total() > 0
                    ? fmt::format("{} steps had a loss spike{}; ", spikes_.total(),
                                  last.empty() && spikes_.consecutive() > 0 ? ", including the last one" : "")
                    : "",
                checkpoint_manager_.last_verified().empty()
                    ? "no checkpoint is followed by a good step"
                    : "the last good checkpoint is " + checkpoint_manager_.last_verified().string());
  }
  const Outcome end = last.empty() ? Outcome::finished : Outcome::diverged;
  if (progress_.step >= training.train_steps) return end;
  if (best_checkpoints_.exhausted(progress_.validation)) {
    log_info("stopped early after step {}: {}", progress_.step,
             best_checkpoints_.describe(progress_.validation));
    return last.empty() ? Outcome::stopped_early : end;
  }
  log_warning("interrupted after step {}; {}", progress_.step,
              checkpoint_manager_.newest().empty()
                  ? "nothing was trained"
                  : "the checkpoint is " + checkpoint_manager_.newest().string());
  return Outcome::interrupted;
}

}  // namespace te::train
