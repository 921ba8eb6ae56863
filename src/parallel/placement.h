// On which hosts the ranks of a job run, and what connects their devices.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"
#include "parallel/process_grid.h"
#include "parallel/world.h"

namespace te::parallel {

struct HostPlacement {
  std::string name;        ///< as the host calls itself; two hosts may have one name
  std::vector<int> ranks;  ///< ascending
  std::string devices;     ///< "8 x NVIDIA H200"; the processor's name for CPU ranks
  std::string link;        ///< between its GPUs ("NVLink"; core/device_links.h); empty below two GPUs
  /// What a GPU can send to the others of the host at most; 0 where unknown.
  double link_bytes_per_second = 0;
};

/// Hosts by their lowest rank.
using Placement = std::vector<HostPlacement>;

/// Collective; the same on all ranks.
Placement find_placement(World& world, const Context& context);

/// "node1: ranks 0-7, 8 x NVIDIA H200, NVLink", one line a host. Of more hosts than `most_lines`, neighbours that are
/// alike share a line ("node1 to node16: 8 ranks each, 0-127, ..."), and what is still more is counted in the last.
std::vector<std::string> host_lines(const Placement& placement, size_t max_lines);

/// "0-3, 8" of ascending ranks.
std::string rank_ranges(const std::vector<int>& ranks);

/// What is wrong, and what would help, in one line: a tensor group (else a context group) whose ranks are on several
/// hosts, so that every layer waits for the network. Empty where each is on one host.
std::string crossing_groups(const Placement& placement, const ProcessGrid& grid);

}  // namespace te::parallel
