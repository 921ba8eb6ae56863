// Runs a schedule on a clock in place of devices: proves that it ends, that every message is the one its
// receiver expects, and says how long it takes.
#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace te::parallel {

/// Durations, in any unit of time, for one microbatch on all chunks of a stage; a chunk takes an equal part.
struct Costs {
  /// Of one piece of the model: stages and chunks that are not alike.
  struct Piece {
    double forward = 0;
    double backward = 0;  ///< dgrad and wgrad together
    double wgrad = 0;     ///< of backward; counts only where wgrad is an action of its own
  };
  double forward = 1;
  double backward = 2;          ///< dgrad and wgrad together
  double wgrad_fraction = 0.5;  ///< of backward; counts only where wgrad is an action of its own
  double communication = 0;     ///< from send to arrival; the sender goes on at once
  int buffers = 0;  ///< messages a channel holds before a send blocks; 0: no limit. Where the shape
                    ///< asks for channel_messages above 1, so many more
  bool waits_for_receiver = false;  ///< a message travels when its receiver has come to it, not before
  double receipt = 0;               ///< of the receiver's time, for each message that is there
  std::vector<Piece> pieces{};      ///< of every piece, instead of the three durations above; empty: those
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
  int peak = 0;     ///< most (chunk, microbatch) pairs in flight at once, over all chunks
  std::vector<TimelineEntry> timeline;
};

struct Simulation {
  double makespan = 0;
  double ideal = 0;  ///< work of one stage, the one with the most: microbatches * (forward + backward)
  double bubble_fraction = 0;  ///< (makespan - ideal) / makespan
  std::vector<StageSimulation> stages;
};

/// InternalError when the schedule breaks a promise: the stages wait for each other for ever, a message is
/// not the expected one or is never received, or a computation comes before what it depends on.
Simulation simulate(const std::vector<StageSchedule>& schedule, const ScheduleShape& shape,
                    const Costs& costs = {});

}  // namespace te::parallel
