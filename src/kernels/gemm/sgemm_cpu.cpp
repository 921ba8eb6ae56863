#include "kernels/gemm/sgemm_cpu.h"

#include <cblas.h>
#include <fcntl.h>
#include <malloc.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "core/address_space.h"
#include "core/error.h"
#include "core/memory_plan.h"

namespace te::kernels {
namespace {

constexpr int64_t kBuffer = int64_t{128} << 20;  // BUFFER_SIZE of OpenBLAS on x86-64, its largest one
/// Stacks of threads that start after the first GEMM, and growth of the heap.
constexpr int64_t kLater = int64_t{64} << 20;

// ---- check of memory limits before OpenBLAS is loaded ----

/// Bytes of address space or data that a limit leaves; without a limit, the largest number.
rlim_t remaining(decltype(RLIMIT_AS) resource, rlim_t used) {
  struct rlimit limit = {};
  if (::getrlimit(resource, &limit) != 0) return RLIM_INFINITY;
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;  // RLIM_INFINITY is the largest number
}

/// Memory that this process has mapped: fields 1 (size) and 6 (data and stack) of /proc/self/statm, in bytes. Zeros if
/// it cannot be read.
std::array<rlim_t, 2> mapped_bytes() {
  char text[256] = {};
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const bool is_read = ::read(file, text, sizeof(text) - 1) > 0;
  ::close(file);
  std::array<rlim_t, 6> pages = {};
  size_t field = 0;
  for (const char* at = text; is_read && *at != '\0' && field < pages.size(); ++at) {
    if (*at == ' ') ++field;
    if (*at >= '0' && *at <= '9') pages[field] = pages[field] * 10 + static_cast<rlim_t>(*at - '0');
  }
  const auto page = static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  return {pages[0] * page, pages[5] * page};
}

void print_error(const char* text) {
  static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text)));
}

/// OpenBLAS 0.3.29 allocates its first buffer while it is loaded and retries forever if the system has no memory. This
/// function runs before any library is initialized, so it can still print a message. It uses only system calls, because
/// the C and C++ libraries are not initialized either. Libraries that are initialized before OpenBLAS (those of MPI)
/// allocate about 20 MiB.
[[maybe_unused]] void require_memory_to_load_openblas(int, char** arguments, char**) {
  const auto [space, data] = mapped_bytes();
  constexpr rlim_t kOtherLibraries = rlim_t{32} << 20;
  if (std::min(remaining(RLIMIT_AS, space), remaining(RLIMIT_DATA, data)) >= kBuffer + kOtherLibraries)
    return;
  const char* slash = std::strrchr(arguments[0], '/');
  print_error(slash != nullptr ? slash + 1 : arguments[0]);
  print_error(
      ": error: the process limits (ulimit -v, ulimit -d) leave less than the 160 MiB of memory that "
      "OpenBLAS and other libraries need to start; raise the limit\n");
  ::_exit(2);
}

#ifndef __SANITIZE_ADDRESS__  // its functions are not ready yet, and it maps terabytes
using Initializer = void (*)(int, char**, char**);
[[gnu::section(".preinit_array"), gnu::used]] const Initializer openblas_check =
    require_memory_to_load_openblas;
#endif

// malloc reserves 64 MiB of address space for each further thread that allocates, and OpenBLAS maps its buffers later:
// under a limit, all threads share one arena.
[[maybe_unused]] const bool shares_arena =
    remaining(RLIMIT_AS, 0) < RLIM_INFINITY && ::mallopt(M_ARENA_MAX, 1) == 1;

}  // namespace

int64_t openblas_bytes(int threads) {
  return threads * kBuffer + kLater;
}

void require_openblas_memory() {
  static const bool enough = [] {
    const int threads = omp_get_max_threads();
    const int64_t free = free_address_space(), needed = openblas_bytes(threads);
    if (free < needed)
      user_error(
          "the process limits (ulimit -v, ulimit -d) leave {} of memory, but OpenBLAS and later threads need "
          "{} for {} threads; raise the limit, or lower OMP_NUM_THREADS",
          human_bytes(free), human_bytes(needed), threads);
    return true;
  }();
  static_cast<void>(enough);
}

void sgemm_one_thread(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                      const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                      int64_t ldc) {
  static const bool once = (openblas_set_num_threads(1), true);
  static_cast<void>(once);
  const auto narrow = [](int64_t x) {
    TE_CHECK(x <= std::numeric_limits<blasint>::max(), "gemm: dimension {} is too large for OpenBLAS", x);
    return static_cast<blasint>(x);
  };
  cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans,
              narrow(m), narrow(n), narrow(k), alpha, a, narrow(lda), b, narrow(ldb), beta, c, narrow(ldc));
}

}  // namespace te::kernels
