// Walks this rank's pipeline schedule: the passes of all microbatches of a step in the schedule's order, with the
// stream and its gradient travelling between the stages. One rank's schedule has no messages in it, and the walk is
// forward, backward, forward, backward.
//
// A message goes on a stream of its own. What is sent is put into a buffer of its direction, of which there is one more
// than the messages that the schedule needs to be on their way, mostly two in all: the next pass need not wait for the
// neighbour. What is received goes straight to its place, after all passes launched before:
// whatever they do with the place, they have done. With parallel.overlap_receive it goes to a buffer as soon as the
// message before has been copied out of it, beside the pass that runs then, and from there to its place.
//
// With parallel.pipeline_transport copy, on GPUs, messages travel by PeerLinks (parallel/peer_links.h): what is sent
// goes from its buffer to one of several landing buffers of the receiver at once, and from there to its place when the
// receiver comes to it.
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

/// parallel.* and the batch sizes as a schedule's shape. UserError when the global batch is no multiple of what the
/// data ranks take at once.
parallel::ScheduleShape schedule_shape(const config::TrainingConfig& training,
                                       const config::ParallelConfig& layout,
                                       const parallel::ProcessGrid& grid);

/// The device data of one step's microbatches, each int32 [num_microbatches, tokens of a microbatch].
struct DeviceBatch {
  Tensor tokens, targets;
  Tensor document_start;  ///< only with data.document_mask
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

  model::StageSlots slots() const { return {schedule_.slots, schedule_.wgrad_slots}; }
  /// After the stage's plan.
  void plan(MemoryPlan& plan);
  /// Once the plan's memory is there: what must live while messages may arrive, and end before the memory does. Null
  /// where nothing has to be shared. Collective.
  std::unique_ptr<parallel::PeerLinks::RegisteredBuffers> register_buffers(const Context& context);

  /// Gives the pass of a microbatch (which samples, what to count).
  using PassOf = std::function<model::Pass(int64_t microbatch)>;
  /// All microbatches of a step, forward and backward.
  void run(const Context& context, const DeviceBatch& batch, float grad_scale, const Tensor& loss_sum,
           const PassOf& pass_of);
  /// One microbatch through all stages: forward, and backward unless the pass evaluates.
  void run_one(const Context& context, const DeviceBatch& batch, float grad_scale, const Tensor& loss_sum,
               const model::Pass& pass);

 private:
  /// One way to a neighbour or from it.
  struct Link {
    Link(const Context& context, size_t num_buffers);
    Context stream;
    Event start;              ///< what the message must wait for
    std::vector<Event> done;  ///< per buffer; of a receive without one, the first
    std::vector<Tensor>
        buffers;        ///< of a send two or more, of a receive through a channel one with overlap_receive
    size_t next = 0;    ///< buffer of the next send
    bool used = false;  ///< a receive's buffer has held a message
  };
  Link& link(parallel::Channel channel) { return links_[static_cast<size_t>(channel)]; }
  bool copies() const { return landing_buffers_ > 0; }
  /// What carries the messages; null: the channels.
  parallel::PeerLinks* peer_links() const { return copies() ? groups_.pipeline_peer_links() : nullptr; }
  void receive(const Context& context, parallel::Channel channel, const Tensor& into);
  void receive_by_channel(const Context& context, parallel::Channel channel, const Tensor& into);
  /// The next buffer to fill for a send; waits until what it held last has gone, and its message may follow.
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
  int landing_buffers_ =
      0;             ///< of each direction, the same on all stages; 0: messages travel by the channels
  Tensor arriving_;  ///< the landing buffers: forward ones, then backward ones, each [stream, hidden]
};

}  // namespace te::train
