// Hosts of a job's ranks, and the links between their devices.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"
#include "parallel/process_grid.h"
#include "parallel/world.h"

namespace te::parallel {

struct HostPlacement {
  std::string name;        ///< host name; may not be unique
  std::vector<int> ranks;  ///< ascending
  std::string devices;     ///< "8 x NVIDIA H200"; name of the processor for CPU ranks
  std::string link;        ///< link between its GPUs ("NVLink"; core/device_links.h); empty below two GPUs
  /// Peak rate of a GPU to the others of the host; 0 if unknown.
  double link_bytes_per_second = 0;
};

/// Hosts, sorted by their lowest rank.
using Placement = std::vector<HostPlacement>;

/// Collective; the result is the same on all ranks.
Placement find_placement(World& world, const Context& context);

/// One line per host: "node1: ranks 0-7, 8 x NVIDIA H200, NVLink". If there are more than `max_lines` hosts, equal
/// consecutive hosts share a line ("node1 to node16 (16 hosts): 8 ranks each, 0-127, ..."); if that is not enough, the
/// last line has the number of remaining hosts.
std::vector<std::string> host_lines(const Placement& placement, size_t max_lines);

/// A warning with a remedy, in one line, if the ranks of a tensor group (or else of a context group) are on several
/// hosts, so that every layer waits for the network. Empty if each group is on one host.
std::string crossing_groups(const Placement& placement, const ProcessGrid& grid);

}  // namespace te::parallel
