#include "train/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "core/log.h"
#include "kernels/attention/attention.h"
#include "parallel/watchdog.h"
#include "train/flops.h"
#include "train/fp8_health.h"
#include "train/kept_tokenizer.h"

namespace te::train {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<data::WeightedDataset> datasets_of(const std::vector<config::DataSource>& sources) {
  std::vector<data::WeightedDataset> datasets;
  for (const config::DataSource& source : sources) datasets.push_back({source.weight, source.prefix});
  return datasets;
}

HostMicrobatch microbatch_of(const data::Batch& batch) {
  return {batch.tokens.data(), batch.targets.data(),
          batch.document_start.empty() ? nullptr : batch.document_start.data()};
}

// Hours of training must not end at a folder that cannot be written.
void check_writable(const char* key, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error && ::access(directory.c_str(), W_OK) != 0) error.assign(errno, std::generic_category());
  if (error) user_error("{}: {}: {}; choose a folder that can be written", key, directory, error.message());
}

}  // namespace

Trainer::Trainer(const config::Config& config, Context& context, parallel::World& world,
                 const parallel::Groups& groups)
    : config_(config), context_(context), world_(world), runner_(config, context, groups) {}

// --- before the first step ---------------------------------------------------------------------------------

void Trainer::open_data() {
  const config::DataConfig& data = config_.data;
  const config::ModelConfig& model = config_.model;
  data::IndexedSourceOptions options = {.seq_length = model.seq_length,
                                        .vocab_size = model.vocab_size,
                                        .seed = config_.training.seed,
                                        .eod_mask_loss = data.eod_mask_loss,
                                        .drop_overlong = data.overlong == config::Overlong::drop};
  const auto open = [&](const std::vector<config::DataSource>& sources) {
    const bool instruct = data.format == config::DataFormat::instruct;
    return instruct ? data::make_instruction_source(datasets_of(sources), options)
                    : data::make_indexed_source(datasets_of(sources), options);
  };
  train_data_ = data.synthetic ? data::make_synthetic_source(model.seq_length, model.vocab_size, options.seed)
                               : open(data.train);
  spdlog::info("training data: {}", train_data_->describe());
  if (data.valid.empty() || config_.training.eval_interval == 0) return;
  options.shuffle = false;
  options.max_samples = config_.training.eval_microbatches * config_.training.micro_batch_size;
  options.key = "data.valid";
  valid_data_ = open(data.valid);
  spdlog::info("validation data: {}", valid_data_->describe());
}

checkpoint::TrainingState Trainer::state() {
  return {.parameters = &runner_.model().parameters(),
          .exp_avg = runner_.optimizer().exp_avg,
          .exp_avg_sq = runner_.optimizer().exp_avg_sq,
          .scales = &runner_.model().recipe().table()};
}

// Every rank reads what it needs. Sets progress_ and saved_.
void Trainer::load(const std::filesystem::path& folder, const checkpoint::LoadOptions& options) {
  world_.together([&] {
    const checkpoint::Reader reader(folder);
    const checkpoint::Loaded loaded = checkpoint::load(context_, reader, config_, state(), options);
    progress_ = loaded.progress;
    saved_ = reader.folder();
    if (options.fp8 && !loaded.optimizer)
      spdlog::info("the optimizer's moments are not loaded and start at zero");
  });
  runner_.optimizer().set_updates(progress_.updates);
  runner_.publish_weights();
}

// A checkpoint, or the weights of another run, or random ones (and, with delayed FP8 scaling, their first scales).
void Trainer::start() {
  const config::CheckpointConfig& options = config_.checkpoint;
  std::string resume = options.resume;
  if (resume == "auto") {
    world_.together([&] {  // one rank decides: the others might find something else a moment later
      if (world_.leader()) resume = checkpoint::find_latest(options.directory).value_or("never").string();
    });
    resume = world_.broadcast_string(resume);
  }
  if (resume != "never") {
    load(resume, {.optimizer = options.load_optimizer});
    spdlog::info("resumed from {} after step {}", saved_.string(), progress_.step);
    keep_tokenizer_of(saved_);
    return;
  }
  runner_.initialize();
  if (!options.init_from.empty()) {
    load(options.init_from, {.optimizer = false, .fp8 = false});
    spdlog::info("starts with the weights of {}", saved_.string());
    progress_ = {};
  }
  keep_tokenizer_of(saved_);
  saved_.clear();
  calibrate();
}

void Trainer::keep_tokenizer_of(const std::filesystem::path& origin) const {
  world_.together([&] {
    if (world_.leader() && saves()) keep_tokenizer(config_, origin);
  });
}

// A fresh delayed recipe knows no amax, and at scale 1 every gradient below 2^-17 becomes zero in E5M2. How many that
// are depends on the batch, whose size divides every gradient: in GPT-2 124M with 0.26 million tokens a step, all of
// them in linear_qkv and linear_fc1 (docs/experiments.md). So the first microbatch runs a few times before step 1 for its
// amaxes alone; its gradients are dropped.
void Trainer::calibrate() {
  const bool needed = runner_.model().recipe().starts_from_history();
  if (!needed || config_.precision.fp8_calibration_passes == 0) return;
  read_batch(0, batches_[0]);
  // The same on all data ranks.
  const data::Batch first =
      train_data_->batch(0, config_.training.micro_batch_size, config_.data.document_mask);
  for (int64_t pass = 0; pass < config_.precision.fp8_calibration_passes; ++pass)
    runner_.calibrate(microbatch_of(first), batches_[0].counted);
  spdlog::info("FP8 scales calibrated on the first microbatch ({} passes)",
               config_.precision.fp8_calibration_passes);
}

// A rank that does not come is missed here, on a GPU; on the CPU, in the operation that needs it.
void Trainer::wait_for_device(int64_t step) {
  const parallel::Watchdog::Guard guard(context_, fmt::format("step {}", step));
  context_.synchronize();
}

parallel::World::Ranks Trainer::data_ranks() const {
  return runner_.groups().data().world_ranks();
}

// --- one step ----------------------------------------------------------------------------------------------

// Attention's memory is planned for so many.
void Trainer::check_documents(const int32_t* starts) const {
  const int64_t micro = config_.training.micro_batch_size, most = micro * config_.data.max_documents;
  const int64_t count = kernels::count_documents(starts, micro, config_.model.seq_length);
  if (count <= most) return;
  user_error(
      "data.max_documents ({}) * training.micro_batch_size ({}) = {} is below the {} documents of a "
      "microbatch; raise "
      "data.max_documents to {} or more, or set data.document_mask to false",
      config_.data.max_documents, micro, most, count, (count + micro - 1) / micro);
}

void Trainer::read_batch(int64_t first_sample, HostBatch& batch) const {
  const int64_t samples = runner_.local_samples();
  int32_t* targets = batch.targets.as<int32_t>();
  int32_t* starts = batch.document_start.as<int32_t>();
  train_data_->fill(first_sample + runner_.first_local_sample(), samples, batch.tokens.as<int32_t>(), targets,
                    starts);
  const int64_t micro = config_.training.micro_batch_size;
  for (int64_t first = 0; starts != nullptr && first < samples; first += micro)
    check_documents(starts + first * config_.model.seq_length);
  const int64_t ignored =
      std::count(targets, targets + samples * config_.model.seq_length, data::BatchSource::kIgnoredTarget);
  batch.counted = world_.sum_i64(samples * config_.model.seq_length - ignored, data_ranks());
}

double Trainer::validate() {
  const int64_t batch = config_.training.micro_batch_size;
  const parallel::Communicator& data_group = runner_.groups().data();
  int64_t counted = 0;
  runner_.begin_evaluation();
  // Data ranks take turns.
  for (int64_t first = batch * data_group.rank(); first < valid_data_->num_samples();
       first += batch * data_group.size()) {
    const data::Batch data = valid_data_->batch(first, batch, config_.data.document_mask);
    counted += static_cast<int64_t>(data.targets.size()) -
               std::count(data.targets.begin(), data.targets.end(), data::BatchSource::kIgnoredTarget);
    if (config_.data.document_mask) check_documents(data.document_start.data());
    runner_.evaluate(microbatch_of(data));
  }
  counted = world_.sum_i64(counted, data_ranks());
  return runner_.finish_evaluation() / static_cast<double>(std::max<int64_t>(1, counted));
}

void Trainer::save(bool wait) {
  saver_->save(progress_, good_, wait);
  saved_ = saver_->folder_of(progress_.step);
  log_saved(saver_->poll());
}

void Trainer::log_saved(const std::optional<checkpoint::Saved>& saved) const {
  if (!saved || !world_.leader()) return;
  spdlog::info("saved {} ({:.1f} MB{} in {:.2f} s, training waited for {:.2f} s)", saved->folder.string(),
               static_cast<double>(saved->bytes) / 1e6, world_.size() > 1 ? " by this rank" : "",
               saved->seconds, saved->stalled_seconds);
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
  if (status.skipped == 0) good_ = saved_;

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

// --- the loop ----------------------------------------------------------------------------------------------

Outcome Trainer::run(const volatile std::sig_atomic_t* stop) {
  open_data();
  check_writable("logging.directory", config_.logging.directory);
  if (saves()) check_writable("checkpoint.directory", config_.checkpoint.directory);
  world_.together([&] {
    if (world_.leader()) check_tokenizer(config_);
  });
  runner_.allocate();
  for (HostBatch& batch : batches_) batch = runner_.make_host_batch();
  saver_ = std::make_unique<checkpoint::Saver>(
      context_,
      checkpoint::SaverOptions{.directory = config_.checkpoint.directory,
                               .config = config::to_yaml(config_),
                               .keep = config_.checkpoint.keep,
                               .optimizer = config_.checkpoint.save_optimizer,
                               .background = config_.checkpoint.async && config_.checkpoint.save_every > 0},
      state(),
      checkpoint::Job{.who = {world_.rank(), world_.size()},
                      .host_ranks = world_.local_size(),
                      .barrier = [this] { world_.barrier(); },
                      .timeout_seconds = config_.parallel.timeout_seconds});
  start();
  const config::TrainingConfig& training = config_.training;
  const config::LoggingConfig& logging = config_.logging;
  const int64_t first_step = progress_.step;
  if (first_step >= training.train_steps) {
    spdlog::info("nothing to do: the checkpoint is at step {} of {}", first_step, training.train_steps);
    return Outcome::finished;
  }
  std::optional<MetricsWriter> writer;
  if (world_.leader()) writer.emplace(config_, first_step, context_.is_cuda() ? 1 : 0);
  Fp8HealthReader fp8_health(context_, runner_.model().recipe().table());
  read_batch(progress_.consumed_samples, batches_[0]);

  const double loop_start = now_seconds();
  double in_steps = 0;  // without validation, logs and checkpoints
  bool stopping = world_.max_i64(*stop) != 0;
  while (progress_.step < training.train_steps && !stopping) {
    const int64_t step = progress_.step + 1;
    const bool last = step == training.train_steps, first = step == first_step + 1;
    const HostBatch& batch = batches_[(step - first_step - 1) % 2];
    HostBatch& next = batches_[(step - first_step) % 2];
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
    log_saved(saver_->poll());

    // Validation and logs.
    const bool evaluate = valid_data_ && (step % training.eval_interval == 0 || last);
    if (evaluate) metrics.valid_loss = validate();
    if (log || evaluate || metrics.skipped) {
      const double per_step = (now_seconds() - loop_start) / static_cast<double>(step - first_step);
      const std::vector<Fp8Health> health =
          fp8_stats ? merge_fp8_health(world_, fp8_health.read()) : std::vector<Fp8Health>{};
      if (writer) writer->step(metrics, health, per_step * static_cast<double>(training.train_steps - step));
    }
    if (skipped_in_a_row_ >= training.max_nonfinite_steps) {
      log_saved(saver_->finish());
      spdlog::error(
          "stopped: loss or gradient was not finite in {} steps in a row (training.max_nonfinite_steps); {}",
          skipped_in_a_row_,
          good_.empty() ? "no good checkpoint was saved" : "the last good checkpoint is " + good_.string());
      return Outcome::diverged;
    }

    // Checkpoints. A skipped step saves none on its way: if the weights are the reason, `latest` would move
    // farther from the last good one. The flag is read once, so that no signal can end the loop unsaved.
    stopping = world_.max_i64(*stop) != 0;
    const bool due = config_.checkpoint.save_every > 0 && step % config_.checkpoint.save_every == 0;
    if ((due && !metrics.skipped) || (last && config_.checkpoint.save_last) || (stopping && !last))
      save(stopping);
  }
  log_saved(saver_->finish());
  const int64_t steps = progress_.step - first_step;
  spdlog::info("{} steps in {} ({} with validation, logs and checkpoints), {:.0f} tokens/s on average", steps,
               human_time(in_steps), human_time(now_seconds() - loop_start),
               static_cast<double>(steps * training.global_batch_size * config_.model.seq_length) /
                   std::max(in_steps, 1e-9));
  if (progress_.step >= training.train_steps) return Outcome::finished;
  spdlog::warn("interrupted after step {}; {}", progress_.step,
               saved_.empty() ? "nothing was trained" : "the checkpoint is " + saved_.string());
  return Outcome::interrupted;
}

}  // namespace te::train
