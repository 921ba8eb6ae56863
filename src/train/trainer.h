// The training loop: data, steps, validation, logs, checkpoints. What a step does on the device is in
// step_runner.cpp; while it does it, the loop reads the next step's samples, and then waits for the device
// once.
#pragma once

#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "data/sampler.h"
#include "parallel/world.h"
#include "train/metrics.h"
#include "train/step_runner.h"

namespace te::train {

enum class Outcome : uint8_t { finished, interrupted, diverged };

class Trainer {
 public:
  /// Plans all memory; allocates none. World and groups are the job's, and must outlive the trainer.
  Trainer(const config::Config& config, Context& context, parallel::World& world,
          const parallel::Groups& groups);

  const MemoryPlan& plan() const { return runner_.plan(); }
  model::ModelStage& model() { return runner_.model(); }

  /// Opens the data, allocates, initializes or resumes, and trains to the last step. `stop` is set by a
  /// signal handler: the step in work is finished and a checkpoint saved, whatever checkpoint.save_last says. All
  /// ranks take the same steps and have the same outcome; rank 0 writes the logs.
  Outcome run(const volatile std::sig_atomic_t* stop);

 private:
  void open_data();
  void start();
  void keep_tokenizer_of(const std::filesystem::path& origin) const;
  bool saves() const { return config_.checkpoint.save_every > 0 || config_.checkpoint.save_last; }
  void calibrate();
  void check_documents(const int32_t* starts) const;
  void read_batch(int64_t first_sample, HostBatch& batch) const;
  StepMetrics finish_step(const HostBatch& batch, double seconds);
  double validate();
  void save(bool wait);
  void log_saved(const std::optional<checkpoint::Saved>& saved) const;
  checkpoint::TrainingState state();
  void load(const std::filesystem::path& folder, const checkpoint::LoadOptions& options);
  void wait_for_device(int64_t step);
  parallel::World::Ranks data_ranks() const;

  config::Config config_;
  Context& context_;
  parallel::World& world_;
  StepRunner runner_;
  std::unique_ptr<data::BatchSource> train_data_, valid_data_;
  HostBatch batches_[2];
  std::unique_ptr<checkpoint::Saver> saver_;
  checkpoint::Progress progress_;
  std::filesystem::path saved_;  ///< the newest checkpoint, perhaps still being written
  std::filesystem::path good_;   ///< the newest checkpoint that has been trained on without a non-finite step
  int64_t skipped_in_a_row_ = 0, skipped_total_ = 0;
};

}  // namespace te::train
