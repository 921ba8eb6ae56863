// Collectives with copy engines between the GPUs of one host. Unlike NCCL's kernels, copy engines do not take SMs from
// GEMMs. Each rank writes to the other ranks' memory, opened with CUDA IPC.
//
// A transfer is a copy followed by the write of a 32-bit counter in the receiver's memory, both in the sender's CUDA
// stream. The receiver's CUDA stream waits for the counter (cuStreamWriteValue32, cuStreamWaitValue32). Kernels and the
// host are not involved:
//
//   all-gather       receiver: signals "gather g may be written" -> sender: copies its rows to the receiver's tensor,
//                    writes the counter of arrived transfers -> receiver: processes them
//   reduce-scatter   sender: copies its addend of the receiver's rows to its slot there, writes the counter ->
//                    receiver: adds all ranks' addends in rank order in FP32, rounds once, and signals "reduction r is
//                    consumed", for which the sender's next reduction waits
//
// Every rank calls the same operations in the same order with the same shapes. Tensors that other ranks write must be
// in registered memory, at the same offset on every rank. Results are bit-identical in every run.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/device.h"
#include "parallel/communicator.h"

namespace te::parallel {

class World;

class PeerTransport {
 public:
  virtual ~PeerTransport() = default;
  PeerTransport(const PeerTransport&) = delete;
  PeerTransport& operator=(const PeerTransport&) = delete;

  /// Memory that other ranks may write while this object exists. All ranks must destroy it together, before the memory
  /// is freed, except after an exception, which ends the job.
  class RegisteredMemory {
   public:
    RegisteredMemory() = default;
    virtual ~RegisteredMemory() = default;
    RegisteredMemory(const RegisteredMemory&) = delete;
    RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  };
  /// Opens the ranks' memory for each other; collective over the world. The memory's contents are kept. Afterwards a
  /// faster rank may already send, so this rank must not write to slots any more. `layout` describes the contents of
  /// the memory and must be equal on all ranks of a group. JobFailure (a UserError) if a driver refuses.
  virtual std::unique_ptr<RegisteredMemory> register_memory(const Context& context, void* memory,
                                                            size_t bytes, const std::string& layout) = 0;

  /// Launches work on rows [first, first + count) of the full tensor on the context.
  using Work = std::function<void(int64_t first, int64_t count)>;

  /// All-gather: full [tokens, n] = the ranks' shards [tokens / size, n] in rank order, of any dtype. `full` must be in
  /// registered memory; `shard` may be this rank's part of it. Calls `work` for each of `chunks` chunks (peer_chunks.h)
  /// as they arrive.
  virtual void gather(const Context& context, const Tensor& shard, const Tensor& full, int chunks,
                      const Work& work) = 0;
  /// Reduce-scatter: `produce` writes this rank's addend of a chunk of full [tokens, n]; shard [tokens / size, n] = the
  /// sum over the ranks (f32, bf16 or f16). `slots` is registered memory of (size - 1) shards for the other ranks'
  /// addends, not used otherwise. `overlapped_work` is launched while the last chunk is transferred.
  virtual void reduce(const Context& context, const Tensor& full, const Tensor& shard, const Tensor& slots,
                      int chunks, const Work& produce, const std::function<void()>& overlapped_work) = 0;

 protected:
  PeerTransport() = default;
};

/// Creates a transport with copy engines; collective over the world. Each rank's group must have several ranks. The
/// arguments must outlive the transport. JobFailure (a UserError) if the ranks of a group are on several hosts or their
/// GPUs have no peer access. `key` is the config key for messages.
std::unique_ptr<PeerTransport> make_peer_transport(World& world, const Context& context,
                                                   const Communicator& group, const std::string& key);

/// Creates a transport with the same order of work and the same sums that uses a group of CPU ranks, which must outlive
/// it.
std::unique_ptr<PeerTransport> make_group_transport(Communicator& group);

}  // namespace te::parallel
