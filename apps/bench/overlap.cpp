#include "bench/overlap.h"

#include <algorithm>

namespace te::bench {

std::vector<Interval> union_of(std::vector<Interval> intervals) {
  std::erase_if(intervals, [](const Interval& interval) { return !(interval.to > interval.from); });
  std::ranges::sort(intervals, {}, &Interval::from);
  std::vector<Interval> disjoint;
  for (const Interval& interval : intervals) {
    if (!disjoint.empty() && interval.from <= disjoint.back().to) {
      disjoint.back().to = std::max(disjoint.back().to, interval.to);
    } else {
      disjoint.push_back(interval);
    }
  }
  return disjoint;
}

double total_length(const std::vector<Interval>& disjoint) {
  double length = 0;
  for (const Interval& interval : disjoint) length += interval.to - interval.from;
  return length;
}

double length_within(const Interval& interval, const std::vector<Interval>& disjoint) {
  // A step has many thousands of intervals: a binary search finds those that overlap this one.
  auto next = std::ranges::upper_bound(disjoint, interval.from, {}, &Interval::to);
  double length = 0;
  for (; next != disjoint.end() && next->from < interval.to; ++next)
    length += std::max(0.0, std::min(next->to, interval.to) - std::max(next->from, interval.from));
  return length;
}

double length_within(const std::vector<Interval>& disjoint, const std::vector<Interval>& other_disjoint) {
  double length = 0;
  for (const Interval& interval : disjoint) length += length_within(interval, other_disjoint);
  return length;
}

}  // namespace te::bench
