// MPI helpers of this library's sources. Public headers do not include this file.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

#include "parallel/world.h"

namespace te::parallel {

/// Throws InternalError with MPI's message and the current operation unless `code` is MPI_SUCCESS.
void mpi_check(int code, const char* call);
#define TE_MPI_CHECK(call) ::te::parallel::mpi_check((call), #call)

/// True between MPI_Init and MPI_Finalize.
bool mpi_running();

/// A communicator of these world ranks, in this order; collective over them. It returns errors instead of aborting.
MPI_Comm mpi_make_group(const std::vector<int>& world_ranks);

/// Waits by polling: first spinning, then yielding the core, then with short sleeps, since there may be more ranks than
/// cores. Lets the watchdog check the time.
void mpi_wait(std::vector<MPI_Request>& requests, MPI_Status* statuses = MPI_STATUSES_IGNORE);

/// Concurrent sends and receives of bytes. Large ones are split because MPI counts are int.
class MpiExchange {
 public:
  MpiExchange(MPI_Comm comm, int tag) : comm_(comm), tag_(tag) {}
  void send(const void* data, size_t bytes, int peer);
  void receive(void* data, size_t bytes, int peer);
  /// Waits until all are complete. InternalError if a receive gets an unexpected number of bytes.
  void wait();
  /// True if all are complete; does not block and does not check sizes.
  bool test();

 private:
  MPI_Comm comm_;
  int tag_;
  std::vector<MPI_Request> requests_;
  std::vector<int> expected_;  // expected bytes of a receive; -1 for a send
};

}  // namespace te::parallel
