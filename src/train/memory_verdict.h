// Can a plan's memory be had here? Asked before anything is allocated, and by --dry-run.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"

namespace te::train {

/// Bytes that this rank's device can still give: on a GPU its free memory; on the CPU what the host, or the limit of
/// the control group, has left, divided by the ranks that share it.
int64_t free_memory(const Context& context, int host_ranks);

/// "" when the plan fits into `free_bytes`; else one line: what it needs, what there is, and the keys that would help.
/// `data_ranks`: with the context ranks.
/// The whole config: what would help may be a key of any section.
std::string memory_shortage(const MemoryPlan& plan, const config::Config& config, const Context& context,
                            int data_ranks, int64_t free_bytes);

}  // namespace te::train
