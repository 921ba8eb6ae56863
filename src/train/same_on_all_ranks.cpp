#include "train/same_on_all_ranks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "core/error.h"
#include "core/strings.h"
#include "train/data_check.h"

namespace te::train {
namespace {

/// "optimizer.lr (0.01, there 0.001)", of at most three keys.
std::string differing_keys(const std::string& own, const std::string& first) {
  constexpr size_t kMaxKeys = 3;
  const auto values = config::stored_values(own), others = config::stored_values(first);
  std::vector<std::string> keys;
  for (const auto& [key, value] : values) {
    const auto other = others.find(key);
    const std::string there = other == others.end() ? "not set" : other->second;
    if (there != value) keys.push_back(fmt::format("{} ({}, there {})", key, value, there));
  }
  const size_t more = keys.size() > kMaxKeys ? keys.size() - kMaxKeys : 0;
  if (more > 0) keys.resize(kMaxKeys);
  return fmt::format("{}{}", fmt::join(keys, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

void check_same_run(parallel::World& world, const config::Config& config, const std::string& program,
                    bool overwrite) {
  const std::string yaml = config::to_yaml(config), start = program + (overwrite ? " --overwrite" : "");
  const std::string first_yaml = world.broadcast_string(yaml), first_start = world.broadcast_string(start);
  world.run_collectively([&] {
    if (start != first_start)
      user_error("runs \"{}\", but rank 0 \"{}\"; start the same program with the same options on all ranks",
                 start, first_start);
    if (yaml != first_yaml)
      user_error("its config differs from rank 0's in {}; give all ranks the same files and options",
                 differing_keys(yaml, first_yaml));
  });
}

void check_same_datasets(parallel::World& world, const std::vector<checkpoint::Dataset>& datasets) {
  std::string own;
  for (const checkpoint::Dataset& dataset : datasets)
    own += fmt::format("{}: {} ({})\n", dataset.key, dataset.prefix, content_of(dataset));
  const std::string first = world.broadcast_string(own);
  world.run_collectively([&] {
    if (datasets.empty() || own == first) return;
    const std::vector<std::string_view> here = split(own, '\n'), there = split(first, '\n');
    const auto [ours, theirs] = std::ranges::mismatch(here, there);
    const auto line = [](const auto& at, const auto& all) { return at == all.end() ? "no such data" : *at; };
    user_error("host {} has {}, but the host of rank 0 {}; copy the same files to all hosts",
               world.hostname(), line(ours, here), line(theirs, there));
  });
}

}  // namespace te::train
