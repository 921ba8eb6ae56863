// Control groups (of a container or a job) that limit this process.
#pragma once

#include <string>
#include <vector>

namespace te {

/// A control group.
struct ControlGroup {
  bool version_2 = false;
  std::string name;    ///< unique on this host
  std::string folder;  ///< has the files of its controllers
};

/// The control groups in which `controller` ("cpu", "memory") may limit this process: in each hierarchy its own group,
/// then that group's ancestors. The source is the files below `root`: proc/self/cgroup, proc/self/mountinfo and the
/// control groups, version 1 or 2, at the mount points named there. Files that cannot be read are ignored.
std::vector<ControlGroup> control_groups(const std::string& root, const std::string& controller);

}  // namespace te
