// Simulates a schedule with a clock instead of devices: checks that it ends and that every received tensor is the
// expected one, and computes its duration.
#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace te::parallel {

/// Durations, in any unit of time, for one microbatch on all chunks of a stage; a chunk takes an equal part.
struct Costs {
  /// Costs of one global chunk, for stages and chunks that differ.
  struct Chunk {
    double forward = 0;
    double backward = 0;  ///< dgrad and wgrad together
    double wgrad = 0;     ///< the part of backward that is wgrad; used only if wgrad is a separate action
  };
  double forward = 1;
  double backward = 2;          ///< dgrad and wgrad together
  double wgrad_fraction = 0.5;  ///< wgrad as a fraction of backward; used only if wgrad is a separate action
  double communication = 0;     ///< from send to arrival; the sender continues immediately
  /// Capacity of a channel in tensors before a send blocks; 0 is no limit. If the shape's channel_messages() is above
  /// 1, the capacity is larger by the difference.
  int buffers = 0;
  bool waits_for_receiver = false;  ///< a transfer begins only when the receiver has reached the receive
  std::vector<Chunk>
      per_chunk{};  ///< costs per global chunk instead of the three durations above, if not empty
};

/// One computation of a stage.
struct TimelineEntry {
  ActionKind kind;  ///< forward, backward or wgrad
  int microbatch;
  int chunk;
  double start;
  double end;
};

struct StageSimulation {
  double busy = 0;  ///< time spent computing
  int peak = 0;     ///< maximum of (chunk, microbatch) pairs in flight, over all chunks
  std::vector<TimelineEntry> timeline;
};

struct Simulation {
  double makespan = 0;
  double ideal = 0;            ///< work of the stage with the most work: microbatches * (forward + backward)
  double bubble_fraction = 0;  ///< (makespan - ideal) / makespan
  std::vector<StageSimulation> stages;
};

/// InternalError if the schedule violates a rule: a deadlock, an unexpected tensor, a tensor that is never received, or
/// a computation before its dependencies.
Simulation simulate(const std::vector<StageSchedule>& schedule, const ScheduleShape& shape,
                    const Costs& costs = {});

}  // namespace te::parallel
