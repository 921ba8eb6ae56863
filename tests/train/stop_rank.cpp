// A library to preload into ranks: the rank TE_TEST_STOP_RANK stops itself in its MPI_Isend number TE_TEST_STOP_CALL.
// The messages of a run are always the same, so the rank always stops at the same place, however fast the machine is.
#include <mpi.h>

#include <csignal>
#include <cstdlib>

namespace {

/// The number of the call in which this rank stops; 0: never.
long call_to_stop_in() {
  const char *rank = std::getenv("TE_TEST_STOP_RANK"), *call = std::getenv("TE_TEST_STOP_CALL");
  int own = -1;
  PMPI_Comm_rank(MPI_COMM_WORLD, &own);
  return rank != nullptr && call != nullptr && std::atoi(rank) == own ? std::atol(call) : 0;
}

}  // namespace

extern "C" int MPI_Isend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  static long calls_left = call_to_stop_in();
  if (calls_left > 0 && --calls_left == 0) std::raise(SIGSTOP);
  return PMPI_Isend(buffer, count, type, to, tag, comm, request);
}
