#include "parallel/placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "core/device_links.h"
#include "core/error.h"
#include "core/strings.h"

namespace te::parallel {
namespace {

/// Description of a rank for the others, as text with one line per member.
struct RankPlace {
  int first_local = 0;
  std::string host, device, bus_id;
};

RankPlace read_place(const std::string& text) {
  std::istringstream lines(text);
  RankPlace place;
  std::string first;
  std::getline(lines, first);
  place.first_local = std::stoi(first);
  std::getline(lines, place.host);
  std::getline(lines, place.device);
  std::getline(lines, place.bus_id);
  return place;
}

/// Links of this rank's GPU to the others of its host as text: the rate, then the kinds in the order of LinkKind.
std::string own_links(const std::vector<RankPlace>& places, const RankPlace& own) {
  std::set<LinkKind> kinds;
  double rate = 0;
  for (const RankPlace& other : places) {
    if (other.first_local != own.first_local || other.bus_id == own.bus_id) continue;
    const DeviceLink link = link_between(own.bus_id, other.bus_id);
    kinds.insert(link.kind);
    rate = std::max(rate, link.bytes_per_second);
  }
  std::string text = fmt::format("{}\n", rate);
  for (const LinkKind kind : kinds) text += fmt::format("{}\n", static_cast<int>(kind));
  return text;
}

/// Adds the result of a rank's own_links() to its host: all kinds of links, and the rate of the slowest GPU.
void add_links(HostPlacement& host, std::set<LinkKind>& kinds, const std::string& text) {
  std::istringstream lines(text);
  double rate = 0;
  lines >> rate;
  for (int kind = 0; lines >> kind;) kinds.insert(static_cast<LinkKind>(kind));
  if (kinds.empty()) return;
  const bool first = host.link.empty();
  host.link_bytes_per_second = first ? rate : std::min(host.link_bytes_per_second, rate);
  host.link.clear();
  for (const LinkKind kind : kinds)
    host.link += fmt::format("{}{}", host.link.empty() ? "" : " and ", to_string(kind));
}

/// "8 x NVIDIA H200", several kinds joined by "and".
std::string devices_text(const std::vector<const RankPlace*>& ranks) {
  if (ranks.front()->bus_id.empty()) return ranks.front()->device;
  std::map<std::string, int> counts;
  for (const RankPlace* rank : ranks) ++counts[rank->device];
  std::string text;
  for (const auto& [name, count] : counts)
    text += fmt::format("{}{} x {}", text.empty() ? "" : " and ", count, name);
  return text;
}

bool consecutive(const std::vector<int>& ranks) {
  return ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
}

/// True if two hosts can share a line.
bool alike(const HostPlacement& a, const HostPlacement& b) {
  return a.ranks.size() == b.ranks.size() && a.devices == b.devices && a.link == b.link &&
         consecutive(a.ranks) == consecutive(b.ranks);
}

std::string with_link(const std::string& text, const HostPlacement& host) {
  return fmt::format("{}, {}{}{}", text, host.devices, host.link.empty() ? "" : ", ", host.link);
}

/// The line for hosts [begin, end), which are alike.
std::string line_of(const Placement& placement, size_t begin, size_t end) {
  const HostPlacement& first = placement[begin];
  if (end - begin == 1) {
    return with_link(fmt::format("{}: {} {}", first.name, first.ranks.size() == 1 ? "rank" : "ranks",
                                 number_ranges(first.ranks)),
                     first);
  }
  std::vector<int> ranks;
  for (size_t host = begin; host < end; ++host)
    ranks.insert(ranks.end(), placement[host].ranks.begin(), placement[host].ranks.end());
  std::ranges::sort(ranks);
  const std::string names =
      fmt::format("{} to {} ({} hosts)", first.name, placement[end - 1].name, end - begin);
  const std::string each = first.ranks.size() == 1 ? "1 rank" : fmt::format("{} ranks", first.ranks.size());
  return with_link(fmt::format("{}: {} each, {}", names, each, number_ranges(ranks)), first);
}

/// Indices of the hosts of the ranks.
std::set<size_t> hosts_of(const Placement& placement, const std::vector<int>& ranks) {
  std::set<size_t> found;
  for (size_t host = 0; host < placement.size(); ++host)
    for (const int rank : ranks)
      if (std::ranges::binary_search(placement[host].ranks, rank)) found.insert(host);
  return found;
}

/// An axis along which every layer communicates, and what may replace it if its groups span hosts.
struct LayerAxis {
  Axis axis;
  const char* instead;
};
constexpr LayerAxis kLayerAxes[] = {
    {Axis::tensor, "use parallel.pipeline or parallel.shard to divide the model over hosts"},
    {Axis::context, "use training.recompute or parallel.pipeline to save memory"},
};

/// The remedy for groups that span hosts. `common` is the greatest common divisor of the hosts' numbers of ranks.
std::string remedy(const Placement& placement, const ProcessGrid& grid, int common, const LayerAxis& along) {
  const int size = grid[along.axis], stride = grid.stride(along.axis);
  const bool host_by_host =
      std::ranges::all_of(placement, [](const HostPlacement& host) { return consecutive(host.ranks); });
  if (!host_by_host && common % (stride * size) == 0)
    return "start the ranks host by host (mpirun --map-by slot, srun --distribution=block)";
  return fmt::format("set parallel.{} to {}, which keeps a group on one host, and {}", axis_name(along.axis),
                     std::gcd(size, common / std::gcd(stride, common)), along.instead);
}

}  // namespace

Placement find_placement(World& world, const Context& context) {
  const DeviceInfo info = context.info();
  const std::vector<std::string> texts = world.gather_strings(
      fmt::format("{}\n{}\n{}\n{}\n", world.first_local(), world.hostname(), info.name, info.bus_id));
  std::vector<RankPlace> places;
  for (const std::string& text : texts) places.push_back(read_place(text));
  const std::vector<std::string> links =
      world.gather_strings(own_links(places, places[static_cast<size_t>(world.rank())]));

  std::map<int, std::vector<int>> ranks_of;
  for (int rank = 0; rank < world.size(); ++rank)
    ranks_of[places[static_cast<size_t>(rank)].first_local].push_back(rank);
  Placement placement;
  for (const auto& [first, ranks] : ranks_of) {
    HostPlacement host;
    host.name = places[static_cast<size_t>(first)].host;
    host.ranks = ranks;
    std::vector<const RankPlace*> of_host;
    std::set<LinkKind> kinds;
    for (const int rank : ranks) {
      of_host.push_back(&places[static_cast<size_t>(rank)]);
      add_links(host, kinds, links[static_cast<size_t>(rank)]);
    }
    host.devices = devices_text(of_host);
    placement.push_back(std::move(host));
  }
  return placement;
}

std::vector<std::string> host_lines(const Placement& placement, size_t max_lines) {
  std::vector<std::string> lines;
  const bool merge = placement.size() > max_lines;
  for (size_t begin = 0, end = 0; begin < placement.size(); begin = end) {
    for (end = begin + 1; merge && end < placement.size() && alike(placement[begin], placement[end]);) ++end;
    if (lines.size() + 1 == max_lines && end < placement.size()) {
      lines.push_back(fmt::format("and {} more hosts", placement.size() - begin));
      break;
    }
    lines.push_back(line_of(placement, begin, end));
  }
  return lines;
}

std::string crossing_groups(const Placement& placement, const ProcessGrid& grid) {
  int common = 0;
  for (const HostPlacement& host : placement) common = std::gcd(common, static_cast<int>(host.ranks.size()));
  for (const LayerAxis& along : kLayerAxes) {
    const int size = grid[along.axis];
    int crossing = 0;
    std::vector<int> example;
    for (int rank = 0; rank < grid.world; ++rank) {
      const std::vector<int> group = grid.ranks_along({along.axis}, rank);
      if (group.front() != rank || hosts_of(placement, group).size() < 2) continue;
      if (crossing++ == 0) example = group;
    }
    if (crossing == 0) continue;
    const std::set<size_t> hosts = hosts_of(placement, example);
    const std::string& first = placement[*hosts.begin()].name;
    const std::string& last = placement[*hosts.rbegin()].name;
    return fmt::format(
        "parallel.{} {}: ranks {} are on {} hosts ({}, {}{}), {} of {} groups span hosts: every layer waits "
        "for the network; {}",
        axis_name(along.axis), size, number_ranges(example), hosts.size(), first,
        hosts.size() > 2 ? "..., " : "", last, crossing, grid.world / size,
        remedy(placement, grid, common, along));
  }
  return "";
}

}  // namespace te::parallel
