// Plain-text drawing of a schedule, for te-train --print-schedule.
#pragma once

#include <string>
#include <vector>

#include "parallel/schedule/simulate.h"

namespace te::parallel {

struct DrawOptions {
  int width = 150;  ///< columns per line; longer schedules continue in another block of lines
  /// Maximum number of blocks, at least 2. If there are more, the text skips some before the last one and says so.
  int blocks = 4;
};

/// Draws a legend, one line per stage with time from left to right, the bubble fraction, and the peak memory of every
/// stage. Lines end with '\n'. Times are those of simulate() with the same costs, in forward passes.
std::string draw(const std::vector<StageSchedule>& schedule, const ScheduleShape& shape,
                 const Costs& costs = {}, const DrawOptions& options = {});

}  // namespace te::parallel
