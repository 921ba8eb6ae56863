// Executes this rank's pipeline schedule: forward and backward passes of a step's microbatches in the schedule's order,
// sending the residual stream and its gradient between the stages. Without pipeline parallelism there is no
// communication, and the order is forward, backward, forward, backward.
//
// Each link has a CUDA stream. Sends go through buffers: one more than the number of sends that the schedule may have
// in flight, usually two in all, so that the next pass need not wait for the neighbor. A receive writes directly to its
// destination after all passes launched earlier, which may still read it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "model/model_stage.h"
#include "parallel/groups.h"
#include "parallel/schedule/schedule.h"

namespace te::train {

/// The grid of parallel.tensor, context and pipeline for a job of `ranks` ranks.
parallel::ProcessGrid grid_of(const config::ParallelConfig& layout, int ranks);

/// The schedule's shape from parallel.* and the batch sizes. UserError when the global batch is not a multiple of the
/// microbatches that the data-parallel ranks process at once.
parallel::ScheduleShape schedule_shape(const config::TrainingConfig& training,
                                       const config::ParallelConfig& layout,
                                       const parallel::ProcessGrid& grid);

/// Device data of one step's microbatches, each int32 [num_microbatches, tokens of a microbatch].
struct DeviceBatch {
  PlannedTensor tokens, targets;
  PlannedTensor document_start;  ///< only with data.document_mask
  Tensor tokens_of(int64_t microbatch) const { return row(tokens, microbatch); }
  Tensor targets_of(int64_t microbatch) const { return row(targets, microbatch); }
  Tensor document_start_of(int64_t microbatch) const {
    return document_start ? row(document_start, microbatch) : Tensor{};
  }

 private:
  static Tensor row(const Tensor& all, int64_t index) { return all.slice_rows(index, 1).view({all.cols()}); }
};

class Pipeline {
 public:
  /// UserError when there is no such schedule. The stage and the groups must outlive it.
  Pipeline(const config::TrainingConfig& training, const config::ParallelConfig& layout,
           const Context& context, model::ModelStage& stage);

  model::StageSlots slots() const { return {.activations = schedule_.slots, .wgrad = schedule_.wgrad_slots}; }
  /// After the stage's plan.
  void plan(MemoryPlan& plan);

  /// Returns the pass of a microbatch (which samples, what to count).
  using PassOf = std::function<model::Pass(int64_t microbatch)>;
  /// Runs all microbatches of a step, forward and backward.
  void run(const Context& context, const DeviceBatch& batch, float grad_scale, const Tensor& loss_sum,
           const PassOf& pass_of);
  /// Runs one microbatch through all stages: forward, and backward unless the pass evaluates.
  void run_one(const Context& context, const DeviceBatch& batch, float grad_scale, const Tensor& loss_sum,
               const model::Pass& pass);

 private:
  /// One direction of communication with a neighbor stage.
  struct Link {
    Link(const Context& context, size_t num_buffers);
    Context stream;
    Event start;                        ///< what the communication must wait for
    std::vector<Event> done;            ///< per buffer; one for a receive
    std::deque<PlannedTensor> buffers;  ///< sends: two or more; receives: none
    size_t next = 0;                    ///< buffer of the next send
  };
  Link& link(parallel::Channel channel) { return links_[static_cast<size_t>(channel)]; }
  void receive(const Context& context, parallel::Channel channel, const Tensor& into);
  /// The next send buffer; waits until its previous content has been sent.
  Tensor buffer(const Context& context, parallel::Channel channel);
  void send(const Context& context, parallel::Channel channel);
  void forward(const Context& context, const model::MicrobatchSlot& place, const DeviceBatch& batch,
               int64_t microbatch, float grad_scale, const Tensor& loss_sum, const model::Pass& pass);
  void backward(const Context& context, const model::MicrobatchSlot& place, const DeviceBatch& batch,
                int64_t microbatch, const model::Pass& pass);

  model::ModelStage& stage_;
  const parallel::Groups& groups_;
  parallel::StageSchedule schedule_;
  std::deque<Link> links_;  ///< by Channel; empty without a pipeline
};

}  // namespace te::train
