#include "kernels/gemm/sgemm_cpu.h"

#include <cblas.h>

#include <limits>

#include "core/error.h"

namespace te::kernels {

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
