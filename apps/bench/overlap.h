// Sets of time intervals, to compute which operations overlap and for how long. Any unit of time.
#pragma once

#include <vector>

namespace te::bench {

/// [from, to); empty unless to > from.
struct Interval {
  double from = 0, to = 0;
  bool operator==(const Interval&) const = default;
};

/// The union as disjoint intervals in ascending order: merges intervals that overlap or touch, and drops empty ones.
std::vector<Interval> union_of(std::vector<Interval> intervals);

// Arguments named `disjoint` are results of union_of.

double total_length(const std::vector<Interval>& disjoint);

/// Length of the part of the interval that lies in the set.
double length_within(const Interval& interval, const std::vector<Interval>& disjoint);

/// Length of the intersection of two sets.
double length_within(const std::vector<Interval>& disjoint, const std::vector<Interval>& other_disjoint);

}  // namespace te::bench
