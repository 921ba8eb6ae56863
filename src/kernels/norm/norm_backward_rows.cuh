// Code shared by the fast kernels of the norms' backward pass: a thread's part of all rows of its block
// (norm_rows.cuh).
#pragma once

#include "kernels/norm/norm_cuda.h"
#include "kernels/norm/norm_device.cuh"
#include "kernels/norm/norm_rows.cuh"

namespace te::kernels::cuda {

/// Blocks of at most this many threads have registers for two rows per iteration and the loads of the next two.
constexpr int kAheadThreads = 512;

template <class T>
struct BackwardParams {
  const T* dy;
  const T* x;
  const T* gamma;
  const float* mean;
  const float* rstd;
  const T* dresidual;
  T* dx;
  float* partial_gamma;  ///< [blocks, hidden]
  float* partial_beta;
  float* partial_bias;  ///< null without dbias
  uint8_t* columnwise;  ///< [hidden, rows]
  NormFp8 fp8;
  int64_t rows;
  int64_t hidden;
  bool layer, zero_centered;
};

/// dx of one element before the residual's gradient is added, from means over the row. g is rounded separately, as in
/// the sums, so that g and its mean cancel exactly if they are equal (a single column).
__device__ __forceinline__ float dx_element(float dy, float gain, float x_hat, float rstd, float mean_g,
                                            float mean_gx) {
  return rstd * (__fmul_rn(dy, gain) - mean_g - x_hat * mean_gx);
}

/// Means over the row of g = dy * gain (zero for RMSNorm) and of g * x_hat, computed from their sums.
template <class T>
__device__ __forceinline__ float2 row_means(const BackwardParams<T>& p, float2 sums) {
  const float count = static_cast<float>(p.hidden);
  return {p.layer ? sums.x / count : 0.0f, sums.y / count};
}

/// A thread's sums of eight columns of dx in shared memory: first the first four of all threads, then the other four,
/// to avoid bank conflicts.
class DxSums {
 public:
  static constexpr size_t kBytes = 2 * sizeof(float4);  ///< per thread
  __device__ explicit DxSums(float4* block) : own_(block + threadIdx.x) {}
  __device__ __forceinline__ void clear() const { own_[0] = own_[blockDim.x] = {}; }
  template <class T>
  __device__ __forceinline__ void add(const Vec8<T>& dx) const {
    add_four(own_[0], dx, 0);
    add_four(own_[blockDim.x], dx, 4);
  }
  __device__ __forceinline__ void store(float* to) const {
    reinterpret_cast<float4*>(to)[0] = own_[0];
    reinterpret_cast<float4*>(to)[1] = own_[blockDim.x];
  }

 private:
  template <class T>
  static __device__ __forceinline__ void add_four(float4& sums, const Vec8<T>& dx, int j) {
    const float4 old = sums;
    sums = {old.x + dx.get(j), old.y + dx.get(j + 1), old.z + dx.get(j + 2), old.w + dx.get(j + 3)};
  }
  float4* const own_;
};

/// A thread's part: eight columns of all rows of its block (norm_rows.cuh), and the sums of these columns.
template <class T, NormKind kKind, int kRows, bool kBias>
class BackwardThread {
 public:
  static constexpr bool kLayer = kKind == NormKind::layer;
  static constexpr int kSums = kLayer ? 2 * kRows : kRows;
  struct Rows {
    Vec8<T> x[kRows], dy[kRows], residual[kRows];
    float rstd[kRows], mean[kRows];
  };

  __device__ __forceinline__ BackwardThread(const BackwardParams<T>& params,
                                            typename BlockSums<kSums>::Shared& shared, float4* block_dx_sums)
      : p(params),
        block(shared),
        dx_sums(block_dx_sums),
        column(int64_t{threadIdx.x} * 8),
        owns(column < params.hidden) {
    gamma = load_vec8<true>(p.gamma + column, owns ? 8 : 0);
    if constexpr (kBias) dx_sums.clear();
  }

  __device__ __forceinline__ void load(int64_t row, Rows& to) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool exists = row + r < p.rows;
      const int64_t offset = (row + r) * p.hidden + column, valid = exists && owns ? 8 : 0;
      to.rstd[r] = exists ? p.rstd[row + r] : 0.0f;
      to.mean[r] = kLayer && exists ? p.mean[row + r] : 0.0f;
      to.x[r] = load_vec8<true>(p.x + offset, valid);
      to.dy[r] = load_vec8<true>(p.dy + offset, valid);
      to.residual[r] = load_vec8<true>(p.dresidual + offset, p.dresidual != nullptr ? valid : 0);
    }
  }

  /// Adds to the column sums, and computes the sums over each row that its dx needs.
  __device__ __forceinline__ void sum(Rows& rows) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float g_sum = 0.0f, gx_sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float x_hat = (rows.x[r].get(j) - rows.mean[r]) * rows.rstd[r], gradient = rows.dy[r].get(j);
        const float g = __fmul_rn(gradient, norm_gain<kKind>(gamma.get(j)));
        dgamma[j] += gradient * x_hat;
        if constexpr (kLayer) dbeta[j] += gradient;
        g_sum += g;
        gx_sum += g * x_hat;
      }
      sums[r] = gx_sum;
      if constexpr (kLayer) sums[kRows + r] = g_sum;
      rows.x[r].clobber_registers();
      rows.dy[r].clobber_registers();
    }
    gamma.clobber_registers();
    block.sum(sums);
  }

  /// Writes dx. Calls also(r, dx) for the thread's part of each existing row r.
  template <class Also>
  __device__ __forceinline__ void write(int64_t row, Rows& rows, Also&& also) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float2 means = row_means(p, float2{kLayer ? sums[kSums - kRows + r] : 0.0f, sums[r]});
      Vec8<T> dx;
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        float value[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x_hat = (rows.x[r].get(j + i) - rows.mean[r]) * rows.rstd[r];
          const float gain = norm_gain<kKind>(gamma.get(j + i));
          value[i] = dx_element(rows.dy[r].get(j + i), gain, x_hat, rows.rstd[r], means.x, means.y) +
                     rows.residual[r].get(j + i);
        }
        dx.set_pair(j, value[0], value[1]);
      }
      if constexpr (kBias) dx_sums.add(dx);  // zeros for missing rows
      if (!owns || row + r >= p.rows) continue;
      dx.store_aligned(p.dx + (row + r) * p.hidden + column);
      also(r, dx);
    }
    gamma.clobber_registers();
  }

  __device__ __forceinline__ void write_sums() const {
    if (!owns) return;
    const int64_t offset = blockIdx.x * p.hidden + column;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      p.partial_gamma[offset + j] = dgamma[j];
      if constexpr (kLayer) p.partial_beta[offset + j] = dbeta[j];
    }
    if constexpr (kBias) dx_sums.store(p.partial_bias + offset);
  }

 private:
  const BackwardParams<T>& p;
  BlockSums<kSums> block;
  const DxSums dx_sums;
  const int64_t column;
  const bool owns;
  Vec8<T> gamma;
  float dgamma[8] = {}, dbeta[kLayer ? 8 : 1] = {}, sums[kSums] = {};
};

template <class T>
BackwardParams<T> backward_params(const NormBackward& a) {
  BackwardParams<T> p;
  p.dy = a.dy.as<T>();
  p.x = a.x.as<T>();
  p.gamma = a.gamma.as<T>();
  p.mean = a.mean.as<float>();
  p.rstd = a.rstd.as<float>();
  p.dresidual = a.dresidual.as<T>();
  p.dx = a.dx.as<T>();
  p.rows = a.x.rows();
  p.hidden = a.x.cols();
  p.layer = a.kind == NormKind::layer;
  p.zero_centered = a.kind == NormKind::rms_zero_centered;
  const int64_t sums = norm_partial_blocks(p.hidden) * p.hidden;
  p.partial_gamma = a.scratch.as<float>();
  p.partial_beta = p.partial_gamma + sums;
  p.partial_bias = a.dbias ? p.partial_beta + sums : nullptr;
  p.columnwise = a.dx_fp8.columnwise.as<uint8_t>();
  p.fp8 = norm_fp8(a.dx_fp8);
  return p;
}

/// Runs the backward pass except for the addition of the blocks' sums, if the FP8 kernel supports the problem, and
/// returns the number of blocks. Otherwise does nothing and returns 0.
int norm_backward_fp8(const Context& context, const NormBackward& args);

}  // namespace te::kernels::cuda
