// The loop of a run: a step, validation, logs and checkpoints, over and over. Its parts have files of their own:
//
//   batch_reader.h  this rank's samples of a step        step_runner.h    what a step does on the device
//   validation.h    the loss on the validation sets      metrics.h        console and logs
//   saves.h         checkpoints                          signals.h        what is asked of the run from outside
//   best.h          the best checkpoint, early stopping  samples.h        texts of the model
//   loss_spikes.h   losses that are too high             guard.h          FP8 compared with BF16
//   source_losses.h the loss of each dataset of a blend  fp8_statistics.h what casts do to tensors
//   step_precision.h FP8 or BF16, step by step
//   task_results.h  what tasks say of the model          loss_scaler.h    the loss scale of FP16
//
// While the device works on a step, the loop reads the next one's samples, and then waits for the device once.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
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
#include "train/startup.h"
#include "train/step_precision.h"
#include "train/step_runner.h"
#include "train/task_results.h"

namespace te::train {

enum class Outcome : uint8_t { finished, interrupted, diverged };

/// What start-up has made for the loop, which it must outlive.
struct LoopParts {
  const config::Config& config;  ///< whole: a line of every section concerns the loop
  const Context& context;
  parallel::World& world;
  StepRunner& runner;
  const Batches& batches;
  BatchReader& reader;
  CheckpointManager& checkpoint_manager;
  BestCheckpoints& best_checkpoints;
  RunFolder* folder = nullptr;     ///< of rank 0; else null
  SampleMaker* samples = nullptr;  ///< where texts are asked for; else null
  Evaluator* tasks = nullptr;      ///< where tasks are asked for; else null
};

class TrainingLoop {
 public:
  /// `start`: where the run stands.
  TrainingLoop(const LoopParts& parts, const StartPoint& start);

  /// Trains to the last step, or until a signal asks it to stop: then the step in work is finished and a checkpoint
  /// saved, whatever checkpoint.save_last says. All ranks take the same steps and have the same outcome; rank 0 writes
  /// the logs.
  Outcome run(Requests& requests);

 private:
  /// What the ranks agree to do after a step.
  enum class StepRequest : uint8_t { none, save, stop, data_error };
  /// What a step's losses say of the run.
  enum class StepDecision : uint8_t { proceed, rolled_back, diverged };
  /// A step that is due.
  struct Due {
    int64_t step = 0;
    bool last = false, log = false, fp8_health = false, fp8_statistics = false;
  };

  void start();
  void open_logs();
  void make_guard();
  Due next_step() const;

  // A step, in this order.
  StepMetrics run_step(const Due& due);
  /// The precision of the next step, that of `batch`, and where its scales have to be found, those.
  void set_step_precision(const HostBatch& batch);
  void wait_for_device(int64_t step);
  StepMetrics finish_step(const HostBatch& batch, double seconds);
  void detect_spike(StepMetrics& metrics);
  void adapt_loss_scale(StepMetrics& metrics);
  void add_source_losses(const HostBatch& batch, int64_t first_sample, const StepMetrics& metrics);
  void log_statistics(const Fp8Statistics& statistics, StepMetrics& metrics);
  bool evaluate(const Due& due, StepMetrics& metrics);
  bool evaluate_tasks(const Due& due, StepMetrics& metrics);
  void write_logs(const Due& due, StepMetrics& metrics);
  StepDecision decide(const StepMetrics& metrics);
  void make_samples(int64_t step);
  /// True when the run shall stop.
  bool checkpoint(const Due& due, const StepMetrics& metrics, Requests& requests);

  /// To a step that was taken before; the state is already that of then.
  void restore_progress(const checkpoint::Progress& progress);
  void rollback_to_verified(const std::filesystem::path& verified_checkpoint);
  StepDecision diverged(const std::string& why) const;
  /// `anyway`: a checkpoint is due, whether it is among the best or not; `blocking`: before the run goes on. True when
  /// it saved.
  bool save(const StepMetrics& metrics, bool anyway, bool blocking);
  StepRequest reduce_requests(Requests& requests);
  void warn_about_missing_state(bool resumed) const;
  Outcome report(double in_loop) const;

  /// The samples of the next step, which are read while the device works on the one before it.
  HostBatch& next_batch() { return host_batches_[steps_taken_ % 2]; }

  const config::Config& config_;
  const Context& context_;
  parallel::World& world_;
  StepRunner& runner_;
  const Batches& batches_;
  BatchReader& reader_;
  CheckpointManager& checkpoint_manager_;
  BestCheckpoints& best_checkpoints_;
  RunFolder* folder_;
  SampleMaker* sample_maker_;
  Evaluator* evaluator_;

  checkpoint::Progress progress_;  ///< all that decides later steps; a policy keeps no state elsewhere
  bool scales_;                    ///< the FP8 state knows amaxes, of a checkpoint or of this run
  StepPrecision precision_;
  LossScaler scaler_;
  const int64_t first_step_;
  HostBatch host_batches_[2];
  LossSpikes spikes_;
  Fp8HealthReader fp8_health_;
  RemainingTime remaining_;
  std::optional<SourceLosses> sources_;
  std::optional<Guard> guard_;
  Guard::Verdict verdict_ = Guard::Verdict::none;   ///< of the last step
  std::unique_ptr<MetricsWriter> writer_;           ///< rank 0
  std::optional<SampleLog> sample_log_;             ///< rank 0
  std::optional<Fp8StatisticsLog> statistics_log_;  ///< rank 0
  int64_t steps_taken_ = 0;                         ///< steps, those included from which the run went back
  double in_steps_ = 0;                             ///< seconds, without validation, logs and checkpoints
};

}  // namespace te::train
