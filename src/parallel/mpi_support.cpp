#include "parallel/mpi_support.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "core/error.h"
#include "parallel/operation.h"

namespace te::parallel {
namespace {

constexpr size_t kMaxMessageBytes = size_t{1} << 30;  // MPI counts are int

/// Calls visit(offset, bytes) for each part of at most kMaxMessageBytes; once with 0 bytes if there are none.
template <class Visit>
void for_each_message(size_t bytes, Visit&& visit) {
  size_t offset = 0;
  do {
    const size_t size = std::min(bytes - offset, kMaxMessageBytes);
    visit(offset, static_cast<int>(size));
    offset += size;
  } while (offset < bytes);
}

}  // namespace

void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  const std::string operation = Operation::describe_current();
  internal_error(fmt::format("{}{}{}: {}", operation, operation.empty() ? "" : ": ", call, text),
                 std::source_location::current());
}

bool mpi_running() {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

MPI_Comm mpi_make_group(const std::vector<int>& world_ranks) {
  MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  TE_MPI_CHECK(MPI_Comm_group(MPI_COMM_WORLD, &world));
  TE_MPI_CHECK(MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &group));
  TE_MPI_CHECK(MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &comm));
  TE_MPI_CHECK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return comm;
}

void mpi_wait(std::vector<MPI_Request>& requests, MPI_Status* statuses) {
  constexpr int kBusy = 50, kYielding = 5000;
  for (int attempt = 0;; ++attempt) {
    int done = 0;
    const int code = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses);
    if (code == MPI_ERR_IN_STATUS && statuses != MPI_STATUSES_IGNORE) {
      for (size_t i = 0; i < requests.size(); ++i) {
        if (statuses[i].MPI_ERROR != MPI_ERR_PENDING) {
          mpi_check(statuses[i].MPI_ERROR, "MPI_Testall; check that all ranks issue the same operations");
        }
      }
    }
    mpi_check(code, "MPI_Testall");
    if (done != 0) return;
    if (attempt < kBusy) continue;
    if (attempt < kYielding) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    Operation::check_current();
  }
}

void MpiExchange::send(const void* data, size_t bytes, int peer) {
  for_each_message(bytes, [&](size_t offset, int size) {
    TE_MPI_CHECK(MPI_Isend(static_cast<const char*>(data) + offset, size, MPI_BYTE, peer, tag_, comm_,
                           &requests_.emplace_back()));
    expected_.push_back(-1);
  });
}

void MpiExchange::receive(void* data, size_t bytes, int peer) {
  for_each_message(bytes, [&](size_t offset, int size) {
    TE_MPI_CHECK(MPI_Irecv(static_cast<char*>(data) + offset, size, MPI_BYTE, peer, tag_, comm_,
                           &requests_.emplace_back()));
    expected_.push_back(size);
  });
}

void MpiExchange::wait() {
  std::vector<MPI_Status> statuses(requests_.size());
  mpi_wait(requests_, statuses.data());
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (expected_[i] < 0) continue;
    int bytes = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    TE_CHECK(bytes == expected_[i],
             "{}: rank {} of the group sent {} bytes, expected {}; check that all ranks issue the same "
             "operations",
             Operation::describe_current(), statuses[i].MPI_SOURCE, bytes, expected_[i]);
  }
  requests_.clear();
  expected_.clear();
}

bool MpiExchange::test() {
  int done = 0;
  TE_MPI_CHECK(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE));
  return done != 0;
}

}  // namespace te::parallel
