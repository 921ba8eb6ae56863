// What this room's sources share of MPI. Not included by headers that other rooms see.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

#include "parallel/world.h"

namespace te::parallel {

/// InternalError with MPI's text and the current operation.
void mpi_check(int code, const char* call);
#define TE_MPI_CHECK(call) ::te::parallel::mpi_check((call), #call)

/// Between MPI_Init and MPI_Finalize.
bool mpi_running();

/// A communicator of these world ranks, in this order; only they call. Errors are returned, not fatal.
MPI_Comm mpi_make_group(const std::vector<int>& world_ranks);

/// Waits by polling: first busily, then yielding the core, then in short sleeps, and lets the watchdog look at the
/// time. Ranks may outnumber cores.
void mpi_wait(std::vector<MPI_Request>& requests, MPI_Status* statuses = MPI_STATUSES_IGNORE);

/// Sends and receives of bytes that run at the same time. Messages of any size: long ones go in pieces.
class MpiExchange {
 public:
  MpiExchange(MPI_Comm comm, int tag) : comm_(comm), tag_(tag) {}
  void send(const void* data, size_t bytes, int peer);
  void receive(void* data, size_t bytes, int peer);
  /// Until all are done. InternalError when a message has another size than expected.
  void wait();
  /// Done so far; wait() must still be called after true.
  bool test();

 private:
  MPI_Comm comm_;
  int tag_;
  std::vector<MPI_Request> requests_;
  std::vector<int> expected_;  // bytes of a receive; -1 for a send
};

}  // namespace te::parallel
