// The four links of a pipeline stage with copy engines, for stages on one host: a sender writes tensors to the
// receiver's memory (opened with CUDA IPC), without kernels and without the host.
//
// NCCL's sends and receives are kernels that occupy SMs while they wait for the neighbor, and kernels of several links
// on one GPU can wait for each other. Here side CUDA streams only have work that completes by itself: a copy and the
// write of a counter. Only the step's CUDA stream waits for a neighbor, in the order of the schedule. Therefore a
// schedule that does not deadlock in the simulation (schedule/simulate.h) does not deadlock on GPUs, independent of how
// the driver maps CUDA streams to hardware queues.
//
// Protocol for tensor k of a link, counted from 0 since the creation of the links, with n receive buffers:
//
//   sender    waits until the receiver has consumed tensor k - n (wait_until_free), writes the tensor to its own
//             memory, copies it to the receiver's buffer k % n, writes the receiver's counter of arrivals
//   receiver  waits for the arrival, copies the tensor from the buffer to its destination, writes the sender's counter
//             of consumed tensors
//
// Both ends count their own calls, so they must make the same calls in the same order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"
#include "parallel/channel.h"
#include "parallel/communicator.h"

namespace te::parallel {

class World;

class PeerLinks {
 public:
  virtual ~PeerLinks() = default;
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  /// Receive buffers, which other stages may write while this object exists. All stages must destroy it together,
  /// before the memory is freed, except after an exception, which ends the job.
  class RegisteredBuffers {
   public:
    RegisteredBuffers() = default;
    virtual ~RegisteredBuffers() = default;
    RegisteredBuffers(const RegisteredBuffers&) = delete;
    RegisteredBuffers& operator=(const RegisteredBuffers&) = delete;
  };
  /// Registers `memory` as receive buffers and opens them on the other stages; collective over the world, one
  /// registration at a time. `memory` consists of 2 * `buffers` equal buffers: first those for forward, then those for
  /// backward. Size and number must be equal on all stages. JobFailure (a UserError) if a driver refuses.
  virtual std::unique_ptr<RegisteredBuffers> register_buffers(const Context& context, const Tensor& memory,
                                                              int buffers) = 0;

  /// Makes the context wait until the next tensor of a sending link has a free buffer. Call it before send(), and
  /// before the tensor is computed: the schedule determines where a stage may wait.
  virtual void wait_until_free(const Context& context, Channel to) = 0;
  /// Launches the copy of a tensor, at most as large as a buffer, on CUDA stream `lane`, which does not wait for other
  /// ranks. In the lane's order the tensor must be complete before the copy and unchanged until after it.
  virtual void send(const Context& lane, const Tensor& message, Channel to) = 0;
  /// Makes the context wait for the next tensor of a receiving link and copies it to `into`, which has its size.
  virtual void receive(const Context& context, const Tensor& into, Channel from) = 0;

 protected:
  PeerLinks() = default;
};

/// Collective over the world; all ranks must have a pipeline. `stages` has the world ranks of this rank's pipeline in
/// order. `channels` are indexed by Channel and provide names. All arguments must outlive the links. JobFailure (a
/// UserError) if stages are on several hosts or their GPUs have no peer access. `key` is the config key for messages.
std::unique_ptr<PeerLinks> make_peer_links(World& world, const Context& context, std::vector<int> stages,
                                           const std::array<Communicator*, kChannels>& channels,
                                           const std::string& key);

}  // namespace te::parallel
