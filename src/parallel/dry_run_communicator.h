// Communicator without communication, to measure the computation of one rank: operations fill their outputs with
// copies of the rank's own data where sizes allow. The results are meaningless. Most outputs are not zero because a GPU
// runs GEMMs of zeros at a higher clock than GEMMs of activations.
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
  /// Copies this rank's part to every rank's part.
  void do_all_gather(const Context&, const Tensor& in, const Tensor& out) override;
  /// Copies the rows that it sends to the place of those that it receives, as many as both have.
  void do_all_to_all(const Context&, const Tensor& in, const RowRanges& sent, const Tensor& out,
                     const RowRanges& received) override;
  /// Copies this rank's part of its own input.
  void do_reduce_scatter(const Context&, const Tensor& in, const Tensor& out) override;
  /// A receive on any channel copies the tensor that was last sent on any channel, if it has the same size.
  void do_send(const Context&, const Tensor& t, int) override { last_sent_ = t; }
  void do_receive(const Context&, const Tensor& t, int) override;
  void do_barrier(const Context&) override {}

  static Tensor last_sent_;
};

}  // namespace te::parallel
