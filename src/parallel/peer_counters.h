// How the ranks of a group on one host signal each other without a kernel and without the host: each has a page of
// 32-bit counters in its GPU's memory, which the others write from their streams (cuStreamWriteValue32) and for which
// its own streams wait (cuStreamWaitValue32).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/device.h"
#include "parallel/communicator.h"
#include "parallel/peer_memory.h"

namespace te::parallel {

class World;

class PeerCounters {
 public:
  /// Counters of a rank, zero at first. Nobody polls another's cache line.
  static constexpr size_t kMax = 16384;

  /// Collective over the world; all must outlive it. JobFailure, a UserError, where ranks of the group are on several
  /// hosts or their GPUs cannot write each other's memory. `key`: of the config that asked for it, for messages.
  PeerCounters(World& world, const Context& context, const Communicator& group, const std::string& key);

  /// Counter `index` of group rank `rank` = value, behind what the stream has done before, copies to other GPUs
  /// included.
  void write_counter(const Context& stream, int rank, size_t index, uint32_t value) const;
  /// The stream goes on when this rank's counter has reached the value; counters may wrap around.
  void wait_for(const Context& stream, size_t index, uint32_t value) const;

 private:
  uint32_t* counter(int rank, size_t index) const;
  const Communicator& group_;
  DeviceBuffer own_;
  std::unique_ptr<PeerMemory> pages_;
};

/// Copies between memories that the stream's GPU can access, its own and other ranks', by a copy engine.
void copy_bytes(const Context& stream, void* destination, const void* source, size_t bytes);

}  // namespace te::parallel
