// The training loop: steps, validation, logs and checkpoints. Its parts:
//
//   batch_reader.h       this rank's samples of a step        step_runner.h    a step on the device
//   validation.h         loss on the validation sets          metrics.h        console and logs
//   checkpoint_manager.h checkpoints                          signals.h        requests by signals
//   best_checkpoints.h   best checkpoint, early stopping      samples.h        generated texts
//   loss_spikes.h        loss spikes and divergence           guard.h          FP8 compared with BF16
//   source_losses.h      loss per dataset of a blend          fp8_statistics.h FP8 quantization statistics
//   step_precision.h     FP8 or BF16, step by step            loss_scaler.h    loss scale of FP16
//   task_results.h       evaluation on tasks
//
// While the device runs a step, the loop reads the samples of the next one, and then waits once for the device.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "core/choices.h"
#include "parallel/world.h"
#include "train/batch_reader.h"
#include "train/batches.h"
#include "train/best_checkpoints.h"
#include "train/checkpoint_manager.h"
#include "train/fp8_health.h"
#include "train/fp8_statistics.h"
#include "train/guard.h"
#include "train/loss_scaler.h"
#include "train/loss_spikes.h"
#include "train/metrics.h"
#include "train/remaining_time.h"
#include "train/run_folder.h"
#include "train/samples.h"
#include "train/signals.h"
#include "train/source_losses.h"
#include "train/speed_of_light.h"
#include "train/startup.h"
#include "train/step_precision.h"
#include "train/step_runner.h"
#include "train/task_results.h"

namespace te::train {

enum class Outcome : uint8_t { finished, stopped_early, interrupted, diverged };
TE_NAMES(Outcome, "finished", "stopped early", "interrupted", "diverged")

/// What startup has created for the loop; must outlive it.
struct LoopParts {
  const config::Config& config;  ///< whole, as the loop reads keys of every section
  const Context& context;
  parallel::World& world;
  StepRunner& runner;
  const std::optional<checkpoint::Base>& base;  ///< of the run's adapter
  const Batches& batches;
  BatchReader& reader;
  CheckpointManager& checkpoint_manager;
  BestCheckpoints& best_checkpoints;
  const GpuModel* gpu = nullptr;   ///< rates of the GPU; null if they are unknown
  RunFolder* folder = nullptr;     ///< of rank 0; else null
  SampleMaker* samples = nullptr;  ///< null unless texts are generated
  Evaluator* tasks = nullptr;      ///< null unless tasks are evaluated
};

class TrainingLoop {
 public:
  /// `start`: the state that the run starts from.
  TrainingLoop(const LoopParts& parts, const StartPoint& start);

  /// Trains to the last step, or until a signal asks it to stop: it then finishes the current step and saves a
  /// checkpoint, regardless of checkpoint.save_last. All ranks take the same steps and return the same outcome; rank 0
  /// writes the logs.
  Outcome run(Requests& requests);

 private:
  /// What the ranks agree to do after a step.
  enum class StepRequest : uint8_t { none, save, stop, data_error };
  /// What follows from the losses of a step.
  enum class StepDecision : uint8_t { proceed, rolled_back, diverged };
  /// The next step, and what is due after it.
  struct Due {
    int64_t step = 0;
    bool last = false, log = false, fp8_health = false, fp8_statistics = false;
  };

  void start();
  void open_logs();
  void make_guard();
  Due next_step() const;

  // The phases of a step, in order.
  StepMetrics run_step(const Due& due);
  /// Sets the precision of the next step, that of `batch`, and calibrates its scales if needed.
  void set_step_precision(const HostBatch& batch);
  void wait_for_device(int64_t step);
  StepMetrics finish_step(const HostBatch& batch, double seconds);
  void detect_spike(StepMetrics& metrics);
  void adapt_loss_scale(StepMetrics& metrics);
  void add_source_losses(const HostBatch& batch, int64_t first_sample, const StepMetrics& metrics);
  void log_statistics(const Fp8Statistics& statistics, StepMetrics& metrics);
  bool evaluate(const Due& due, StepMetrics& metrics);
  bool evaluate_tasks(const Due& due, StepMetrics& metrics);
  /// Whether the run ends after this step, validated if it is due.
  bool ends(const Due& due) const;
  void write_logs(const Due& due, StepMetrics& metrics);
  StepDecision decide(const StepMetrics& metrics);
  void make_samples(int64_t step);
  /// Returns true if the run must stop.
  bool checkpoint(const Due& due, const StepMetrics& metrics, Requests& requests);

  /// Sets the progress to that of an earlier step; the training state has been restored already.
  void restore_progress(const checkpoint::Progress& progress);
  void rollback_to_verified(const std::filesystem::path& verified_checkpoint);
  StepDecision diverged(const std::string& why) const;
  /// `anyway`: a checkpoint is due even if it is not among the best. `blocking`: wait until it is complete. Returns
  /// whether it saved.
  bool save(const StepMetrics& metrics, bool anyway, bool blocking);
  StepRequest reduce_requests(Requests& requests);
  void warn_about_missing_state(bool resumed) const;
  Outcome report(double in_loop) const;

  /// Buffer for the next step's samples, which are read while the device runs the current step.
  HostBatch& next_batch() { return host_batches_[steps_taken_ % 2]; }

  const config::Config& config_;
  const Context& context_;
  parallel::World& world_;
  StepRunner& runner_;
  const std::optional<checkpoint::Base>& base_;
  const Batches& batches_;
  BatchReader& reader_;
  CheckpointManager& checkpoint_manager_;
  BestCheckpoints& best_checkpoints_;
  RunFolder* folder_;
  SampleMaker* sample_maker_;
  Evaluator* evaluator_;

  checkpoint::Progress progress_;  ///< everything that determines later steps
  bool scales_;                    ///< the FP8 state has amaxes, of a checkpoint or of this run
  StepPrecision precision_;
  LossScaler scaler_;
  const int64_t first_step_;
  const GpuModel* gpu_;  ///< null if it is unknown
  const double token_flops_;
  const std::optional<SpeedOfLight> speed_of_light_;
  HostBatch host_batches_[2];
  LossSpikes spikes_;
  Fp8HealthReader fp8_health_;
  RoutingReader routing_;
  RemainingTime remaining_;
  std::optional<SourceLosses> sources_;
  std::optional<Guard> guard_;
  Guard::Verdict verdict_ = Guard::Verdict::none;  ///< of the last step
  std::unique_ptr<MetricsWriter> writer_;          ///< rank 0
  std::optional<SampleLog> sample_log_;            ///< rank 0
  int64_t steps_taken_ = 0;                        ///< including steps undone by rollbacks
  double in_steps_ = 0;                            ///< seconds, without validation, logs and checkpoints
};

}  // namespace te::train
