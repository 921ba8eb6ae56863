// Pipeline schedules as data: for every stage the list of its actions during one optimizer step, in order. A schedule
// is a pure function of its shape, without communicators and devices, so it can be simulated (simulate.h), drawn
// (draw.h) and tested for every shape without a cluster. The executor walks its own stage's list and has no code for
// specific schedules.
//
// The pipeline
// 1. The model is partitioned into `stages * chunks` global chunks in layer order. Global chunk g is chunk
//    g / stages of stage g % stages. With one chunk a stage has one run of layers; with more it has several runs, and
//    the activations pass every stage `chunks` times.
// 2. forward of global chunk g needs the output of chunk g - 1. The input comes from stage (stage - 1) mod stages,
//    unless g is the first chunk; the output goes to stage (stage + 1) mod stages, unless g is the last. backward uses
//    the opposite direction.
// 3. A stage has four channels: forward from the previous stage, forward to the next, backward from the next, backward
//    to the previous. Each is a queue: tensors arrive in the order of the sends, and the receiver expects them in that
//    order. There are four channels even if the previous and next stage are the same rank (stages = 2).
// 4. A send is asynchronous: it passes a finished buffer to its channel, and the stage continues. A receive blocks. The
//    capacity of a channel is channel_messages() tensors that are not yet received; with less, stages could wait for
//    each other's receives in a ring. It is one except for interleaved zero_bubble, where a microbatch arrives later
//    between the last stage and the first (zero_bubble.cpp).
//
// Slots
// 5. Forward saves activations for backward in an activation slot of the chunk. receive_forward (or forward, if nothing
//    is received) allocates the slot. backward frees it; in zero_bubble wgrad does, because it reads the saved inputs
//    of the linear layers. All actions of a microbatch on a chunk have the same slot. send_backward must not read from
//    the slot, which is already free. With zero_bubble the chunks of a stage share their slots, each of which is large
//    enough for any of them.
// 6. With zero_bubble, backward stores the gradients that wgrad needs in a wgrad slot, which wgrad frees. Only
//    zero_bubble has wgrad actions and wgrad slots; in the other schedules backward computes both gradients.
// 7. In every schedule the backward (and wgrad) passes of a chunk run in the order of the microbatches, so weight
//    gradients are summed in the same order with every schedule and on one rank.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/choices.h"

namespace te::parallel {

enum class ActionKind : uint8_t {
  receive_forward,
  forward,
  send_forward,
  receive_backward,
  backward,
  send_backward,
  wgrad
};

std::string_view action_name(ActionKind kind);

struct Action {
  ActionKind kind;
  int microbatch;       ///< 0 .. microbatches - 1
  int chunk;            ///< model chunk of this stage, 0 .. chunks - 1
  int slot;             ///< activation slot of the chunk, or of the stage if its chunks share slots
  int wgrad_slot = -1;  ///< for backward and wgrad with zero_bubble: slot of wgrad's operands

  bool operator==(const Action&) const = default;
};

struct StageSchedule {
  std::vector<Action> actions;
  /// Number of activation slots per chunk: the maximum of microbatches in flight. If the stage's chunks share slots,
  /// one number: the maximum of (chunk, microbatch) pairs in flight.
  std::vector<int> slots;
  int wgrad_slots = 0;  ///< maximum of (chunk, microbatch) pairs between backward and wgrad on the stage
};

struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int stages = 1;        ///< parallel.pipeline
  int chunks = 1;        ///< parallel.virtual_stages
  int microbatches = 1;  ///< training.global_batch_size / micro_batch_size / data-parallel size

  /// True if the chunks of a stage share their activation slots.
  bool shares_slots() const { return kind == ScheduleKind::zero_bubble; }
  /// Capacity of the channel of a stage's send_forward or send_backward, in tensors that are not yet received.
  int channel_messages(int stage, ActionKind send) const;
  int total_chunks() const { return stages * chunks; }
  /// The global chunk of a stage's chunk: its position in the model.
  int global_chunk(int stage, int chunk) const { return chunk * stages + stage; }
};

/// UserError with the keys, the rule and the remedy if there is no schedule of this shape.
void check(const ScheduleShape& shape);

/// The schedules of all stages. Checks the shape first. With one stage, every kind of schedule runs forward and
/// backward (and wgrad) of one microbatch after the other, with one slot and without communication.
std::vector<StageSchedule> make_schedule(const ScheduleShape& shape);

}  // namespace te::parallel
