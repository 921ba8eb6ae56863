#include "train/pipeline.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "parallel/watchdog.h"
#include "train/execution.h"

namespace te::train {

using model::MicrobatchSlot;
using parallel::ActionKind;
using parallel::Axis;
using parallel::Channel;

parallel::ProcessGrid grid_of(const config::ParallelConfig& layout, int ranks) {
  return parallel::ProcessGrid::of(ranks,
                                   {{Axis::tensor, static_cast<int>(layout.tensor)},
                                    {Axis::context, static_cast<int>(layout.context)},
                                    {Axis::pipeline, static_cast<int>(layout.pipeline)}},
                                   static_cast<int>(layout.expert));
}

parallel::ScheduleShape schedule_shape(const config::TrainingConfig& training,
                                       const config::ParallelConfig& layout,
                                       const parallel::ProcessGrid& grid) {
  const int64_t samples = training.micro_batch_size * grid[Axis::data];
  if (training.global_batch_size % samples != 0) {
    user_error(
        "training.global_batch_size ({}) is not a multiple of training.micro_batch_size * data-parallel "
        "ranks = {} * {} = {}: {} remain ({})",
        training.global_batch_size, training.micro_batch_size, grid[Axis::data], samples,
        training.global_batch_size % samples, grid.str());
  }
  return {.kind = layout.schedule,
          .stages = grid[Axis::pipeline],
          .chunks = static_cast<int>(layout.virtual_stages),
          .microbatches = static_cast<int>(training.global_batch_size / samples)};
}

Pipeline::Link::Link(const Context& context, size_t num_buffers)
    : stream(context.side(true)), start(context), buffers(num_buffers) {
  for (size_t i = 0; i < std::max<size_t>(1, num_buffers); ++i) done.emplace_back(context);
}

namespace {

constexpr std::array kAllChannels{Channel::forward_from_previous, Channel::forward_to_next,
                                  Channel::backward_from_next, Channel::backward_to_previous};

/// Sends that may be in flight on a link, in addition to the one being produced, before stages could wait for each
/// other.
int messages_on_the_way(const parallel::ScheduleShape& shape, int stage, Channel to) {
  return shape.channel_messages(
      stage, to == Channel::forward_to_next ? ActionKind::send_forward : ActionKind::send_backward);
}

}  // namespace

Pipeline::Pipeline(const config::TrainingConfig& training, const config::ParallelConfig& layout,
                   const Context& context, model::ModelStage& stage)
    : stage_(stage), groups_(stage.groups()) {
  const parallel::ScheduleShape shape = schedule_shape(training, layout, groups_.grid());
  const int at = groups_.at()[Axis::pipeline];
  schedule_ = parallel::make_schedule(shape)[static_cast<size_t>(at)];
  if (groups_.grid()[Axis::pipeline] == 1) return;
  for (const Channel channel : kAllChannels) {
    const int buffers = parallel::sends(channel) ? messages_on_the_way(shape, at, channel) + 1 : 0;
    links_.emplace_back(context, static_cast<size_t>(buffers));
  }
}

void Pipeline::plan(MemoryPlan& plan) {
  const model::Dimensions& dims = stage_.dims();
  for (Link& link : links_) {
    for (PlannedTensor& buffer : link.buffers) {
      plan.add(buffer, "pipeline.message", MemoryKind::scratch, dims.dtype,
               {dims.residual_rows, dims.hidden});
    }
  }
}

// --- communication -----------------------------------------------------------------------------------------

void Pipeline::receive(const Context& context, Channel channel, const Tensor& into) {
  Link& from = link(channel);
  from.start.record(context);
  from.start.wait(from.stream);
  groups_.receive(from.stream, into, channel);
  from.done[0].record(from.stream);
  from.done[0].wait(context);
}

Tensor Pipeline::buffer(const Context& context, Channel channel) {
  Link& to = link(channel);
  to.done[to.next].wait(context);
  return to.buffers[to.next];
}

void Pipeline::send(const Context& context, Channel channel) {
  Link& to = link(channel);
  to.start.record(context);
  to.start.wait(to.stream);
  groups_.send(to.stream, to.buffers[to.next], channel);
  to.done[to.next].record(to.stream);
  to.next = (to.next + 1) % to.buffers.size();
}

// --- passes ------------------------------------------------------------------------------------------------

void Pipeline::forward(const Context& context, const MicrobatchSlot& place, const DeviceBatch& batch,
                       int64_t microbatch, float grad_scale, const Tensor& loss_sum,
                       const model::Pass& pass) {
  const Tensor out =
      stage_.has_output_layer(place.chunk) ? Tensor{} : buffer(context, Channel::forward_to_next);
  stage_.forward(context, place, batch.tokens_of(microbatch), batch.targets_of(microbatch), grad_scale,
                 loss_sum, out, pass);
}

void Pipeline::backward(const Context& context, const MicrobatchSlot& place, const DeviceBatch& batch,
                        int64_t microbatch, const model::Pass& pass) {
  stage_.backward(context, place, batch.tokens_of(microbatch), pass);
  if (!stage_.has_embedding(place.chunk)) {
    context.copy(buffer(context, Channel::backward_to_previous), stage_.gradient());
  }
}

void Pipeline::run(const Context& context, const DeviceBatch& batch, float grad_scale, const Tensor& loss_sum,
                   const PassOf& pass_of) {
  for (const parallel::Action& action : schedule_.actions) {
    const std::string what = fmt::format("{} of microbatch {}, chunk {}", action_name(action.kind),
                                         action.microbatch, action.chunk);
    // After about 1,000 kernels that wait for another rank, a launch blocks the host.
    const parallel::Watchdog::Guard guard(context, what);
    const parallel::ScopedActivity activity(what);
    const MicrobatchSlot place{action.chunk, action.slot, action.wgrad_slot};
    const model::Pass pass = pass_of(action.microbatch);
    switch (action.kind) {
      case ActionKind::receive_forward:
        receive(context, Channel::forward_from_previous, stage_.input(place));
        break;
      case ActionKind::forward:
        forward(context, place, batch, action.microbatch, grad_scale, loss_sum, pass);
        break;
      case ActionKind::send_forward:
        send(context, Channel::forward_to_next);
        break;
      case ActionKind::receive_backward:
        receive(context, Channel::backward_from_next, stage_.gradient());
        break;
      case ActionKind::backward:
        backward(context, place, batch, action.microbatch, pass);
        break;
      case ActionKind::send_backward:
        send(context, Channel::backward_to_previous);
        break;
      case ActionKind::wgrad:
        stage_.wgrad(context, place, pass);
        break;
    }
  }
}

void Pipeline::run_one(const Context& context, const DeviceBatch& batch, float grad_scale,
                       const Tensor& loss_sum, const model::Pass& pass) {
  const parallel::ScopedActivity activity(pass.evaluating() ? "evaluation" : "FP8 calibration");
  const int chunks = stage_.num_chunks();
  const int wgrad_slot = schedule_.wgrad_slots > 0 ? 0 : -1;
  // Chunks that share slots have one each: all chunks run forward before the first one runs backward.
  const bool shared = schedule_.slots.size() == 1;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const MicrobatchSlot place{chunk, shared ? chunk : 0};
    if (!stage_.has_embedding(chunk)) receive(context, Channel::forward_from_previous, stage_.input(place));
    forward(context, place, batch, 0, grad_scale, loss_sum, pass);
    if (!stage_.has_output_layer(chunk)) send(context, Channel::forward_to_next);
  }
  if (pass.evaluating()) return;
  for (int chunk = chunks; chunk-- > 0;) {
    const MicrobatchSlot place{chunk, shared ? chunk : 0, wgrad_slot};
    if (!stage_.has_output_layer(chunk)) receive(context, Channel::backward_from_next, stage_.gradient());
    backward(context, place, batch, 0, pass);
    if (wgrad_slot >= 0) stage_.wgrad(context, place, pass);
    if (!stage_.has_embedding(chunk)) send(context, Channel::backward_to_previous);
  }
}

}  // namespace te::train
