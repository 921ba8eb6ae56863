#include "parallel/process_grid.h"

#include <algorithm>
#include <functional>

#include "core/error.h"

namespace te::parallel {
namespace {

/// text(row) of all axes, without empty texts; `last` separates the last two.
std::string join_axes(const std::function<std::string(const AxisRow&)>& text, const char* separator,
                      const char* last) {
  std::vector<std::string> texts;
  for (const AxisRow& row : kAxes) {
    std::string one = text(row);
    if (!one.empty()) texts.push_back(std::move(one));
  }
  std::string joined;
  for (size_t i = 0; i < texts.size(); ++i)
    joined += (i == 0 ? "" : i + 1 == texts.size() ? last : separator) + texts[i];
  return joined;
}

/// "tensor 2 x data 2 x pipeline 2", without optional axes whose number is `omitted`.
std::string numbers_text(const AxisNumbers& numbers, int omitted, const char* separator, bool free = true) {
  const auto text = [&](const AxisRow& row) {
    const int number = numbers[row.axis];
    const bool omit = (row.optional && number == omitted) || (row.is_free && !free);
    return omit ? "" : fmt::format("{} {}", row.name, number);
  };
  return join_axes(text, separator, separator);
}

}  // namespace

std::string Coordinates::str() const {
  return numbers_text(*this, 0, ", ");
}

ProcessGrid ProcessGrid::of(int world, AxisSizes sizes, int experts) {
  TE_CHECK(world >= 1, "process grid: world of {} ranks", world);
  int64_t model = 1;
  for (const AxisRow& row : kAxes) {
    if (row.is_free) sizes[row.axis] = 1;
    if (sizes[row.axis] < 1) {
      const auto text = [&](const AxisRow& axis) {
        return axis.is_free ? "" : fmt::format("{} {}", axis.name, sizes[axis.axis]);
      };
      user_error("parallel: {} must each be at least 1", join_axes(text, ", ", " and "));
    }
    model *= sizes[row.axis];
  }
  if (world % model != 0) {
    const auto key = [](const AxisRow& row) {
      return row.is_free ? "" : fmt::format("parallel.{}", row.name);
    };
    user_error(
        "parallel: {} ranks cannot be divided into {} = {} ranks per copy of the model (remainder {}); start "
        "a multiple of {} ranks or change {}",
        world, numbers_text(sizes, 1, " x ", false), model, world % model, model,
        join_axes(key, ", ", " or "));
  }
  for (const AxisRow& row : kAxes)
    if (row.is_free) sizes[row.axis] = static_cast<int>(world / model);
  const int stage = world / sizes[Axis::pipeline];
  if (experts < 1 || stage % experts != 0)
    user_error(
        "parallel.expert ({}) does not divide the {} ranks of a pipeline stage ({}); start another number of "
        "ranks or change parallel.expert",
        experts, stage, numbers_text(sizes, 1, " x "));
  return {world, sizes, experts};
}

int ProcessGrid::stride(Axis axis) const {
  int stride = 1;
  for (const AxisRow& row : kAxes) {
    if (row.axis == axis) break;
    stride *= sizes[row.axis];
  }
  return stride;
}

Coordinates ProcessGrid::coordinates(int rank) const {
  TE_CHECK(rank >= 0 && rank < world, "process grid: rank {} of {}", rank, world);
  Coordinates at;
  for (const AxisRow& row : kAxes) at[row.axis] = rank / stride(row.axis) % sizes[row.axis];
  return at;
}

int ProcessGrid::rank(const Coordinates& at) const {
  int rank = 0;
  for (const AxisRow& row : kAxes) {
    TE_CHECK(at[row.axis] >= 0 && at[row.axis] < sizes[row.axis],
             "process grid: coordinates {} are outside of {}", at.str(), str());
    rank += stride(row.axis) * at[row.axis];
  }
  return rank;
}

std::string ProcessGrid::str() const {
  return fmt::format("{} rank{}: {}{}", world, world == 1 ? "" : "s", numbers_text(sizes, 1, " x "),
                     experts > 1 ? fmt::format(", expert {}", experts) : "");
}

std::vector<int> ProcessGrid::ranks_along(EnumSet<Axis> axes, int rank) const {
  const Coordinates at = coordinates(rank);
  std::vector<int> ranks{rank};
  for (const AxisRow& row : kAxes) {  // ascending strides, so the ranks stay sorted
    if (!axes.contains(row.axis)) continue;
    const std::vector<int> before = ranks;
    ranks.clear();
    for (int index = 0; index < sizes[row.axis]; ++index)
      for (const int other : before) ranks.push_back(other + (index - at[row.axis]) * stride(row.axis));
  }
  return ranks;
}

std::vector<int> ProcessGrid::members(const GroupRow& row, int rank) const {
  std::vector<int> ranks = ranks_along(row.axes, rank);
  if (row.select == nullptr) return ranks;
  const auto own = std::ranges::lower_bound(ranks, rank) - ranks.begin();
  return row.select(*this, ranks, static_cast<size_t>(own));
}

std::vector<int> ProcessGrid::members(Group group, int rank) const {
  return members(kGroups[static_cast<size_t>(group)], rank);
}

std::vector<int> first_and_last(const ProcessGrid& /*grid*/, const std::vector<int>& ranks, size_t own) {
  const bool end = own == 0 || own + 1 == ranks.size();
  if (!end || ranks.size() == 1) return {ranks[own]};
  return {ranks.front(), ranks.back()};
}

std::vector<int> expert_ranks(const ProcessGrid& grid, const std::vector<int>& ranks, size_t own) {
  const auto size = static_cast<size_t>(grid.experts);
  const auto first = ranks.begin() + static_cast<std::ptrdiff_t>(own / size * size);
  return {first, first + grid.experts};
}

std::vector<int> expert_copies(const ProcessGrid& grid, const std::vector<int>& ranks, size_t own) {
  const auto size = static_cast<size_t>(grid.experts);
  std::vector<int> copies;
  for (size_t i = own % size; i < ranks.size(); i += size) copies.push_back(ranks[i]);
  return copies;
}

}  // namespace te::parallel
