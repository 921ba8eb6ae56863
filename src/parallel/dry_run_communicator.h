// Measures what a rank computes when it never waits for another: every operation fills its outputs with data that the
// rank has itself, by a copy on the device. Copies, because a GPU runs GEMMs of zeros at a higher clock than
// GEMMs of activations. The numbers that come out mean nothing.
#pragma once

#include "parallel/communicator.h"

namespace te::parallel {

class DryRunCommunicator final : public Communicator {
 public:
  DryRunCommunicator(std::string name, std::vector<int> world_ranks, int rank)
      : Communicator(std::move(name), std::move(world_ranks), rank) {}

 private:
  Tensor part(const Tensor& full, int rank) const;

  void do_all_reduce(const Context&, const Tensor&, ReduceOp) override {}
  /// Every rank's part is this rank's.
  void do_all_gather(const Context&, const Tensor& in, const Tensor& out) override;
  /// Its own parts.
  void do_all_to_all(const Context& context, const Tensor& in, const Tensor& out) override {
    context.copy(out.view({out.numel()}), in.view({in.numel()}));
  }
  /// This rank's part of its own addend.
  void do_reduce_scatter(const Context&, const Tensor& in, const Tensor& out) override;
  void do_broadcast(const Context&, const Tensor&, int) override {}
  /// A receive on any channel gives what was last sent on any.
  void do_send(const Context&, const Tensor& t, int) override { last_sent_ = t; }
  void do_receive(const Context&, const Tensor& t, int) override;
  void do_barrier(const Context&) override {}

  static Tensor last_sent_;
};

}  // namespace te::parallel
