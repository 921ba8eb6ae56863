// OpenBLAS for the CPU reference implementations: one thread per call, called from OpenMP regions over fixed tiles.
#pragma once

#include <cstdint>

namespace te::kernels {

/// Bytes that OpenBLAS maps if `threads` threads call it concurrently, and those that threads map which start later.
/// OpenBLAS retries forever if a mapping fails.
int64_t openblas_bytes(int threads);

/// Throws UserError if process limits do not leave enough memory for OpenMP's threads. Call it before the first
/// parallel region that multiplies; later calls cost nothing.
void require_openblas_memory();

/// c[m, n] = alpha * op(a) * op(b) + beta * c, row-major; lda, ldb and ldc are the row strides (in elements) of the
/// stored matrices. c is not read if beta is 0. The call runs on the calling thread alone: OpenBLAS's own threads would
/// compete with OpenMP's for the cores, and the way it splits a GEMM, and thus the result's bits, depends on their
/// number.
void sgemm_one_thread(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                      const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                      int64_t ldc);

}  // namespace te::kernels
