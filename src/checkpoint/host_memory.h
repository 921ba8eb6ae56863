// How much memory this host can still give.
#pragma once

#include <cstdint>
#include <string>

namespace te::checkpoint {

/// Bytes that can be had without swapping: the kernel's estimate (MemAvailable), or what the limits of this process's
/// control groups leave if that is less. Memory that page cache holds counts as free. `root`: the folder that holds
/// proc/ and the control groups' mount points, for tests.
int64_t available_host_bytes(const std::string& root = "");

}  // namespace te::checkpoint
