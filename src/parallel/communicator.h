// Communication among one group of ranks.
//
// Every rank of the group issues the same operations, with the same shapes and dtypes, in the same order. An
// operation is launched on the context's stream: on a GPU it returns before it is done, on the CPU it is done
// when it returns (but for send, see there). Misuse (dtype, shape, aliasing) is an InternalError that names the
// group.
//
// Reductions (f32, bf16, i32) are deterministic, and every rank gets the same bits:
//   MPI (CPU)   the ranks' values are added in rank order in FP32 (i32: in 64 bits) and rounded once to the dtype.
//               The result does not depend on how a tensor is cut into calls.
//   NCCL (GPU)  the same bits for the same sizes, layout and NCCL version, and bf16 may be rounded at every hop.
// The maximum ignores a NaN where any other rank has a number. An amax that must keep its NaN is reduced as
// i32: non-negative floats, infinity and NaN included, are ordered like their bits.
//
// Other operations move bytes, whatever the dtype (f32, bf16, i32, u8, e4m3, e5m2). Empty tensors are fine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace te::parallel {

enum class ReduceOp : uint8_t { sum, max };

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }  ///< of this process within the group
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::string& name() const { return name_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }  ///< ascending, except in a channel

  /// In place: t = the sum or maximum of the ranks' t.
  void all_reduce(const Context& context, const Tensor& t, ReduceOp op);
  /// out = the ranks' `in`, one after another; out holds size() times as many elements. `in` may be this rank's
  /// part of out; any other overlap is an error.
  void all_gather(const Context& context, const Tensor& in, const Tensor& out);
  /// Part i of out = part `rank()` of rank i's `in`; both are size() equal parts, one after another. They do not
  /// overlap.
  void all_to_all(const Context& context, const Tensor& in, const Tensor& out);
  /// out = this rank's part of the sum of the ranks' `in`. `out` may be this rank's part of `in`; nothing else of
  /// `in` is written.
  void reduce_scatter(const Context& context, const Tensor& in, const Tensor& out);
  /// t = rank root's t. Ranks here and in send and receive are those of the group.
  void broadcast(const Context& context, const Tensor& t, int root);
  /// Pairs with the peer's receive; sends to one peer arrive in order. CPU: returns at once, t may be overwritten
  /// then. GPU: in the stream's order, and the stream may wait for the receiver: two ranks that send to each
  /// other must do so on two communicators and two streams.
  void send(const Context& context, const Tensor& t, int peer);
  void receive(const Context& context, const Tensor& t, int peer);
  /// CPU: returns when all ranks have come. GPU: so does the stream; the host does not wait.
  void barrier(const Context& context);

 protected:
  Communicator(std::string name, std::vector<int> world_ranks, int rank);

 private:
  // The operations proper. Arguments have been checked and are not empty.
  virtual void do_all_reduce(const Context&, const Tensor& t, ReduceOp op) = 0;
  virtual void do_all_gather(const Context&, const Tensor& in, const Tensor& out) = 0;
  virtual void do_all_to_all(const Context&, const Tensor& in, const Tensor& out) = 0;
  virtual void do_reduce_scatter(const Context&, const Tensor& in, const Tensor& out) = 0;
  virtual void do_broadcast(const Context&, const Tensor& t, int root) = 0;
  virtual void do_send(const Context&, const Tensor& t, int peer) = 0;
  virtual void do_receive(const Context&, const Tensor& t, int peer) = 0;
  virtual void do_barrier(const Context&) = 0;

  std::string name_;
  std::vector<int> world_ranks_;
  int rank_;
};

/// A group of one rank: reductions and broadcasts leave the tensor as it is, gathers copy where in is not out.
class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator(std::string name, int world_rank) : Communicator(std::move(name), {world_rank}, 0) {}

 private:
  void do_all_reduce(const Context&, const Tensor&, ReduceOp) override {}
  void do_all_gather(const Context&, const Tensor& in, const Tensor& out) override;
  void do_all_to_all(const Context&, const Tensor& in, const Tensor& out) override;
  void do_reduce_scatter(const Context&, const Tensor& in, const Tensor& out) override;
  void do_broadcast(const Context&, const Tensor&, int) override {}
  void do_send(const Context&, const Tensor&, int) override {}  // there is no peer: refused before
  void do_receive(const Context&, const Tensor&, int) override {}
  void do_barrier(const Context&) override {}
};

/// A rank's place in a group that is not there: plans of a layout ask for rank and size; any operation is an
/// InternalError.
class UnconnectedCommunicator final : public Communicator {
 public:
  UnconnectedCommunicator(std::string name, std::vector<int> world_ranks, int rank)
      : Communicator(std::move(name), std::move(world_ranks), rank) {}

 private:
  [[noreturn]] void refuse(const char* operation) const;
  void do_all_reduce(const Context&, const Tensor&, ReduceOp) override { refuse("all_reduce"); }
  void do_all_gather(const Context&, const Tensor&, const Tensor&) override { refuse("all_gather"); }
  void do_all_to_all(const Context&, const Tensor&, const Tensor&) override { refuse("all_to_all"); }
  void do_reduce_scatter(const Context&, const Tensor&, const Tensor&) override { refuse("reduce_scatter"); }
  void do_broadcast(const Context&, const Tensor&, int) override { refuse("broadcast"); }
  void do_send(const Context&, const Tensor&, int) override { refuse("send"); }
  void do_receive(const Context&, const Tensor&, int) override { refuse("receive"); }
  void do_barrier(const Context&) override { refuse("barrier"); }
};

}  // namespace te::parallel
