// One optimizer step on the device: model, optimizer and all their memory. The trainer drives it with real
// data; te-bench times it.
#pragma once

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "model/model_stage.h"
#include "optim/optimizer.h"

namespace te::train {

/// The samples of one optimizer step in page-locked memory.
struct HostBatch {
  HostBuffer tokens, targets;  ///< int32 [global batch, seq]
  int64_t counted = 0;         ///< targets that are not -1
};

class StepRunner {
 public:
  /// Plans all memory; allocates none.
  StepRunner(const config::Config& config, const Context& context);

  const MemoryPlan& plan() const { return plan_; }
  model::ModelStage& model() { return model_; }
  optim::Optimizer& optimizer() { return optimizer_; }

  void allocate();
  HostBatch make_host_batch() const;

  /// Launches optimizer step `step` (from 1: the learning rate hangs on it) on the samples from
  /// `first_sample` (the dropout masks hang on it), and the copy of its status to the host; returns before
  /// the device is done. `batch` must stay as it is until the context has been synchronized.
  void launch(const HostBatch& batch, int64_t step, int64_t first_sample, bool count_fp8);
  /// Forward and backward of the batch's first microbatch and an update of the FP8 scales: no weight changes.
  void calibrate(const HostBatch& batch);
  /// Adds the loss of one microbatch (host tokens and targets, int32 [micro batch, seq]) to *valid_loss;
  /// waits for the device.
  void evaluate(const int32_t* tokens, const int32_t* targets);
  void begin_evaluation();
  double finish_evaluation();  ///< the sum of the losses since begin_evaluation()

 private:
  void microbatch(int64_t index, int64_t first_sample, float grad_scale, bool count_fp8);

  config::Config config_;
  const Context& context_;
  model::ModelStage model_;
  optim::Optimizer optimizer_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
  Tensor tokens_, targets_;  ///< int32 [num_microbatches, tokens of a microbatch]
  Tensor valid_loss_;        ///< [1] fp32
};

}  // namespace te::train
