// The optimizer step: gradient norm, clipping, AdamW on the FP32 master weights (or Muon on the layers' matrices,
// muon.h), new BF16 weights. All of it runs on the device; the host reads the outcome from StepStatus, which is copied
// once per step.
//
// Data-parallel ranks shard the optimizer state (ZeRO-1): each stores FP32 master weights and Adam moments of its own
// segments only, updates these, and gathers the weights of the others. A step, as seen by the caller:
//
//   begin_step()
//   passes of all microbatches; reducer().begin() before the last backward pass, reducer().ready() in it
//   step()
//   ... the next step's forward pass, with gatherer().wait() before weights are read
//
// With optimizer.offload, the Adam moments, and optionally the FP32 master weights, are in host memory and pass through
// device memory in each step (state_ring.h). AdamW computes the same as without offload.
#pragma once

#include <functional>
#include <limits>
#include <utility>
#include "comm/gradient_reducer.h"
#include "comm/parameter_gatherer.h"
#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "optim/lr_schedule.h"
#include "optim/moment_runs.h"
#include "optim/moments.h"
#include "optim/muon.h"
#include "optim/state_ring.h"
#include "optim/update_groups.h"
#include "parallel/groups.h"
#include "parameters/parameter_store.h"

namespace te::optim {

/// The result of a step for the host; the same on every rank.
struct StepStatus {
  float loss_sum = 0.0f;        ///< cross entropy, over the tokens of the global batch
  float sum_of_squares = 0.0f;  ///< of all gradients, including the loss scale
  float z_loss_sum = 0.0f;      ///< like loss_sum, for the z-loss
  float grad_norm = 0.0f;       ///< before clipping, of unscaled gradients
  float multiplier = 0.0f;      ///< clipping coefficient, divided by the loss scale
  int32_t skipped = 0;          ///< no update: loss or gradient not finite, or a loss spike
};

/// The parts of a run's config that the optimizer uses.
struct OptimizerOptions {
  config::OptimizerConfig optimizer;
  uint64_t seed = 0;             ///< training.seed, for stochastic rounding
  bool tied_embeddings = false;  ///< model.tie_word_embeddings
  bool z_loss = false;           ///< training.z_loss_coefficient is not 0
};

/// Maximum device memory of the buffers for offloaded state.
inline constexpr int64_t kOffloadBufferBytes = int64_t{512} << 20;

class Optimizer {
 public:
  /// The groups must outlive it.
  Optimizer(const OptimizerOptions& options, parameters::ParameterStore& parameters,
            const parallel::Groups& groups);

  /// After the store's plan(). `update`: lifetime of the scratch of step(); empty: separate memory.
  void plan(MemoryPlan& plan, Lifetime update = {});
  /// After the plan's memory is allocated.
  void bind(const Context& context);
  /// Called in every step between the gradient norm and the updates, with the device flag of a skipped step.
  void set_before_update(std::function<void(const Context&, const int32_t* skip)> work) {
    before_update_ = std::move(work);
  }
  /// Starts a step: resets the gradients and zeroes the loss sum. InternalError while gradients are being reduced.
  void begin_step(const Context& context);
  /// With optimizer.offload: starts to fetch state, overlapped with the passes. Optional, before step().
  void prefetch(const Context& context) { ring_.begin(context); }
  /// Finishes the reduction of gradients, updates FP32 master weights and BF16 weights unless the step is skipped, and
  /// starts the gather of the weights. This rank's gradients must be complete and divided by the number of tokens of
  /// the global batch; each loss must have been added to the loss sum of one rank. A step is skipped on all ranks or
  /// none; also if the loss sum is above `largest_loss_sum`. `gradient_scale`: factor that the gradients contain, the
  /// loss scale.
  void step(const Context& context, float lr, float largest_loss_sum = std::numeric_limits<float>::infinity(),
            float gradient_scale = 1.0f);
  /// Waits until FP32 master weights and Adam moments in host memory are those of the last step: with optimizer.offload
  /// their copies may still be running. Call before other code reads or writes them.
  void wait_offload() const { ring_.wait_offload(); }
  /// Copies the status to page-locked memory; valid after the next synchronize of the context.
  void fetch_status(const Context& context);
  StepStatus status() const { return *host_status_.as<StepStatus>(); }

  /// Reports the result of a step: a step that was not skipped counts for the bias correction.
  void finish_step(bool skipped) { updates_ += skipped ? 0 : 1; }
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

  comm::GradientReducer& reducer() { return reducer_; }
  comm::ParameterGatherer& gatherer() { return gatherer_; }
  const LrSchedule& schedule() const { return schedule_; }
  Tensor loss_sum() const { return field(0, DType::f32); }
  Tensor z_loss_sum() const { return z_loss_ ? field(2, DType::f32) : Tensor{}; }  ///< empty without z-loss
  const int32_t* skip_flag() const { return field(5, DType::i32).as<int32_t>(); }

  Planned<Moments> exp_avg;     ///< [shard_size]; momentum for matrices of Muon
  Planned<Moments> exp_avg_sq;  ///< likewise, without matrices of Muon

 private:
  /// Elements of a segment that one AdamW launch updates.
  struct AdamWRun {
    size_t segment = 0;
    int64_t begin = 0, count = 0;  ///< within the segment
  };
  /// The state of a run that AdamW updates, on the device.
  struct State {
    parameters::MainParams main;
    Moments exp_avg, exp_avg_sq;
  };
  void find_adamw_runs();
  int64_t slot_elements(bool mains) const;
  void plan_ring(MemoryPlan& plan);
  void split_adamw_runs(int64_t longest);
  void update_status(const Context& context, float largest_loss_sum, float gradient_scale);
  State fetch(const Context& context, size_t number);
  void update(const Context& context, size_t number, float lr);
  Tensor flags_of(const AdamWRun& run) const;
  Tensor field(int index, DType dtype) const;  ///< word `index` of the device's StepStatus

  config::OptimizerConfig config_;
  uint64_t seed_;
  bool z_loss_;
  parameters::ParameterStore& parameters_;
  const parallel::Groups& groups_;
  comm::GradientReducer reducer_;
  comm::ParameterGatherer gatherer_;
  LrSchedule schedule_;
  UpdateGroups update_groups_;
  Muon muon_;
  std::vector<AdamWRun> adamw_runs_;
  int64_t updates_ = 0;
  StateRing ring_;            ///< one chunk per entry of adamw_runs_; empty without optimizer.offload
  PlannedTensor slot_mains_;  ///< in the ring's slots
  Planned<Moments> slot_exp_avg_, slot_exp_avg_sq_;  ///< likewise
  std::vector<MomentRuns> runs_;  ///< per entry of adamw_runs_; empty if both moments are FP32
  PlannedTensor run_table_;       ///< u8, runs_ on the device
  PlannedTensor status_;          ///< u8 [sizeof(StepStatus)]
  PlannedTensor scratch_;         ///< for the gradient norm
  HostBuffer host_status_;
  std::function<void(const Context&, const int32_t*)> before_update_;
};

}  // namespace te::optim
