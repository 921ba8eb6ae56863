#include "train/trainer.h"

#include <algorithm>
#include <chrono>

#include "core/log.h"
#include "train/flops.h"

namespace te::train {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<WeightedDataset> datasets_of(const std::vector<config::DataSource>& sources) {
  std::vector<WeightedDataset> datasets;
  for (const config::DataSource& source : sources) datasets.push_back({source.weight, source.prefix});
  return datasets;
}

}  // namespace

Trainer::Trainer(const config::Config& config, Context& context)
    : config_(config), context_(context), model_(config), optimizer_(config, model_.parameters()) {
  model_.plan(plan_, context_);
  optimizer_.plan(plan_);
  const int64_t microbatches = config.training.global_batch_size / config.training.micro_batch_size;
  plan_.add(tokens_, "tokens", MemoryKind::data, DType::i32, {microbatches, model_.dims().tokens});
  plan_.add(targets_, "targets", MemoryKind::data, DType::i32, {microbatches, model_.dims().tokens});
  plan_.add(valid_loss_, "valid_loss", MemoryKind::data, DType::f32, {1});
}

// --- before the first step
// ------------------------------------------------------------------------------------------

void Trainer::open_data() {
  const config::DataConfig& data = config_.data;
  const config::ModelConfig& model = config_.model;
  if (data.synthetic) {
    train_data_ = make_synthetic_source(model.seq_length, model.vocab_size, config_.training.seed);
  } else {
    train_data_ = make_indexed_source(
        datasets_of(data.train),
        {.seq_length = model.seq_length, .vocab_size = model.vocab_size, .seed = config_.training.seed});
  }
  spdlog::info("training data: {}", train_data_->describe());
  if (data.valid.empty() || config_.training.eval_interval == 0) return;
  valid_data_ = make_indexed_source(
      datasets_of(data.valid),
      {.seq_length = model.seq_length,
       .vocab_size = model.vocab_size,
       .seed = config_.training.seed,
       .shuffle = false,
       .max_samples = config_.training.eval_microbatches * config_.training.micro_batch_size,
       .key = "data.valid"});
  spdlog::info("validation data: {}", valid_data_->describe());
}

void Trainer::allocate() {
  memory_ = plan_.allocate(context_);
  model_.bind(context_);
  const size_t bytes =
      static_cast<size_t>(config_.training.global_batch_size * config_.model.seq_length) * sizeof(int32_t);
  for (HostBatch& batch : batches_) {
    batch.tokens = HostBuffer(context_, bytes);
    batch.targets = HostBuffer(context_, bytes);
  }
}

// A checkpoint, or initial weights (and, with delayed FP8 scaling, their first scales).
void Trainer::start() {
  const std::string& resume = config_.checkpoint.resume;
  std::optional<std::filesystem::path> folder;
  if (resume == "auto") {
    folder = checkpoint::latest(config_.checkpoint.directory);
  } else if (resume != "never") {
    folder = resume;
  }
  if (folder) {
    progress_ = checkpoint::load(context_, *folder, model_, optimizer_);
    model_.parameters().cast_values(context_);
    model_.quantize_weights(context_);
    saved_ = *folder;
    spdlog::info("resumed from {} after step {}", folder->string(), progress_.step);
    return;
  }
  model_.initialize(context_, config_.training.seed);
  model_.quantize_weights(context_);
  calibrate();
}

// A fresh delayed recipe knows no amax: at scale 1 most gradients are below FP8's smallest number, and step 1
// would train on zeros. So the first microbatch runs a few times before step 1 for its amaxes alone; its
// gradients are dropped.
void Trainer::calibrate() {
  const bool delayed = config_.precision.fp8 != config::Fp8Mode::off &&
                       config_.precision.fp8_recipe == config::Fp8Recipe::delayed;
  if (!delayed || config_.precision.fp8_calibration_passes == 0) return;
  read_batch(0, batches_[0]);
  context_.copy_to_device(tokens_, batches_[0].tokens.as<void>());
  context_.copy_to_device(targets_, batches_[0].targets.as<void>());
  const float grad_scale = 1.0f / static_cast<float>(std::max<int64_t>(1, batches_[0].counted));
  for (int64_t pass = 0; pass < config_.precision.fp8_calibration_passes; ++pass) {
    optimizer_.begin_step(context_);
    microbatch(0, grad_scale, false);
    model_.recipe().update(context_, nullptr);
    model_.quantize_weights(context_);
  }
  context_.synchronize();
  spdlog::info("FP8 scales calibrated on the first microbatch ({} passes)",
               config_.precision.fp8_calibration_passes);
}

// --- one step
// -------------------------------------------------------------------------------------------------------

void Trainer::read_batch(int64_t first_sample, HostBatch& batch) const {
  const int64_t samples = config_.training.global_batch_size;
  int32_t* targets = batch.targets.as<int32_t>();
  train_data_->fill(first_sample, samples, batch.tokens.as<int32_t>(), targets);
  const int64_t ignored =
      std::count(targets, targets + samples * config_.model.seq_length, BatchSource::kIgnoredTarget);
  batch.counted = samples * config_.model.seq_length - ignored;
}

void Trainer::microbatch(int64_t index, float grad_scale, bool count_fp8) {
  const int64_t tokens = model_.dims().tokens;
  model::Pass pass;
  pass.first_sample = progress_.consumed_samples + index * config_.training.micro_batch_size;
  pass.dropout_seed = config_.training.seed;
  pass.count_fp8 = count_fp8;
  model_.forward_backward(context_, tokens_.slice_rows(index, 1).view({tokens}),
                          targets_.slice_rows(index, 1).view({tokens}), grad_scale, optimizer_.loss_sum(),
                          pass);
}

void Trainer::launch_step(const HostBatch& batch, bool count_fp8) {
  // 1. Samples. The loss is the mean over the counted tokens of the global batch, so every microbatch's
  // gradient is scaled by
  //    their number.
  context_.copy_to_device(tokens_, batch.tokens.as<void>());
  context_.copy_to_device(targets_, batch.targets.as<void>());
  const float grad_scale = 1.0f / static_cast<float>(std::max<int64_t>(1, batch.counted));
  // 2. Microbatches.
  optimizer_.begin_step(context_);
  if (count_fp8) model_.recipe().table().zero_counters(context_);
  for (int64_t index = 0; index < tokens_.dim(0); ++index) microbatch(index, grad_scale, count_fp8);
  // 3. Weights.
  optimizer_.step(context_, optimizer_.schedule().at(progress_.step + 1));
  // 4. FP8 scales from this step's amaxes, then the weights in FP8 for the next step.
  model_.recipe().update(context_, optimizer_.skip_flag());
  model_.quantize_weights(context_);
  optimizer_.fetch_status(context_);
}

double Trainer::validate() {
  const int64_t batch = config_.training.micro_batch_size, tokens = model_.dims().tokens;
  const int64_t samples = valid_data_->num_samples();
  int64_t counted = 0;
  context_.zero(valid_loss_);
  for (int64_t first = 0; first < samples; first += batch) {
    const Batch data = valid_data_->batch(first, batch);
    counted += tokens - std::count(data.targets.begin(), data.targets.end(), BatchSource::kIgnoredTarget);
    const Tensor device_tokens = tokens_.slice_rows(0, 1).view({tokens});
    const Tensor device_targets = targets_.slice_rows(0, 1).view({tokens});
    context_.copy_to_device(device_tokens, data.tokens.data());
    context_.copy_to_device(device_targets, data.targets.data());
    model_.evaluate(context_, device_tokens, device_targets, valid_loss_);
    context_.synchronize();  // `data` must outlive its copies
  }
  float sum = 0;
  context_.copy_to_host(&sum, valid_loss_);
  context_.synchronize();
  return counted > 0 ? static_cast<double>(sum) / static_cast<double>(counted) : 0.0;
}

void Trainer::save() {
  saved_ = checkpoint::save(context_, config_.checkpoint.directory, progress_, model_, optimizer_,
                            config::to_yaml(config_));
  spdlog::info("saved {}", saved_.string());
}

std::string Trainer::last_checkpoint() const {
  return saved_.empty() ? "no checkpoint was saved" : "the last good checkpoint is " + saved_.string();
}

// --- the loop
// -------------------------------------------------------------------------------------------------------

Outcome Trainer::run(const volatile std::sig_atomic_t* stop) {
  open_data();
  allocate();
  start();
  const config::TrainingConfig& training = config_.training;
  const int64_t first_step = progress_.step;
  if (first_step >= training.train_steps) {
    spdlog::info("nothing to do: the checkpoint is at step {} of {}", first_step, training.train_steps);
    return Outcome::finished;
  }
  MetricsWriter writer(config_, first_step, context_.is_cuda() ? 1 : 0);
  const double flops = flops_per_token(config_.model);
  const int64_t tokens_per_step = training.global_batch_size * config_.model.seq_length;
  read_batch(progress_.consumed_samples, batches_[0]);

  int64_t skipped_in_a_row = 0, skipped_total = 0;
  const double loop_start = now_seconds();
  double excluded = 0;  // time of validation and saving, which the ETA counts but tokens/s does not
  double step_start = loop_start;
  while (progress_.step < training.train_steps && *stop == 0) {
    const HostBatch& batch = batches_[progress_.step % 2 == first_step % 2 ? 0 : 1];
    HostBatch& next = batches_[progress_.step % 2 == first_step % 2 ? 1 : 0];
    const int64_t step = progress_.step + 1;
    const bool log =
        step % config_.logging.every == 0 || step == training.train_steps || step == first_step + 1;
    const bool fp8_stats = log && config_.logging.fp8_stats_every > 0 &&
                           (step % config_.logging.fp8_stats_every == 0 || step == first_step + 1 ||
                            step == training.train_steps);
    launch_step(batch, fp8_stats);
    // 5. While the device works.
    if (step < training.train_steps)
      read_batch(progress_.consumed_samples + training.global_batch_size, next);
    // 6. The step's only wait.
    context_.synchronize();
    const optim::StepStatus status = optimizer_.status();
    optimizer_.finish_step(status.skipped != 0);
    progress_.step = step;
    progress_.updates = optimizer_.updates();
    progress_.consumed_samples += training.global_batch_size;
    const double step_end = now_seconds();

    StepMetrics metrics;
    metrics.step = step;
    metrics.consumed_samples = progress_.consumed_samples;
    metrics.consumed_tokens = progress_.consumed_samples * config_.model.seq_length;
    metrics.loss =
        static_cast<double>(status.loss_sum) / static_cast<double>(std::max<int64_t>(1, batch.counted));
    metrics.grad_norm = status.grad_norm;
    metrics.lr = optimizer_.schedule().at(step);
    metrics.seconds = step_end - step_start;
    metrics.tokens_per_s = static_cast<double>(tokens_per_step) / metrics.seconds;
    metrics.tflops = flops * metrics.tokens_per_s / 1e12;
    metrics.skipped = status.skipped != 0;
    skipped_in_a_row = metrics.skipped ? skipped_in_a_row + 1 : 0;
    skipped_total += metrics.skipped ? 1 : 0;
    metrics.skipped_total = skipped_total;
    const bool evaluate = valid_data_ && (step % training.eval_interval == 0 || step == training.train_steps);
    if (evaluate) metrics.valid_loss = validate();
    if (log || evaluate || metrics.skipped) {
      const double elapsed = now_seconds() - loop_start;
      const double eta =
          elapsed / static_cast<double>(step - first_step) * static_cast<double>(training.train_steps - step);
      writer.step(metrics,
                  fp8_stats ? read_fp8_health(context_, model_.recipe().table()) : std::vector<Fp8Health>{},
                  eta);
    }
    if (skipped_in_a_row >= training.max_nonfinite_steps) {
      spdlog::error(
          "stopped: loss or gradient was not finite in {} steps in a row (training.max_nonfinite_steps); {}",
          skipped_in_a_row, last_checkpoint());
      return Outcome::diverged;
    }
    const bool last = step == training.train_steps || *stop != 0;
    const bool due = config_.checkpoint.save_every > 0 && step % config_.checkpoint.save_every == 0;
    if (due || (last && config_.checkpoint.save_last)) save();
    excluded += now_seconds() - step_end;
    step_start = now_seconds();
  }
  const double trained = now_seconds() - loop_start - excluded;
  const int64_t steps = progress_.step - first_step;
  spdlog::info("{} steps in {} ({} with validation, logs and checkpoints), {:.0f} tokens/s on average", steps,
               human_time(trained), human_time(trained + excluded),
               static_cast<double>(steps * tokens_per_step) / std::max(trained, 1e-9));
  if (progress_.step >= training.train_steps) return Outcome::finished;
  spdlog::warn("interrupted after step {}; {}", progress_.step, last_checkpoint());
  return Outcome::interrupted;
}

}  // namespace te::train
