// Communicator of CPU ranks over MPI. All operations are built of nonblocking point-to-point messages, polled, so
// that the watchdog can look at the time; reductions gather the ranks' values and add them in rank order.
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
  /// Waits until the sends have arrived, unless an exception is on its way.
  ~MpiCommunicator() override;

 private:
  void do_all_reduce(const Context&, const Tensor& t, ReduceOp op) override;
  void do_all_gather(const Context&, const Tensor& in, const Tensor& out) override;
  void do_all_to_all(const Context&, const Tensor& in, const Tensor& out) override;
  void do_reduce_scatter(const Context&, const Tensor& in, const Tensor& out) override;
  void do_broadcast(const Context&, const Tensor& t, int root) override;
  void do_send(const Context&, const Tensor& t, int peer) override;
  void do_receive(const Context&, const Tensor& t, int peer) override;
  void do_barrier(const Context&) override;

  /// Where rank r's values lie while they are reduced: `own` here, room for `bytes` for each of the others.
  std::vector<char*> staging_parts(size_t bytes, char* own);
  void reap_sends();

  struct Mpi;  // the MPI communicator and the sends that may still be on their way
  std::unique_ptr<Mpi> mpi_;
  std::vector<char> staging_;
};

}  // namespace te::parallel
