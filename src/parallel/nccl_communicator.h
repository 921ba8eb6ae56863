// Communicator of CUDA ranks over NCCL. MPI only distributes NCCL's unique id when the group is created. NCCL's
// environment variables control whether it uses NVLink multicast and other hardware features.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace te::parallel {

class World;

/// Collective over the ranks; the World must outlive the result. max_ctas is the number of thread blocks that NCCL may
/// use; 0 for NCCL's default. A channel (two ranks, the first sends, the second receives) is connected now: otherwise
/// its first send would block the host until the receive.
std::unique_ptr<Communicator> make_nccl_communicator(World& world, const Context& context, std::string name,
                                                     std::vector<int> world_ranks, int max_ctas,
                                                     bool channel);

}  // namespace te::parallel
