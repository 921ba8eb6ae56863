// The four links of a pipeline's stage by copy engines, for stages on one host: a sender writes a message into the
// receiver's memory, opened over CUDA's interprocess handles, without a kernel and without the host.
//
// NCCL's sends and receives are kernels that wait for the neighbour while they hold multiprocessors, and those of
// several links on one GPU can wait for each other. Here a side stream has work that ends by itself, a copy and the
// write of a counter; only the stream of the step waits for a neighbour. Since that stream does what the schedule says
// in the schedule's order, what holds for the simulated schedule (schedule/simulate.h) holds for the GPU, however the
// driver maps streams to its queues.
//
// Message k of a link, counted from 0 over the life of the links, travels so:
//
//   sender    waits until the receiver has taken message k - n (wait_until_free), writes the message to memory of its
//             own, copies it to landing buffer k % n of the receiver, counts it there as arrived
//   receiver  waits until it has arrived, copies it from the landing buffer to its place, counts it in the sender's
//             memory as taken
//
// Both ends count their own calls, so they must make them in the same order and number.
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

  /// While it lives, messages may land. Ends together with those of the other stages, before the memory is freed; not
  /// after an exception, which ends the job.
  class RegisteredBuffers {
   public:
    RegisteredBuffers() = default;
    virtual ~RegisteredBuffers() = default;
    RegisteredBuffers(const RegisteredBuffers&) = delete;
    RegisteredBuffers& operator=(const RegisteredBuffers&) = delete;
  };
  /// Opens the stages' landing buffers for each other; collective over the world, one at a time. `memory`: a tensor of
  /// 2 * `buffers` equal messages, those that come forward before those that come backward; the same size and number on
  /// all stages. JobFailure, a UserError, when a driver refuses.
  virtual std::unique_ptr<RegisteredBuffers> register_buffers(const Context& context, const Tensor& memory,
                                                              int buffers) = 0;

  /// The context goes on when the next message of the link, which sends, has a landing buffer. Before send(), where the
  /// message is about to be made: the schedule decides where a stage may wait.
  virtual void wait_until_free(const Context& context, Channel to) = 0;
  /// Launches the message, of the size of a landing buffer at most, on the lane, which waits for nobody. It must be
  /// there in the lane's order, and stay until the lane has passed.
  virtual void send(const Context& lane, const Tensor& message, Channel to) = 0;
  /// The context waits for the next message of the link, which receives, and copies it: `into` has its size.
  virtual void receive(const Context& context, const Tensor& into, Channel from) = 0;

 protected:
  PeerLinks() = default;
};

/// Collective over the world; all ranks have a pipeline. `stages`: the world ranks of this rank's pipeline, in its
/// order. `channels`: by Channel, for names; all must outlive the links. JobFailure, a UserError, where stages are on
/// several hosts or their GPUs cannot write each other's memory. `key`: of the config that asked for it, for messages.
std::unique_ptr<PeerLinks> make_peer_links(World& world, const Context& context, std::vector<int> stages,
                                           const std::array<Communicator*, kChannels>& channels,
                                           const std::string& key);

}  // namespace te::parallel
