// Sets of points in time as intervals: what runs beside what, and for how long. Any unit, the same throughout.
#pragma once

#include <vector>

namespace te::bench {

/// From `from` to `to`; empty unless to > from.
struct Interval {
  double from = 0, to = 0;
  bool operator==(const Interval&) const = default;
};

/// The same points as disjoint intervals in ascending order: what overlaps or touches is one, empty ones are gone.
std::vector<Interval> union_of(std::vector<Interval> intervals);

// The arguments named `disjoint` are what union_of gives.

double total_length(const std::vector<Interval>& disjoint);

/// Length of that part of the interval which lies in the set.
double length_within(const Interval& interval, const std::vector<Interval>& disjoint);

/// Length of what two sets have in common.
double length_within(const std::vector<Interval>& disjoint, const std::vector<Interval>& other_disjoint);

}  // namespace te::bench
