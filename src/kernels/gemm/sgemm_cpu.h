// OpenBLAS as the CPU references use it: one thread per call, called from OpenMP regions over fixed tiles.
#pragma once

#include <cstdint>

namespace te::kernels {

/// What OpenBLAS maps for so many threads that call it at once. It tries for ever where it cannot.
int64_t openblas_bytes(int threads);

/// UserError unless limits of the process leave that much to OpenMP's threads. Called before the first parallel region
/// that multiplies; later calls cost nothing.
void require_openblas_memory();

/// c[m, n] = alpha * op(a) * op(b) + beta * c, row-major with leading dimensions (elements from row to row)
/// lda, ldb and ldc of the stored matrices. c is not read when beta is 0. The call runs on the calling thread
/// alone: OpenBLAS's own threads would fight with OpenMP's for the cores, and its way to split a GEMM (and
/// so the bits of the result) depends on their number.
void sgemm_one_thread(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                      const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                      int64_t ldc);

}  // namespace te::kernels
