// What the ranks of a group on one host send each other by their GPUs' copy engines, which take no multiprocessors from
// the GEMMs: each rank writes into the others' memory, opened over CUDA's interprocess handles.
//
// A message is a copy and then a 32-bit counter in the receiver's memory, both in the sender's stream; the receiver's
// stream waits for the counter (cuStreamWriteValue32, cuStreamWaitValue32). No kernel and no host takes part:
//
//   all-gather       receiver: "gather g may be written here" -> sender: copies its rows into the receiver's tensor,
//                    counts its chunks there -> receiver: works on them
//   reduce-scatter   sender: copies its addend of the receiver's rows into its slot there, counts -> receiver: adds
//                    all ranks' addends in the order of the ranks, in FP32, rounds once, and says "reduction r is
//                    consumed", for which the sender's next one waits
//
// Every rank calls the same operations in the same order with the same shapes. The tensors that others write lie in
// memory that has been shared, at the same place of it on every rank. Results are the same bits in every run.
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

  /// While it lives, the others may write the memory. Ends together with those of the other ranks, before the memory is
  /// freed; not after an exception, which ends the job.
  class RegisteredMemory {
   public:
    RegisteredMemory() = default;
    virtual ~RegisteredMemory() = default;
    RegisteredMemory(const RegisteredMemory&) = delete;
    RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  };
  /// Opens the ranks' memories for each other; collective over the world. What the context has written there is kept;
  /// from then on a rank that is ahead may send, so slots are not written any more. `layout` describes what lies where
  /// in it and must be the same on all ranks of a group. JobFailure, a UserError, when a driver refuses.
  virtual std::unique_ptr<RegisteredMemory> register_memory(const Context& context, void* memory,
                                                            size_t bytes, const std::string& layout) = 0;

  /// Launches work on rows [first, first + count) of the whole on the context.
  using Work = std::function<void(int64_t first, int64_t count)>;

  /// All-gather: full [tokens, n], in shared memory, = the ranks' shards [tokens / size, n] in the order of the
  /// ranks, of any dtype; `shard` may be this rank's part of it. Then work on each of `pieces` pieces (peer_pieces.h),
  /// as they arrive.
  virtual void gather(const Context& context, const Tensor& shard, const Tensor& full, int pieces,
                      const Work& work) = 0;
  /// Reduce-scatter: `produce` writes this rank's addend of a piece of full [tokens, n]; shard [tokens / size, n] =
  /// the sum over the ranks (f32, bf16 or f16). `slots`: shared memory of (size - 1) shards for the others' addends,
  /// for this alone. `overlapped_work` is launched while the last piece travels.
  virtual void reduce(const Context& context, const Tensor& full, const Tensor& shard, const Tensor& slots,
                      int pieces, const Work& produce, const std::function<void()>& overlapped_work) = 0;
  /// Reduce-scatter of a full [size, n] that is there: shard [1, n], which may be this rank's row of the whole, = the
  /// sum over the ranks; with `adds`, where the transport can, shard += the sum, rounded once. Other operations of this
  /// transport may have been launched on other streams: copies go in the order of the calls.
  virtual void reduce_scatter(const Context& context, const Tensor& full, const Tensor& shard,
                              const Tensor& slots, bool adds) = 0;
  virtual bool can_add() const { return false; }

 protected:
  PeerTransport() = default;
};

/// Collective over the world; each rank's group has several ranks. Both must outlive it. JobFailure, a UserError, where
/// the ranks of a group are on several hosts or their GPUs cannot write each other's memory. `key`: of the config that
/// asked for it, for messages.
std::unique_ptr<PeerTransport> make_peer_transport(World& world, const Context& context,
                                                   const Communicator& group, const std::string& key);

/// The same order of work and the same sums through a group of CPU ranks, which must outlive it.
std::unique_ptr<PeerTransport> make_group_transport(Communicator& group);

}  // namespace te::parallel
