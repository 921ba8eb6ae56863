// The optimizer step: gradient norm, clipping, AdamW on the main parameters (or Muon on those of the layers' matrices,
// muon.h), new parameter values. All of it runs on the device; the host learns the outcome from StepStatus, which is
// copied back once per step.
//
// Several data ranks share the work (ZeRO-1): each keeps main parameters and moments of its own segments
// only, updates these, and gathers the others' values. A step, as the caller sees it:
//
//   begin_step()
//   all microbatches' passes; before the last one's backward pass reducer().begin(), in it reducer().ready()
//   step()
//   ... the next step's forward pass, with gatherer().wait() before values are read
//
// With optimizer.offload moments, or these and main parameters, are in host memory, and pass the device in each step
// (state_ring.h). AdamW is what it is without.
#pragma once

#include <limits>
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
#include "parallel/groups.h"
#include "parameters/parameter_store.h"

namespace te::optim {

/// What a step leaves for the host; the same on every rank.
struct StepStatus {
  float loss_sum = 0.0f;        ///< cross entropy, over the tokens of the global batch
  float sum_of_squares = 0.0f;  ///< of all gradients, scaled as they are
  float z_loss_sum = 0.0f;      ///< as loss_sum, with a z-loss
  float grad_norm = 0.0f;       ///< before clipping, of unscaled gradients
  float multiplier = 0.0f;      ///< the clipping coefficient, and what undoes the scale
  int32_t skipped = 0;          ///< non-finite loss or gradient: nothing was updated
};

/// What it needs of a run's config.
struct OptimizerOptions {
  config::OptimizerConfig optimizer;
  config::ParallelConfig parallel;
  uint64_t seed = 0;             ///< of stochastic rounding: training.seed
  bool tied_embeddings = false;  ///< model.tie_word_embeddings
  bool z_loss = false;           ///< training.z_loss_coefficient is not 0
};

class Optimizer {
 public:
  /// The groups must outlive it.
  Optimizer(const OptimizerOptions& options, parameters::ParameterStore& parameters,
            const parallel::Groups& groups);

  /// After the store's plan(). `update`: when the scratch of step() is alive; empty: memory of its own.
  void plan(MemoryPlan& plan, Lifetime update = {});
  /// After the plan's allocation.
  void bind(const Context& context);
  /// Resets the gradients and zeroes the loss sum: the start of a step. InternalError while gradients are being
  /// reduced.
  void begin_step(const Context& context);
  /// With optimizer.offload: begins to fetch state, beside the step's passes. Optional, before step().
  void prefetch(const Context& context) { ring_.begin(context); }
  /// This rank's gradients are complete and already scaled by the number of tokens of the global batch; each
  /// loss has been added to the loss sum of one rank. Finishes the reduction, updates main parameters and
  /// values unless the step must be skipped (also because the loss sum is above `largest_loss_sum`), and starts the
  /// gather of the values. All ranks skip, or none. The gradients have been multiplied by `gradient_scale`, too.
  void step(const Context& context, float lr, float largest_loss_sum = std::numeric_limits<float>::infinity(),
            float gradient_scale = 1.0f);
  /// Before main parameters or moments are read or written by anybody else: waits until they are those of the last
  /// step. With optimizer.offload they may still be on their way to the host.
  void wait_offload() const { ring_.wait_offload(); }
  /// Copies the status to page-locked memory; valid after the next synchronize of the context.
  void fetch_status(const Context& context);
  StepStatus status() const { return *host_status_.as<StepStatus>(); }

  /// Tells the optimizer what the host has learned: a step that was not skipped counts for the bias
  /// correction.
  void finish_step(bool skipped) { updates_ += skipped ? 0 : 1; }
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

  comm::GradientReducer& reducer() { return reducer_; }
  comm::ParameterGatherer& gatherer() { return gatherer_; }
  const LrSchedule& schedule() const { return schedule_; }
  Tensor loss_sum() const { return field(0, DType::f32); }
  Tensor z_loss_sum() const { return z_loss_ ? field(2, DType::f32) : Tensor{}; }  ///< empty without a z-loss
  const int32_t* skip_flag() const { return field(5, DType::i32).as<int32_t>(); }

  Moments exp_avg;     ///< [shard_size]; of Muon's matrices the momentum
  Moments exp_avg_sq;  ///< the same, without Muon's matrices

 private:
  /// Elements of a segment that AdamW updates in one launch.
  struct AdamWRun {
    size_t segment = 0;
    int64_t begin = 0, count = 0;  ///< within the segment
  };
  /// What AdamW changes of a run, on the device.
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
  Tensor field(int index, DType dtype) const;  ///< member number `index` of the device's StepStatus

  config::OptimizerConfig config_;
  uint64_t seed_;
  bool z_loss_;
  parameters::ParameterStore& parameters_;
  const parallel::Groups& groups_;
  comm::GradientReducer reducer_;
  comm::ParameterGatherer gatherer_;
  LrSchedule schedule_;
  Muon muon_;
  std::vector<AdamWRun> adamw_runs_;
  int64_t updates_ = 0;
  StateRing ring_;     ///< a chunk is one of adamw_runs_; without optimizer.offload empty
  Tensor slot_mains_;  ///< of the ring's slots
  Moments slot_exp_avg_, slot_exp_avg_sq_;  ///< the same
  std::vector<MomentRuns> runs_;            ///< of each of adamw_runs_; empty: both moments are FP32
  Tensor run_table_;                        ///< u8, the same on the device
  Tensor status_;                           ///< u8 [sizeof(StepStatus)]
  Tensor scratch_;                          ///< of the gradient norm
  HostBuffer host_status_;
};

}  // namespace te::optim
