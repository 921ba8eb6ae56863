// Communication in a group of ranks.
//
// Every rank of the group issues the same operations, with the same shapes and dtypes, in the same order. An operation
// is launched on the context's CUDA stream: it is asynchronous on a GPU and synchronous on the CPU (except for send).
// Misuse (dtype, shape, aliasing) is an InternalError that names the group.
//
// Reductions (f32, bf16, f16, i32) are deterministic, and every rank gets the same bits:
//   MPI (CPU)   the ranks' values are added in rank order in FP32 (i32: in 64 bits) and rounded once to the dtype. The
//               result does not depend on how a tensor is divided into calls.
//   NCCL (GPU)  the bits are the same for the same sizes, layout and NCCL version; bf16 may be rounded at every hop.
// The maximum ignores a NaN if any other rank has a number. An amax that must keep its NaN is reduced as i32:
// non-negative floats, including infinity and NaN, have the same order as their bits.
//
// Other operations move bytes of any dtype (f32, bf16, f16, i32, u8, e4m3, e5m2). Tensors may be empty.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace te::parallel {

enum class ReduceOp : uint8_t { sum, max };

/// Rows [first, first + count) of a tensor.
struct RowRange {
  int64_t first = 0, count = 0;
};
using RowRanges = std::vector<RowRange>;

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }  ///< rank of this process in the group
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::string& name() const { return name_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }  ///< ascending, except in a channel

  /// In place: t = the sum or maximum of the ranks' t.
  void all_reduce(const Context& context, const Tensor& t, ReduceOp op);
  /// out [size() * n] = the ranks' `in` [n], concatenated. `in` may be this rank's part of `out`; any other overlap is
  /// an error.
  void all_gather(const Context& context, const Tensor& in, const Tensor& out);
  /// Part i of out = part `rank()` of rank i's `in`, where both consist of size() equal parts and do not overlap.
  void all_to_all(const Context& context, const Tensor& in, const Tensor& out);
  /// Rows received[i] of out = the rows of rank i's `in` that it sends to this rank; sent[i]: rows of in for rank i.
  /// Unlike in other operations, ranks have different numbers of rows.
  void all_to_all(const Context& context, const Tensor& in, const RowRanges& sent, const Tensor& out,
                  const RowRanges& received);
  /// out [n] = this rank's part of the sum of the ranks' `in` [size() * n]. `out` may be this rank's part of `in`; the
  /// rest of `in` is not written.
  void reduce_scatter(const Context& context, const Tensor& in, const Tensor& out);
  /// Pairs with the receive of `peer`, a rank in the group; sends to one peer arrive in order. CPU: does not block, and
  /// t may be overwritten after the call. GPU: runs in the CUDA stream's order, and the CUDA stream may wait for the
  /// receiver, so two ranks that send to each other must use two communicators and two CUDA streams.
  void send(const Context& context, const Tensor& t, int peer);
  void receive(const Context& context, const Tensor& t, int peer);
  /// CPU: waits until all ranks have called it. GPU: the CUDA stream waits, not the host.
  void barrier(const Context& context);

 protected:
  Communicator(std::string name, std::vector<int> world_ranks, int rank);

 private:
  // The implementations. Arguments have been checked and are not empty.
  virtual void do_all_reduce(const Context&, const Tensor& t, ReduceOp op) = 0;
  virtual void do_all_gather(const Context&, const Tensor& in, const Tensor& out) = 0;
  virtual void do_all_to_all(const Context&, const Tensor& in, const RowRanges& sent, const Tensor& out,
                             const RowRanges& received) = 0;
  virtual void do_reduce_scatter(const Context&, const Tensor& in, const Tensor& out) = 0;
  virtual void do_send(const Context&, const Tensor& t, int peer) = 0;
  virtual void do_receive(const Context&, const Tensor& t, int peer) = 0;
  virtual void do_barrier(const Context&) = 0;

  std::string name_;
  std::vector<int> world_ranks_;
  int rank_;
};

/// A group of one rank: reductions do nothing; gathers copy `in` to `out` if they differ.
class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator(std::string name, int world_rank) : Communicator(std::move(name), {world_rank}, 0) {}

 private:
  void do_all_reduce(const Context&, const Tensor&, ReduceOp) override {}
  void do_all_gather(const Context&, const Tensor& in, const Tensor& out) override;
  void do_all_to_all(const Context&, const Tensor& in, const RowRanges& sent, const Tensor& out,
                     const RowRanges& received) override;
  void do_reduce_scatter(const Context&, const Tensor& in, const Tensor& out) override;
  void do_send(const Context&, const Tensor&, int) override {}  // never called: there is no peer
  void do_receive(const Context&, const Tensor&, int) override {}
  void do_barrier(const Context&) override {}
};

/// Rank and size of a group without connected ranks, for plans of a layout. Any operation is an InternalError.
class UnconnectedCommunicator final : public Communicator {
 public:
  UnconnectedCommunicator(std::string name, std::vector<int> world_ranks, int rank)
      : Communicator(std::move(name), std::move(world_ranks), rank) {}

 private:
  [[noreturn]] void refuse(const char* operation) const;
  void do_all_reduce(const Context&, const Tensor&, ReduceOp) override { refuse("all_reduce"); }
  void do_all_gather(const Context&, const Tensor&, const Tensor&) override { refuse("all_gather"); }
  void do_all_to_all(const Context&, const Tensor&, const RowRanges&, const Tensor&,
                     const RowRanges&) override {
    refuse("all_to_all");
  }
  void do_reduce_scatter(const Context&, const Tensor&, const Tensor&) override { refuse("reduce_scatter"); }
  void do_send(const Context&, const Tensor&, int) override { refuse("send"); }
  void do_receive(const Context&, const Tensor&, int) override { refuse("receive"); }
  void do_barrier(const Context&) override { refuse("barrier"); }
};

}  // namespace te::parallel
