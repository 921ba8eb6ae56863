// The control groups (a container's, a job's) that limit this process.
#pragma once

#include <string>
#include <vector>

namespace te {

/// A group and where its files are.
struct ControlGroup {
  bool version_2 = false;
  std::string name;    ///< names the group on this host
  std::string folder;  ///< with the files of its controllers
};

/// The groups of this process that `controller` ("cpu", "memory") may limit, in each hierarchy its own first, then
/// those above it, as the files below `root` describe them: proc/self/cgroup, proc/self/mountinfo and the control
/// groups, version 1 or 2, at the mount points named there. What cannot be read is no group.
std::vector<ControlGroup> control_groups(const std::string& root, const std::string& controller);

}  // namespace te
