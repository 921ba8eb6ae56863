#include "kernels/gemm/sgemm_cpu.h"

#include <cblas.h>
#include <omp.h>

#include <limits>

#include "core/address_space.h"
#include "core/error.h"
#include "core/memory_plan.h"

namespace te::kernels {

int64_t openblas_bytes(int threads) {
  constexpr int64_t kBuffer = int64_t{128} << 20;  // its BUFFER_SIZE on x86-64, the largest of all
  return threads * kBuffer;
}

void require_openblas_memory() {
  static const bool enough = [] {
    const int threads = omp_get_max_threads();
    const int64_t free = free_address_space(), needed = openblas_bytes(threads);
    if (free < needed)
      user_error(
          "limits of this process (ulimit -v, ulimit -d) leave {} of memory, but OpenBLAS needs {} for {} "
          "threads; raise the limit, or set OMP_NUM_THREADS to fewer",
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
