// Can a plan's memory be had here? Asked before anything is allocated, and by --dry-run.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"

namespace te::train {

/// Bytes that a rank can still have.
struct FreeMemory {
  int64_t device = 0;  ///< on the CPU the host's
  int64_t host = 0;
  bool by_limit = false;  ///< what there is of host memory follows from a limit of the process
};

/// On a GPU its free memory; of the host what it, or the limit of the control group, has left, divided by the ranks
/// that share it, or what a limit of the process (ulimit -v) leaves.
FreeMemory free_memory(const Context& context, int host_ranks);

/// "" when the plan fits; else one line: what it needs, what there is, and the keys that would help.
/// `data_ranks`: with the context ranks. `guard_bytes`: of host memory beside the plan, for the guard's copy of the
/// state.
/// The whole config: what would help may be a key of any section.
std::string memory_shortage(const MemoryPlan& plan, const config::Config& config, const Context& context,
                            int data_ranks, const FreeMemory& free, int64_t guard_bytes = 0);

}  // namespace te::train
