// Communicator of CPU ranks over MPI. Operations consist of nonblocking point-to-point communication, which is polled
// so that the watchdog can check the time. Reductions gather the ranks' values and add them in rank order.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace te::parallel {

class World;

class MpiCommunicator final : public Communicator {
 public:
  /// Collective over the ranks. The World must outlive it.
  MpiCommunicator(World& world, std::string name, std::vector<int> world_ranks);
  /// Waits until all sends are complete, unless an exception is being handled.
  ~MpiCommunicator() override;

 private:
  void do_all_reduce(const Context&, const Tensor& t, ReduceOp op) override;
  void do_all_gather(const Context&, const Tensor& in, const Tensor& out) override;
  void do_all_to_all(const Context&, const Tensor& in, const RowRanges& sent, const Tensor& out,
                     const RowRanges& received) override;
  void do_reduce_scatter(const Context&, const Tensor& in, const Tensor& out) override;
  void do_send(const Context&, const Tensor& t, int peer) override;
  void do_receive(const Context&, const Tensor& t, int peer) override;
  void do_barrier(const Context&) override;

  /// Buffers of the ranks' values for a reduction: `own` for this rank, `bytes` of staging memory for each other rank.
  std::vector<char*> staging_parts(size_t bytes, char* own);
  void reap_sends();

  struct Mpi;  // the MPI communicator and the pending sends
  std::unique_ptr<Mpi> mpi_;
  std::vector<char> staging_;
};

}  // namespace te::parallel
