// Pipeline schedules as data: for every stage the list of things it does, in order, during one optimizer
// step. A schedule is made by a pure function of its shape; no communicator and no device is involved, so
// it can be simulated (simulate.h), drawn (draw.h) and tested for every shape without a cluster. The
// executor walks its own stage's list and knows nothing about schedules.
//
// The pipeline
// 1. The model is cut into `stages * chunks` pieces in layer order. Piece g ("global chunk") is chunk
//    g / stages of stage g % stages: with one chunk a stage owns one run of layers, with more it owns
//    several runs and the activations pass every stage `chunks` times.
// 2. forward of piece g needs the output of piece g - 1: it comes from stage (stage - 1) mod stages, unless
//    g is the first piece, and goes to stage (stage + 1) mod stages, unless g is the last.
//    backward runs the same way in the opposite direction.
// 3. A stage has four channels: forward from the previous stage, forward to the next, backward from the
//    next, backward to the previous. Each is a queue: messages arrive in the order they were sent, and the
//    receiver names them in that order. They are four even where previous and next are one rank (stages = 2).
// 4. A send is asynchronous: it hands a finished buffer to its channel and the stage goes on. A receive
//    blocks. A channel holds as many messages that are not yet received as the shape says (channel_messages): with
//    fewer, stages could wait for each other's receives in a ring. That is one, but for interleaved zero_bubble, whose
//    chunks meet a microbatch later where the ring closes (zero_bubble.cpp).
//
// Slots
// 5. What forward saves for backward lives in an activation slot of the chunk. receive_forward (or forward,
//    where nothing is received) takes it, and it is free again after backward, in zero_bubble after wgrad,
//    which reads the saved inputs of the linears once more. All actions of a microbatch on a chunk name the
//    same slot; send_backward comes when the slot is already free and must not read from it. With zero_bubble a
//    stage's chunks share their slots, each of which has room for any of them.
// 6. With zero_bubble, backward leaves the gradients that wgrad will need in a wgrad slot, which wgrad frees.
//    Only zero_bubble has wgrad actions and wgrad slots; everywhere else backward computes both gradients.
// 7. In every schedule the backward (and wgrad) passes of a chunk run in the order of the microbatches, so
//    weight gradients are summed in the same order under every schedule and on one rank.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace te::parallel {

enum class ScheduleKind : uint8_t { gpipe, one_f_one_b, interleaved, zero_bubble };

/// The value of parallel.schedule: "gpipe", "1f1b", "interleaved", "zero_bubble".
std::string_view schedule_name(ScheduleKind kind);

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
  int slot;             ///< activation slot of the chunk, or of the stage where chunks share them
  int wgrad_slot = -1;  ///< zero_bubble, backward and wgrad: where backward leaves its operands for wgrad

  bool operator==(const Action&) const = default;
};

struct StageSchedule {
  std::vector<Action> actions;
  std::vector<int>
      slots;            ///< per chunk: activation slots, the most microbatches in flight at once; one number,
                        ///< the most (chunk, microbatch) pairs in flight, where the stage's chunks share them
  int wgrad_slots = 0;  ///< of the stage: the most (chunk, microbatch) pairs between backward and wgrad
};

struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int stages = 1;        ///< parallel.pipeline
  int chunks = 1;        ///< parallel.virtual_stages
  int microbatches = 1;  ///< training.global_batch_size / micro_batch_size / data-parallel size

  /// Whether the chunks of a stage share their activation slots.
  bool shares_slots() const { return kind == ScheduleKind::zero_bubble; }
  /// Messages that the channel behind a stage's send_forward or send_backward must hold before they are received.
  int channel_messages(int stage, ActionKind send) const;
  int pieces() const { return stages * chunks; }
  /// The global chunk: position of a stage's chunk in the model.
  int piece(int stage, int chunk) const { return chunk * stages + stage; }
};

/// UserError when no such schedule exists; it names the keys, the rule and the remedy.
void check(const ScheduleShape& shape);

/// The schedules of all stages. Checks the shape first. One stage needs no pipeline: whatever the kind, it
/// runs forward and backward (and wgrad) of one microbatch after the other, with one slot and no messages.
std::vector<StageSchedule> make_schedule(const ScheduleShape& shape);

}  // namespace te::parallel
