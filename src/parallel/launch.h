// Device and number of threads of a rank, and the table of ranks that is printed at startup.
#pragma once

#include <string>
#include <string_view>

#include "core/device.h"
#include "parallel/process_grid.h"
#include "parallel/world.h"

namespace te::parallel {

/// True if the environment variable TE_RANKS_SHARE_GPUS is set (not empty, not 0): for slow tests of layouts on a
/// machine with fewer GPUs than ranks.
bool ranks_share_gpus();

/// Opens this rank's CUDA device; collective. The ordinal is local_rank modulo the number of devices visible to the
/// rank. JobFailure on all ranks (exit code 2) if a device cannot be used, or if two ranks of a host would share a GPU
/// without ranks_share_gpus(). With ranks_share_gpus() NCCL_HOSTID makes NCCL treat the ranks as separate hosts.
Context open_cuda_device(World& world, const ExecutionOptions& options = {});
/// Opens the CPU or this rank's CUDA device; collective. `device`: cpu, cuda, or auto: CUDA if all ranks have a device.
Context open_device(World& world, std::string_view device, const ExecutionOptions& options = {});

/// Number of threads: this rank's share of the CPUs that the ranks of its host may use (te::thread_count); collective.
int threads_of_rank(World& world);

/// Table with rank, host, device and coordinates of every rank; collective, the same text on all ranks.
std::string binding_table(World& world, const Context& context, const ProcessGrid& grid);

}  // namespace te::parallel
