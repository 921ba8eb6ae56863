// Checks shapes of schedules, and converts the order of a stage's computations (orders.h) to its list of actions.
//
// 1. A receive directly precedes the computation that needs it. An earlier receive would allocate its slot earlier and
//    exceed the bounds on memory. This need not cost time on a GPU because the host enqueues work in advance; the
//    executor decides how early the data may arrive (train/pipeline.h).
// 2. A send directly follows the computation of its data, before a wgrad that can wait.
// 3. A microbatch gets the lowest free slot of its chunk, or of the stage if its chunks share slots. The number of
//    slots is the maximum in use at once.
#include "parallel/schedule/schedule.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "core/error.h"
#include "parallel/schedule/orders.h"

namespace te::parallel {

namespace {

constexpr std::array<std::string_view, 7> kActionNames = {
    "receive_forward", "forward", "send_forward", "receive_backward", "backward", "send_backward", "wgrad"};

/// Allocates slot numbers 0, 1, ..., lowest first; count() is the maximum allocated at once.
class Slots {
 public:
  int take() {
    const auto free = std::ranges::find(taken_, false);
    const auto slot = static_cast<int>(free - taken_.begin());
    if (free == taken_.end()) {
      taken_.push_back(true);
    } else {
      *free = true;
    }
    return slot;
  }
  void give_back(int slot) { taken_.at(slot) = false; }
  int count() const { return static_cast<int>(taken_.size()); }

 private:
  std::vector<bool> taken_;
};

/// Adds sends, receives and slots to the computations of one stage.
class StageWriter {
 public:
  StageWriter(const ScheduleShape& shape, int stage)
      : shape_(shape), stage_(stage), slots_(shape.shares_slots() ? 1 : static_cast<size_t>(shape.chunks)) {}

  void add(const Step& step) {
    switch (step.kind) {
      case ActionKind::forward:
        return forward(step);
      case ActionKind::backward:
        return backward(step);
      case ActionKind::wgrad:
        return wgrad(step);
      default:
        TE_CHECK(false, "{} is not a computation", action_name(step.kind));
    }
  }

  StageSchedule finish() {
    for (const Slots& slots : slots_) out_.slots.push_back(slots.count());
    out_.wgrad_slots = wgrad_slots_.count();
    return std::move(out_);
  }

 private:
  using Key = std::pair<int, int>;  // chunk, microbatch

  bool first(const Step& step) const { return shape_.global_chunk(stage_, step.chunk) == 0; }
  bool last(const Step& step) const {
    return shape_.global_chunk(stage_, step.chunk) == shape_.total_chunks() - 1;
  }
  Slots& slots_of(const Step& step) {
    return slots_.at(shape_.shares_slots() ? 0 : static_cast<size_t>(step.chunk));
  }
  void push(ActionKind kind, const Step& step, int slot, int wgrad_slot = -1) {
    out_.actions.push_back({kind, step.microbatch, step.chunk, slot, wgrad_slot});
  }

  void forward(const Step& step) {
    const int slot = slots_of(step).take();
    slot_of_[{step.chunk, step.microbatch}] = slot;
    if (!first(step)) push(ActionKind::receive_forward, step, slot);
    push(ActionKind::forward, step, slot);
    if (!last(step)) push(ActionKind::send_forward, step, slot);
  }

  void backward(const Step& step) {
    const int slot = slot_of_.at({step.chunk, step.microbatch});
    const bool split = shape_.kind == ScheduleKind::zero_bubble;
    const int wgrad_slot = split ? wgrad_slots_.take() : -1;
    if (!last(step)) push(ActionKind::receive_backward, step, slot);
    push(ActionKind::backward, step, slot, wgrad_slot);
    if (!first(step)) push(ActionKind::send_backward, step, slot);
    if (split) {
      wgrad_slot_of_[{step.chunk, step.microbatch}] = wgrad_slot;
    } else {
      slots_of(step).give_back(slot);
    }
  }

  void wgrad(const Step& step) {
    const int slot = slot_of_.at({step.chunk, step.microbatch});
    const int wgrad_slot = wgrad_slot_of_.at({step.chunk, step.microbatch});
    push(ActionKind::wgrad, step, slot, wgrad_slot);
    slots_of(step).give_back(slot);
    wgrad_slots_.give_back(wgrad_slot);
  }

  const ScheduleShape& shape_;
  int stage_;
  std::vector<Slots> slots_;  // one per chunk, or one for all chunks
  Slots wgrad_slots_;
  std::map<Key, int> slot_of_;
  std::map<Key, int> wgrad_slot_of_;
  StageSchedule out_;
};

/// With one stage all kinds have the order of 1F1B: F B F B, or F B W F B W.
std::vector<Step> stage_order(const ScheduleShape& shape, int stage) {
  switch (shape.kind) {
    case ScheduleKind::gpipe:
      return shape.stages == 1 ? one_f_one_b_order(shape, stage) : gpipe_order(shape, stage);
    case ScheduleKind::one_f_one_b:
      return one_f_one_b_order(shape, stage);
    case ScheduleKind::interleaved:
      return interleaved_order(shape, stage);
    case ScheduleKind::zero_bubble:
      return zero_bubble_order(shape, stage);
  }
  internal_error("unknown schedule", std::source_location::current());
}

/// Checks the rules for several chunks per stage.
void check_interleaving(const ScheduleShape& shape) {
  const bool zero_bubble = shape.kind == ScheduleKind::zero_bubble;
  const std::string schedule =
      zero_bubble ? fmt::format("zero_bubble with parallel.virtual_stages {}", shape.chunks) : "interleaved";
  if (shape.stages < 2) {
    user_error(
        "parallel.schedule {} needs parallel.pipeline of 2 or more (it is {}): set it, or choose "
        "parallel.schedule 1f1b and parallel.virtual_stages 1",
        schedule, shape.stages);
  }
  const int rest = shape.microbatches % shape.stages;
  if (rest != 0) {
    const int below = shape.microbatches - rest;
    user_error(
        "parallel.schedule {} needs a multiple of parallel.pipeline ({}) as number of microbatches, "
        "but training.global_batch_size / micro_batch_size / data-parallel size is {}, {} too many: make it "
        "{}{}, or choose {}",
        schedule, shape.stages, shape.microbatches, rest, below > 0 ? fmt::format("{} or ", below) : "",
        below + shape.stages, zero_bubble ? "parallel.virtual_stages 1" : "parallel.schedule 1f1b");
  }
}

}  // namespace

std::string_view action_name(ActionKind kind) {
  return kActionNames.at(static_cast<size_t>(kind));
}

int ScheduleShape::channel_messages(int stage, ActionKind send) const {
  const bool closes_ring = stage == (send == ActionKind::send_forward ? stages - 1 : 0);
  const bool several = kind == ScheduleKind::zero_bubble && chunks > 1;
  return several && closes_ring ? (2 * stages + 2) / 3 : 1;
}

void check(const ScheduleShape& shape) {
  if (shape.stages < 1) user_error("parallel.pipeline ({}) must be at least 1", shape.stages);
  if (shape.chunks < 1) user_error("parallel.virtual_stages ({}) must be at least 1", shape.chunks);
  if (shape.microbatches < 1) {
    user_error(
        "training.global_batch_size / micro_batch_size / data-parallel size gives {} microbatches; there "
        "must be at least 1: raise training.global_batch_size",
        shape.microbatches);
  }
  const bool interleaved = shape.kind == ScheduleKind::interleaved;
  if (interleaved && shape.chunks < 2) {
    user_error(
        "parallel.schedule interleaved needs parallel.virtual_stages of 2 or more (it is {}): set it, or "
        "choose parallel.schedule 1f1b",
        shape.chunks);
  }
  if (shape.chunks == 1) return;
  if (!interleaved && shape.kind != ScheduleKind::zero_bubble) {
    user_error(
        "parallel.virtual_stages ({}) must be 1 with parallel.schedule {}: set it, or choose "
        "parallel.schedule interleaved or zero_bubble",
        shape.chunks, to_string(shape.kind));
  }
  check_interleaving(shape);
}

std::vector<StageSchedule> make_schedule(const ScheduleShape& shape) {
  check(shape);
  std::vector<StageSchedule> stages;
  for (int stage = 0; stage < shape.stages; ++stage) {
    StageWriter writer(shape, stage);
    for (const Step& step : stage_order(shape, stage)) writer.add(step);
    stages.push_back(writer.finish());
  }
  return stages;
}

}  // namespace te::parallel
