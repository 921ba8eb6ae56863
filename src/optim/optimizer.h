// The optimizer step: gradient norm, clipping, AdamW on the FP32 main parameters, new parameter values. All
// of it runs on the device; the host learns the outcome from StepStatus, which is copied back once per step.
#pragma once

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "model/parameter_store.h"
#include "optim/lr_schedule.h"

namespace te::optim {

/// What a step leaves for the host.
struct StepStatus {
  float loss_sum = 0.0f;        ///< over the tokens of the global batch
  float sum_of_squares = 0.0f;  ///< of all gradients
  float grad_norm = 0.0f;       ///< before clipping
  float multiplier = 0.0f;      ///< the clipping coefficient
  int32_t skipped = 0;          ///< non-finite loss or gradient: nothing was updated
};

class Optimizer {
 public:
  Optimizer(const config::Config& config, model::ParameterStore& parameters);

  void plan(MemoryPlan& plan);
  /// Zeroes gradients and the loss sum: the start of a step.
  void begin_step(const Context& context);
  /// Gradients are complete and already scaled: updates main parameters and values, unless the step must be
  /// skipped.
  void step(const Context& context, float lr);
  /// Copies the status to page-locked memory; valid after the next synchronize of the context.
  void fetch_status(const Context& context);
  StepStatus status() const { return *host_status_.as<StepStatus>(); }

  /// Tells the optimizer what the host has learned: a step that was not skipped counts for the bias
  /// correction.
  void finish_step(bool skipped) { updates_ += skipped ? 0 : 1; }
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

  const LrSchedule& schedule() const { return schedule_; }
  Tensor loss_sum() const { return field(0, DType::f32); }
  const int32_t* skip_flag() const { return field(4, DType::i32).as<int32_t>(); }

  Tensor exp_avg, exp_avg_sq;  ///< [shard_size] fp32

 private:
  Tensor field(int index, DType dtype) const;  ///< member number `index` of the device's StepStatus

  config::OptimizerConfig config_;
  model::ParameterStore& parameters_;
  LrSchedule schedule_;
  int64_t updates_ = 0;
  Tensor status_;   ///< u8 [sizeof(StepStatus)]
  Tensor scratch_;  ///< of the gradient norm
  HostBuffer host_status_;
};

}  // namespace te::optim
