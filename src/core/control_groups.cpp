#include "core/control_groups.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "core/strings.h"

namespace te {
namespace {

/// Mount of a hierarchy of control groups that has the controller, and this process's group in it.
struct Hierarchy {
  bool version_2 = false;
  std::string mount_root;  ///< the group at the mount point
  std::string mount_point;
  std::string group;  ///< group of this process
};

bool has(std::string_view list, std::string_view word) {
  const std::vector<std::string_view> parts = split(list, ',');
  return std::ranges::find(parts, word) != parts.end();
}

/// Parses proc/self/mountinfo: "36 35 0:30 ROOT MOUNT_POINT OPTIONS [FIELDS...] - TYPE SOURCE SUPER_OPTIONS".
std::vector<Hierarchy> find_mounts(const std::string& root, const std::string& controller) {
  std::vector<Hierarchy> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string_view> fields = split(line, ' ');
    const auto dash = std::ranges::find(fields, "-");
    if (fields.end() - dash < 4 || dash - fields.begin() < 6) continue;
    const std::string_view type = dash[1];
    if (type == "cgroup2" || (type == "cgroup" && has(dash[3], controller)))
      mounts.push_back({type == "cgroup2", std::string(fields[3]), std::string(fields[4]), ""});
  }
  return mounts;
}

/// Parses proc/self/cgroup: "ID:CONTROLLERS:GROUP", without controllers in version 2.
std::vector<Hierarchy> find_hierarchies(const std::string& root, const std::string& controller) {
  std::vector<Hierarchy> found = find_mounts(root, controller);
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    for (Hierarchy& hierarchy : found)
      if (hierarchy.version_2 ? controllers.empty() : has(controllers, controller))
        hierarchy.group = line.substr(second + 1);
  }
  return found;
}

/// Adds the group and its ancestors up to the group at the mount point.
void add_groups(const std::string& root, const Hierarchy& hierarchy, std::vector<ControlGroup>& groups) {
  // Path of the group below the mount point. It is empty if the group is not below the mount's root (a container whose
  // mount has only its own group): the process is then in the group at the mount point.
  const std::string top = hierarchy.mount_root == "/" ? "" : hierarchy.mount_root;
  std::string below;
  if (hierarchy.group.starts_with(top + "/")) below = hierarchy.group.substr(top.size());
  while (true) {
    while (below.ends_with('/')) below.pop_back();
    std::string name = hierarchy.version_2 ? "v2:" : "v1:", folder = root;
    name.append(top).append(below).append("/");
    folder.append(hierarchy.mount_point).append(below);
    groups.push_back({hierarchy.version_2, std::move(name), std::move(folder)});
    if (below.empty()) break;
    below.resize(below.rfind('/'));
  }
}

}  // namespace

std::vector<ControlGroup> control_groups(const std::string& root, const std::string& controller) {
  std::vector<ControlGroup> groups;
  for (const Hierarchy& hierarchy : find_hierarchies(root, controller)) add_groups(root, hierarchy, groups);
  return groups;
}

}  // namespace te
