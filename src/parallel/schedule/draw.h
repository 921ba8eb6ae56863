// A picture of a schedule for people, in plain text: what te-train --print-schedule prints.
#pragma once

#include <string>
#include <vector>

#include "parallel/schedule/simulate.h"

namespace te::parallel {

struct DrawOptions {
  int width = 150;  ///< columns of a line; longer schedules go on in another block of lines
  int blocks =
      4;  ///< most blocks, at least 2; what does not fit is left out before the last one, and said so
};

/// Legend; one line per stage with the time to the right; bubble share; peak memory of every stage. The lines
/// end with '\n'. The times are those of simulate() with the same costs.
std::string draw(const std::vector<StageSchedule>& schedule, const ScheduleShape& shape,
                 const Costs& costs = {}, const DrawOptions& options = {});

}  // namespace te::parallel
