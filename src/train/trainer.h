// A run of te-train: start-up, then the loop of steps, validation, logs and checkpoints. Its parts have files of their
// own:
//
//   batches.h      what is read from the datasets        startup.h      weights and state to start with
//   step_runner.h  what a step does on the device        validation.h   the loss on the validation set
//   saves.h        checkpoints                           metrics.h      console and logs
//   run_folder.h   whose folders these are               signals.h      what is asked of it from outside
//   best.h         the best checkpoint, early stopping   samples.h      texts of the model
//   source_losses.h  the loss of each dataset of a blend
//
// While the device works on a step, the loop reads the next one's samples, and then waits for the device once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "parallel/world.h"
#include "train/batches.h"
#include "train/best.h"
#include "train/fp8_statistics.h"
#include "train/guard.h"
#include "train/loss_spikes.h"
#include "train/metrics.h"
#include "train/run_folder.h"
#include "train/samples.h"
#include "train/saves.h"
#include "train/signals.h"
#include "train/source_losses.h"
#include "train/startup.h"
#include "train/step_runner.h"

namespace te::train {

enum class Outcome : uint8_t { finished, interrupted, diverged };

class Trainer {
 public:
  /// Plans all memory; allocates none. World and groups are the job's, and must outlive the trainer. With `overwrite`
  /// an earlier run in the same folders is removed; without, a run that would lose it is refused.
  Trainer(const config::Config& config, Context& context, parallel::World& world,
          const parallel::Groups& groups, bool overwrite);

  /// Before run(): texts are made every logging.generate_every steps. Its memory becomes part of the plan.
  void make_samples_with(std::unique_ptr<SampleMaker> maker);

  const MemoryPlan& plan() const { return runner_.plan(); }
  model::ModelStage& model() { return runner_.model(); }

  /// Opens the data, allocates, initializes or resumes, and trains to the last step, or until a signal asks it to stop:
  /// then the step in work is finished and a checkpoint saved, whatever checkpoint.save_last says. All ranks take the
  /// same steps and have the same outcome; rank 0 writes the logs. It calls `record` once the folders are this run's.
  Outcome run(Requests& requests, const std::function<void()>& record = {});

 private:
  /// What the ranks agree to do after a step.
  enum class Ask : uint8_t { nothing, save, stop, give_up };

  // Start-up, in this order.
  void open_data();
  void take_folders();
  std::unique_ptr<checkpoint::Saver> make_saver();
  void prepare_folders(const StartPoint& start, const std::function<void()>& record);
  void calibrate();

  // The loop.
  Outcome loop(Requests& requests);
  std::unique_ptr<MetricsWriter> make_writer();  ///< of rank 0; else null
  /// A dataset that cannot be used from here on is noted, and ends the run at give_up(), behind a checkpoint.
  void read_batch(int64_t first_sample, HostBatch& batch);
  void give_up();
  void wait_for_device(int64_t step);
  StepMetrics finish_step(const HostBatch& batch, double seconds);
  void look_for_spike(StepMetrics& metrics);
  void evaluate(StepMetrics& metrics);
  void add_source_losses(const HostBatch& batch, int64_t first_sample, const StepMetrics& metrics);
  void make_samples(int64_t step);
  /// Before the step is launched.
  Fp8Statistics observe(const HostBatch& batch);
  void log_statistics(const Fp8Statistics& statistics, StepMetrics& metrics, MetricsWriter* writer);
  /// `anyway`: a checkpoint is due, whether it is among the best or not; `whole`: before the run goes on. True when it
  /// saved.
  bool save(const StepMetrics& metrics, bool anyway, bool whole);
  void roll_back();
  void make_guard();
  /// To where the guard has put the state.
  void go_back_to(const checkpoint::Progress& start);
  Ask agree(Requests& requests);
  Outcome stop_diverged(const std::string& why);
  Outcome report(int64_t steps, double in_steps, double in_loop) const;
  bool saves_on_its_way() const {
    return config_.checkpoint.save_every > 0 || config_.checkpoint.keep_best > 0;
  }
  bool saves() const { return saves_on_its_way() || config_.checkpoint.save_last; }

  config::Config config_;
  Context& context_;
  parallel::World& world_;
  const bool overwrite_;
  StepRunner runner_;
  std::unique_ptr<Batches> batches_;
  HostBatch host_batches_[2];
  std::optional<RunFolder> folder_;  ///< rank 0
  std::optional<Saves> saves_;
  checkpoint::Progress progress_;
  LossSpikes spikes_;
  Best best_;
  std::optional<SourceLosses> sources_;
  std::optional<Guard> guard_;
  std::unique_ptr<SampleMaker> sample_maker_;
  std::optional<SampleLog> sample_log_;               ///< rank 0
  std::optional<Fp8StatisticsLog> statistics_log_;    ///< rank 0
  int64_t skipped_in_a_row_ = 0, skipped_total_ = 0;  ///< not finite; a skipped spike is none of them
  int64_t rollbacks_ = 0;
  std::string bad_data_;  ///< what this rank has to say of its data; empty mostly
};

}  // namespace te::train
