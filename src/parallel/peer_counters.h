// Signals between the ranks of a group on one host, without kernels and without the host. Each rank has a page of
// 32-bit counters in its GPU's memory. Other ranks write them from their CUDA streams (cuStreamWriteValue32), and the
// rank's own CUDA streams wait for them (cuStreamWaitValue32).
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
  /// Number of counters of a rank. They are initially zero and in separate cache lines.
  static constexpr size_t kMax = 16384;

  /// Collective over the world; the arguments must outlive the object. JobFailure (a UserError) if ranks of the group
  /// are on several hosts or their GPUs have no peer access. `key` is the config key for messages.
  PeerCounters(World& world, const Context& context, const Communicator& group, const std::string& key);

  /// Sets counter `index` of group rank `rank` to `value`, after all earlier work of the CUDA stream, including copies
  /// to other GPUs.
  void write_counter(const Context& stream, int rank, size_t index, uint32_t value) const;
  /// Makes the CUDA stream wait until this rank's counter has reached `value`; counters may wrap around.
  void wait_for(const Context& stream, size_t index, uint32_t value) const;

 private:
  uint32_t* counter(int rank, size_t index) const;
  const Communicator& group_;
  DeviceBuffer own_;
  std::unique_ptr<PeerMemory> pages_;
};

/// Copies with a copy engine between any memory that the CUDA stream's GPU can access, its own or other ranks'.
void copy_bytes(const Context& stream, void* destination, const void* source, size_t bytes);

}  // namespace te::parallel
