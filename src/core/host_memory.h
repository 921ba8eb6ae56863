// Available host memory.
#pragma once

#include <cstdint>
#include <string>

namespace te {

/// Bytes that can be allocated without swapping: the kernel's estimate (MemAvailable), or less if the limits of this
/// process's control groups leave less. Page cache counts as free. `root` is the folder with proc/ and the mount points
/// of the control groups, for tests.
int64_t available_host_bytes(const std::string& root = "");

}  // namespace te
