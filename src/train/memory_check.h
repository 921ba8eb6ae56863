// Checks whether the planned memory is available, before anything is allocated and in --dry-run.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"

namespace te::train {

/// Bytes still available to a rank.
struct FreeMemory {
  int64_t device = 0;  ///< on the CPU: host memory
  int64_t host = 0;
  bool by_limit = false;  ///< a limit of the process bounds host memory
};

/// Device: free GPU memory. Host: what the host or the limit of its control group has left, divided by the ranks that
/// share it, or what a limit of the process (ulimit -v) leaves.
FreeMemory free_memory(const Context& context, int host_ranks);

/// Empty if the plan fits; else one line with the memory needed, the memory available and the keys that would help.
/// `data_ranks`: data-parallel times context-parallel ranks. `guard_bytes`: host memory for the guard's copy of the
/// state, in addition to the plan. Takes the whole config, as keys of any section may help.
std::string memory_shortage(const MemoryPlan& plan, const config::Config& config, const Context& context,
                            int data_ranks, const FreeMemory& free, int64_t guard_bytes = 0);

}  // namespace te::train
