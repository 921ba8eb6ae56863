// Memory of a rank's GPU that the other ranks of a group on its host can read and write, by CUDA's interprocess
// handles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"
#include "parallel/communicator.h"

namespace te::parallel {

class World;

/// Collective over the world: JobFailure, a UserError, where the ranks of a group are on several hosts, or where the
/// GPU of one cannot access that of another. `key`: of the config, such as "parallel.tensor_transport", for messages.
void check_peer_access(World& world, const Context& context, const Communicator& group,
                       const std::string& key);

class PeerMemory {
 public:
  /// Collective over the world. `memory`: `bytes` of the context's device, the same number on all ranks of the group;
  /// `layout` likewise. JobFailure, a UserError, when the driver does not open it for another rank.
  PeerMemory(World& world, const Context& context, const Communicator& group, void* memory, size_t bytes,
             const std::string& layout, const std::string& key);
  /// Waits for the context, closes what it opened, and waits for the other ranks of the group to do so too, since the
  /// memory may be freed then. After an exception it leaves all that to the end of the process.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// The begin of group rank `rank`'s memory, as this rank's device sees it.
  char* at(int rank) const { return views_[static_cast<size_t>(rank)]; }
  bool holds(const Tensor& tensor) const {
    const auto* const begin = static_cast<const char*>(tensor.data);
    return begin >= own() && begin + tensor.bytes() <= own() + bytes_;
  }
  /// Of a tensor that it holds: from the begin.
  size_t offset(const Tensor& tensor) const {
    return static_cast<size_t>(static_cast<const char*>(tensor.data) - own());
  }

 private:
  char* own() const { return at(group_.rank()); }
  void open(const std::vector<std::string>& offers, const std::string& own_offer);
  void check_views();

  World& world_;
  const Context& context_;
  const Communicator& group_;
  std::string key_;
  size_t bytes_;
  int exceptions_;
  std::vector<char*> views_;
  std::vector<void*> opened_;
};

}  // namespace te::parallel
