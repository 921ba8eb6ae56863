// Draws a schedule as text.
//
// 1. Every computation is a cell with a label: a letter (F, B, W), the microbatch and, with several chunks, the chunk
//    as a letter: "B12a". A cell's width is proportional to its duration. The scale is such that the shortest pass fits
//    the longest label and a blank: "F0 F1 B0--- ". Dots mark idle time, which makes the bubble visible.
// 2. A schedule is usually wider than a terminal. The lines of all stages are broken at the same time and continue in a
//    block below. The middle of a long schedule is repetitive and is skipped.
// 3. Below the drawing are the two numbers by which to choose a schedule: bubble fraction and peak memory.
#include "parallel/schedule/draw.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace te::parallel {

namespace {

constexpr int kPrefix = 9;         // "stage 0 |"
constexpr double kShortest = 0.2;  // fraction of the longest pass; labels of shorter cells are truncated

std::string label(const TimelineEntry& entry, int chunks) {
  const char letter = entry.kind == ActionKind::forward    ? 'F'
                      : entry.kind == ActionKind::backward ? 'B'
                                                           : 'W';
  std::string text = fmt::format("{}{}", letter, entry.microbatch);
  if (chunks > 1) text += fmt::format("{}", static_cast<char>('a' + entry.chunk % 26));
  return text;
}

/// The drawing before it is broken into blocks: one string per stage, with `cell` columns for the shortest pass.
class Canvas {
 public:
  Canvas(const Simulation& simulation, const ScheduleShape& shape) : simulation_(simulation), shape_(shape) {
    double shortest = simulation.makespan;
    double longest = 0;
    size_t widest = 0;
    for (const StageSimulation& stage : simulation.stages) {
      for (const TimelineEntry& entry : stage.timeline) {
        shortest = std::min(shortest, entry.end - entry.start);
        longest = std::max(longest, entry.end - entry.start);
        widest = std::max(widest, label(entry, shape.chunks).size());
      }
    }
    cell_ = static_cast<int>(widest) + 1;
    scale_ = cell_ / std::max(shortest, kShortest * longest);
    columns_ = column(simulation.makespan);
    for (const StageSimulation& stage : simulation.stages) lines_.push_back(line(stage));
  }

  int cell() const { return cell_; }
  int columns() const { return columns_; }
  double time(int column) const { return column / scale_; }
  std::string part(size_t stage, int first, int count) const {
    return lines_[stage].substr(static_cast<size_t>(first), static_cast<size_t>(count));
  }

 private:
  int column(double time) const { return static_cast<int>(std::lround(time * scale_)); }

  std::string line(const StageSimulation& stage) const {
    std::string text(static_cast<size_t>(columns_), '.');
    for (const TimelineEntry& entry : stage.timeline) {
      const auto first = static_cast<size_t>(column(entry.start));
      const auto width = static_cast<size_t>(column(entry.end)) - first;
      if (width == 0) continue;
      std::string cell = label(entry, shape_.chunks).substr(0, width);
      cell.resize(width - 1, '-');
      text.replace(first, width, cell + ' ');
    }
    return text;
  }

  const Simulation& simulation_;
  const ScheduleShape& shape_;
  int cell_ = 0;
  int columns_ = 0;
  double scale_ = 1;
  std::vector<std::string> lines_;
};

std::string head(const ScheduleShape& shape) {
  std::string text = fmt::format("{}: stages {}, ", to_string(shape.kind), shape.stages);
  if (shape.chunks > 1) text += fmt::format("chunks of a stage {}, ", shape.chunks);
  text += fmt::format("microbatches {}\n", shape.microbatches);
  text += "F0 forward of microbatch 0, B0 its backward";
  if (shape.kind == ScheduleKind::zero_bubble) text += " to the inputs, W0 its weight gradients";
  if (shape.chunks > 1) text += "; F0a on the stage's first chunk, F0b on the next";
  return text + "; dots: idle; times in forward passes of a stage\n";
}

std::string blocks(const Canvas& canvas, int stages, const DrawOptions& options) {
  const int per_block = std::max(1, (options.width - kPrefix - 1) / canvas.cell()) * canvas.cell();
  const int count = std::max(1, (canvas.columns() + per_block - 1) / per_block);
  const int limit = std::max(2, options.blocks);
  std::string text;
  for (int block = 0; block < count; ++block) {
    if (count > limit && block == limit - 1) {
      text += fmt::format("\n(time {:.4g} to {:.4g} is skipped)\n", canvas.time(block * per_block),
                          canvas.time((count - 1) * per_block));
      block = count - 1;
    }
    const int first = block * per_block;
    const int width = std::min(per_block, canvas.columns() - first);
    text += fmt::format("\ntime {:.4g} to {:.4g}\n", canvas.time(first), canvas.time(first + width));
    for (int stage = 0; stage < stages; ++stage) {
      text += fmt::format("stage {:<2}|{}|\n", stage, canvas.part(static_cast<size_t>(stage), first, width));
    }
  }
  return text;
}

std::string bubble(const Simulation& simulation) {
  return fmt::format("\nbubble fraction {:.1f}%: the step takes {:.4g}, the work of a stage {:.4g}\n",
                     100 * simulation.bubble_fraction, simulation.makespan, simulation.ideal);
}

std::string memory(const std::vector<StageSchedule>& schedule, const ScheduleShape& shape) {
  std::string text = "peak memory, in activations of a full stage for one microbatch:\n";
  for (size_t s = 0; s < schedule.size(); ++s) {
    const std::vector<int>& slots = schedule[s].slots;
    const double sum = std::accumulate(slots.begin(), slots.end(), 0);
    text += fmt::format("stage {:<2} {:.4g}", s, sum / shape.chunks);
    std::string all = fmt::format("{}", fmt::join(slots, " + "));
    if (slots.size() > 1) all = fmt::format("({})", all);
    if (shape.chunks > 1) text += fmt::format(" = {} / {}", all, shape.chunks);
    if (schedule[s].wgrad_slots > 0)
      text += fmt::format(", plus operands of W for {:.4g}",
                          static_cast<double>(schedule[s].wgrad_slots) / shape.chunks);
    text += "\n";
  }
  return text;
}

}  // namespace

std::string draw(const std::vector<StageSchedule>& schedule, const ScheduleShape& shape, const Costs& costs,
                 const DrawOptions& options) {
  TE_CHECK(costs.forward > 0, "the cost of a forward pass, {}, must be above 0", costs.forward);
  Costs relative = costs;  // times in forward passes of a stage
  relative.forward = 1;
  relative.backward = costs.backward / costs.forward;
  relative.communication = costs.communication / costs.forward;
  const Simulation simulation = simulate(schedule, shape, relative);
  const Canvas canvas(simulation, shape);
  return head(shape) + blocks(canvas, shape.stages, options) + bubble(simulation) + memory(schedule, shape);
}

}  // namespace te::parallel
