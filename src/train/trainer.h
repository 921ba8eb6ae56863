// The training loop. One step, in order (trainer.cpp):
//   1. this step's samples, already in page-locked memory, go to the device
//   2. forward and backward of every microbatch; gradients accumulate
//   3. gradient norm, clipping, AdamW
//   4. FP8 scales from the step's amaxes; weights cast for the next step
//   5. the next step's samples are read while the device works
//   6. one wait for the device; metrics
#pragma once

#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "data/sampler.h"
#include "model/model_stage.h"
#include "optim/optimizer.h"
#include "train/metrics.h"

namespace te::train {

enum class Outcome : uint8_t { finished, interrupted, diverged };

class Trainer {
 public:
  /// Plans all memory; allocates none.
  Trainer(const config::Config& config, Context& context);

  const MemoryPlan& plan() const { return plan_; }
  model::ModelStage& model() { return model_; }

  /// Opens the data, allocates, initializes or resumes, and trains to the last step. `stop` is set by a
  /// signal handler: the step in work is finished and a checkpoint saved.
  Outcome run(const volatile std::sig_atomic_t* stop);

 private:
  struct HostBatch {
    HostBuffer tokens, targets;  ///< int32 [global batch, seq]
    int64_t counted = 0;         ///< targets that are not -1
  };

  void open_data();
  void allocate();
  void start();
  void calibrate();
  void read_batch(int64_t first_sample, HostBatch& batch) const;
  void launch_step(const HostBatch& batch, bool count_fp8);
  void microbatch(int64_t index, float grad_scale, bool count_fp8);
  void launch_update(bool count_fp8);
  double validate();
  void save();
  std::string last_checkpoint() const;

  config::Config config_;
  Context& context_;
  model::ModelStage model_;
  optim::Optimizer optimizer_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
  Tensor tokens_, targets_;  ///< int32 [num_microbatches, tokens of a microbatch]
  Tensor valid_loss_;        ///< [1] fp32
  std::unique_ptr<BatchSource> train_data_, valid_data_;
  HostBatch batches_[2];
  checkpoint::Progress progress_;
  std::filesystem::path saved_;
};

}  // namespace te::train
