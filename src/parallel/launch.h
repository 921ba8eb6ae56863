// Which device a rank drives and how many threads it uses, and the table of ranks printed at start.
#pragma once

#include <string>

#include "core/device.h"
#include "parallel/process_grid.h"
#include "parallel/world.h"

namespace te::parallel {

/// True where the environment variable TE_RANKS_SHARE_GPUS asks for it (not empty, not 0): a machine with fewer GPUs
/// than ranks tests layouts, slowly.
bool ranks_share_gpus();

/// This rank's CUDA device; collective. The ordinal is local_rank modulo the number of devices the rank sees.
/// JobFailure on all ranks (exit code 2) when two ranks of a host would share a GPU, unless ranks_share_gpus(), or a
/// device cannot be used. With ranks_share_gpus() NCCL is told that ranks are on several hosts (NCCL_HOSTID).
Context open_cuda_device(World& world, const ExecutionOptions& options = {});

/// This rank's share of the CPUs that the ranks of its host may use (te::thread_count); collective.
int threads_of_rank(World& world);

/// Rank, host, device and coordinates of every rank, one a line with a heading; collective, the same text on all
/// ranks.
std::string binding_table(World& world, const Context& context, const ProcessGrid& grid);

}  // namespace te::parallel
