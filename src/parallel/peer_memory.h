// GPU memory of a rank that the other ranks of a group on the same host can read and write (CUDA IPC).
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

/// Checks that the ranks of a group are on one host and that their GPUs have peer access; collective over the world.
/// JobFailure (a UserError) otherwise. `key` is the config key for messages, such as "parallel.transport".
void check_peer_access(World& world, const Context& context, const Communicator& group,
                       const std::string& key);

class PeerMemory {
 public:
  /// Collective over the world. `memory` is `bytes` bytes on the context's device. `bytes` and `layout`, a description
  /// of the memory's layout, must be equal on all ranks of the group. JobFailure (a UserError) if they differ, or if
  /// the driver cannot open the memory on another rank.
  PeerMemory(World& world, const Context& context, const Communicator& group, void* memory, size_t bytes,
             const std::string& layout, const std::string& key);
  /// Waits for the context, closes the other ranks' memory, and waits until the group's ranks have done so, too: the
  /// memory may be freed afterwards. Does nothing if an exception is being handled.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// Address of group rank `rank`'s memory on this rank's device.
  char* at(int rank) const { return views_[static_cast<size_t>(rank)]; }
  bool holds(const Tensor& tensor) const {
    const auto* const begin = static_cast<const char*>(tensor.data);
    return begin >= own() && begin + tensor.bytes() <= own() + bytes_;
  }
  /// Byte offset of a tensor in this rank's memory; holds(tensor) must be true.
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
