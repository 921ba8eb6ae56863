// Communicator of CUDA ranks over NCCL; MPI only carries NCCL's unique id when the group is made. Whether NCCL uses
// NVLink multicast and other hardware is left to its environment variables.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace te::parallel {

class World;

/// Collective over the ranks; the World must outlive it. max_ctas: thread blocks that NCCL may use; 0 leaves it to
/// NCCL. A channel (two ranks, the first sends, the second receives) is connected at once: otherwise the first send
/// would make the host wait for its receiver.
std::unique_ptr<Communicator> make_nccl_communicator(World& world, const Context& context, std::string name,
                                                     std::vector<int> world_ranks, int max_ctas,
                                                     bool channel);

}  // namespace te::parallel
