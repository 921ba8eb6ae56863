// Compares the state of a rank of data_parallel_cases.h with that of a reference that holds the full model.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "data_parallel_cases.h"

namespace te::testing {

/// The reference's full tensors, by name.
struct Expected {
  std::map<std::string, std::vector<float>> main, exp_avg, exp_avg_sq, value;

  explicit Expected(Rank& reference) {
    for (const Rank::Held& held : reference.held()) {
      const parameters::Parameter& p = *held.parameter;
      const auto part = [&](const optim::Moments& flat) {
        return reference.read(flat.part(p.offset, p.shape.numel()));
      };
      value[p.name] = reference.read(p.value);
      if (!p.trainable) continue;
      main[p.name] = reference.read(p.main);
      exp_avg[p.name] = part(reference.optimizer().exp_avg);
      if (reference.optimizer().exp_avg_sq.contains(p.offset, p.shape.numel()))
        exp_avg_sq[p.name] = part(reference.optimizer().exp_avg_sq);
    }
  }
};

/// Largest |actual - expected| over elements [local, local + actual.size()) of a rank's part; NaN counts as infinite.
inline float largest_difference(const std::vector<float>& actual, const std::vector<float>& expected,
                                const Rank::Held& held, int64_t local) {
  float largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const float difference = std::abs(actual[i] - expected[held.global[static_cast<size_t>(local) + i]]);
    if (difference != difference) return std::numeric_limits<float>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

struct Tolerance {
  float main = 0, exp_avg = 0, exp_avg_sq = 0, value = 0;  ///< absolute; 0: equal
};

inline void expect_equal(Rank& rank, const Expected& expected, const Tolerance& tolerance) {
  rank.optimizer().wait_offload();
  for (const Rank::Held& held : rank.held()) {
    const parameters::Parameter& p = *held.parameter;
    SCOPED_TRACE(p.name);
    EXPECT_LE(largest_difference(rank.read(p.value), expected.value.at(p.name), held, 0), tolerance.value);
    if (!p.trainable) continue;
    for (const ParameterStore::ShardRange& range : rank.store().shard_ranges(p)) {
      const auto moment = [&](const optim::Moments& flat) {
        return rank.read(flat.part(range.shard, range.count));
      };
      EXPECT_LE(largest_difference(rank.read(rank.store().main_of(p, range).fp32), expected.main.at(p.name),
                                   held, range.local),
                tolerance.main);
      EXPECT_LE(largest_difference(moment(rank.optimizer().exp_avg), expected.exp_avg.at(p.name), held,
                                   range.local),
                tolerance.exp_avg);
      const optim::Moments& second = rank.optimizer().exp_avg_sq;
      ASSERT_EQ(second.contains(range.shard, range.count), expected.exp_avg_sq.contains(p.name));
      if (!expected.exp_avg_sq.contains(p.name)) continue;
      EXPECT_LE(largest_difference(moment(second), expected.exp_avg_sq.at(p.name), held, range.local),
                tolerance.exp_avg_sq);
    }
  }
}

/// Checks that gaps between parameters are zero.
inline void expect_padding_zero(Rank& rank) {
  ParameterStore& store = rank.store();
  std::vector<float> values = rank.read(store.values), grads = rank.read(store.grads);
  std::vector<float> exp_avg = rank.read(rank.optimizer().exp_avg),
                     exp_avg_sq = rank.read(rank.optimizer().exp_avg_sq);
  std::vector<float> mains = store.mains ? rank.read(store.mains) : std::vector<float>();
  const bool mains_are_values = store.mains && store.mains.data == store.values.data;
  const auto clear = [](std::vector<float>& flat, int64_t begin, int64_t count) {
    if (!flat.empty()) std::fill_n(flat.begin() + begin, count, 0.0f);
  };
  for (const parameters::Parameter& p : store.parameters()) {
    clear(values, p.offset, p.shape.numel());
    if (!p.trainable) {
      if (mains_are_values) clear(mains, p.offset, p.shape.numel());
      continue;
    }
    clear(grads, p.offset, p.shape.numel());
    if (mains_are_values) clear(mains, p.offset, p.shape.numel());
    for (const ParameterStore::ShardRange& range : store.shard_ranges(p)) {
      clear(exp_avg, range.shard, range.count);
      const optim::Moments& second = rank.optimizer().exp_avg_sq;
      if (second.contains(range.shard, range.count)) {
        const auto* first = second.part(range.shard, range.count).values.as<uint8_t>();
        const auto bytes = static_cast<int64_t>(dtype_size(second.values.dtype));
        clear(exp_avg_sq, (first - second.values.as<uint8_t>()) / bytes, range.count);
      }
      if (!mains_are_values) clear(mains, range.shard, range.count);
    }
  }
  for (const auto* flat : {&values, &grads, &mains, &exp_avg, &exp_avg_sq}) {
    EXPECT_EQ(std::ranges::count(*flat, 0.0f), static_cast<int64_t>(flat->size()));
  }
}

}  // namespace te::testing
