// Grid of a job's ranks along the axes of parallelism, and the groups of ranks that communicate. Pure arithmetic, no
// communication.
//
// kAxes lists the axes in the order of rank placement, so that the ranks that communicate most (tensor) are adjacent
// and on one host:
//   rank = tensor + T * (context + C * (data + D * pipeline))
// kGroups lists the groups by the axes that they span. A new axis or group is a new enumerator and a new row.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace te::parallel {

enum class Axis : uint8_t { tensor, context, data, pipeline };

struct AxisRow {
  Axis axis;
  const char* name;       ///< the key of its size is parallel.NAME
  bool is_free = false;   ///< its size is what the other axes leave of the world; one axis
  bool optional = false;  ///< texts omit it if its size is 1
};
inline constexpr AxisRow kAxes[] = {
    {Axis::tensor, "tensor"},
    {.axis = Axis::context, .name = "context", .optional = true},
    {.axis = Axis::data, .name = "data", .is_free = true},
    {Axis::pipeline, "pipeline"},
};

constexpr const char* axis_name(Axis axis) {
  return kAxes[static_cast<size_t>(axis)].name;
}

/// A number per axis.
class AxisNumbers {
 public:
  int& operator[](Axis axis) { return numbers_[static_cast<size_t>(axis)]; }
  int operator[](Axis axis) const { return numbers_[static_cast<size_t>(axis)]; }
  bool operator==(const AxisNumbers&) const = default;

 protected:
  using List = std::initializer_list<std::pair<Axis, int>>;
  AxisNumbers(int others, List numbers) {
    numbers_.fill(others);
    for (const auto& [axis, number] : numbers) (*this)[axis] = number;
  }

 private:
  std::array<int, std::size(kAxes)> numbers_{};
};

/// Ranks along each axis, 1 for axes that are not listed.
struct AxisSizes : AxisNumbers {
  AxisSizes(List sizes = {}) : AxisNumbers(1, sizes) {}
};

/// A rank's index along each axis, 0 for axes that are not listed.
struct Coordinates : AxisNumbers {
  Coordinates(List indices = {}) : AxisNumbers(0, indices) {}
  std::string str() const;  ///< "tensor 1, data 0, pipeline 3" (context only if it is not 0)
};

template <class Enum>
class EnumSet {
 public:
  constexpr EnumSet(std::initializer_list<Enum> members = {}) {
    for (const Enum member : members) bits_ |= 1u << static_cast<unsigned>(member);
  }
  constexpr bool contains(Enum member) const { return (bits_ >> static_cast<unsigned>(member) & 1u) != 0; }

 private:
  unsigned bits_ = 0;
};

enum class Group : uint8_t {
  world,
  tensor,
  context,
  microbatch,
  data,
  stage,
  embedding,
  expert,
  expert_data
};

struct GroupRow;

struct ProcessGrid {
  int world = 1;
  AxisSizes sizes;
  int experts = 1;  ///< expert-parallel size: divides the ranks of a pipeline stage, no axis of its own
  int operator[](Axis axis) const { return sizes[axis]; }
  bool operator==(const ProcessGrid&) const = default;

  /// The size of the free axis (data parallelism) is the world divided by the other sizes. UserError, with the
  /// arithmetic, if a size is below 1 or does not divide its ranks.
  static ProcessGrid of(int world, AxisSizes sizes, int experts = 1);
  static ProcessGrid of(int world, int tensor, int context, int pipeline, int experts = 1) {
    return of(world, {{Axis::tensor, tensor}, {Axis::context, context}, {Axis::pipeline, pipeline}}, experts);
  }

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& at) const;
  int stride(Axis axis) const;  ///< difference between adjacent ranks along the axis
  /// "8 ranks: tensor 2 x data 2 x pipeline 2" (context, and ", expert 2", only if they are above 1)
  std::string str() const;

  /// World ranks that differ from a rank only along the given axes, ascending, including the rank itself.
  std::vector<int> ranks_along(EnumSet<Axis> axes, int rank) const;
  /// World ranks of a rank's group, ascending, including the rank itself.
  std::vector<int> members(const GroupRow& row, int rank) const;
  std::vector<int> members(Group group, int rank) const;
};

/// A group consists of the ranks along its axes, or of some of them.
struct GroupRow {
  Group group;
  const char* name;
  EnumSet<Axis> axes;
  /// Selects the group of ranks[own] from the ranks along the axes. Null: all of them.
  std::vector<int> (*select)(const ProcessGrid& grid, const std::vector<int>& ranks, size_t own) = nullptr;
  /// Earlier groups, the first of which with the same ranks is used instead: a communicator needs GPU memory.
  EnumSet<Group> reuses = {};
};

/// The first and the last rank; ranks between them are alone.
std::vector<int> first_and_last(const ProcessGrid& grid, const std::vector<int>& ranks, size_t own);
/// grid.experts consecutive ranks.
std::vector<int> expert_ranks(const ProcessGrid& grid, const std::vector<int>& ranks, size_t own);
/// The ranks with the same place among the expert_ranks.
std::vector<int> expert_copies(const ProcessGrid& grid, const std::vector<int>& ranks, size_t own);

/// In the order in which communicators are created.
inline constexpr GroupRow kGroups[] = {
    {Group::world, "world", {Axis::tensor, Axis::context, Axis::data, Axis::pipeline}},
    {Group::tensor, "tensor", {Axis::tensor}},
    // Ranks that divide the tokens of their samples.
    {Group::context, "context", {Axis::context}},
    // Ranks with the same samples.
    {.group = Group::microbatch,
     .name = "microbatch",
     .axes = {Axis::tensor, Axis::context},
     .reuses = {Group::tensor, Group::context}},
    // Ranks that reduce gradients.
    {Group::data, "data", {Axis::context, Axis::data}},
    // All ranks of a pipeline stage.
    {Group::stage, "stage", {Axis::tensor, Axis::context, Axis::data}},
    // The first and the last stage, which share tied embeddings.
    {Group::embedding, "embedding", {Axis::pipeline}, first_and_last},
    // Ranks that divide the experts of their layers and exchange tokens.
    {Group::expert, "expert", {Axis::tensor, Axis::context, Axis::data}, expert_ranks},
    // Ranks with the same experts.
    {.group = Group::expert_data,
     .name = "expert data",
     .axes = {Axis::tensor, Axis::context, Axis::data},
     .select = expert_copies,
     .reuses = {Group::data, Group::stage}},
};

template <class Row, size_t kRows>
constexpr bool in_order(const Row (&rows)[kRows], auto Row::*key) {
  for (size_t i = 0; i < kRows; ++i)
    if (static_cast<size_t>(rows[i].*key) != i) return false;
  return true;
}
static_assert(in_order(kAxes, &AxisRow::axis) && in_order(kGroups, &GroupRow::group),
              "the rows of a table have the order of its enumerators");

}  // namespace te::parallel
