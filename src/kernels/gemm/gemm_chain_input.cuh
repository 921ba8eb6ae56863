// The input of a linear of a chain (gemm_chain.cu), put into shared memory by the warps that multiply, every block all
// of it: norm(x + delta), and a cast where the weight is E4M3. Memory answers in about a microsecond, for which all
// blocks wait, so whatever a phase reads is asked for at once.
#pragma once

#include "kernels/gemm/gemm_chain_device.cuh"
#include "kernels/norm/norm_device.cuh"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels::cuda {

/// Eight values of a row.
struct Eight {
  float v[8];

  __device__ __forceinline__ explicit Eight(const uint4& packed) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = hopper::low_bf16(words[i]);
      v[2 * i + 1] = hopper::high_bf16(words[i]);
    }
  }
  __device__ __forceinline__ uint4 packed() const {
    return {hopper::pack_bf16(v[0], v[1]), hopper::pack_bf16(v[2], v[3]), hopper::pack_bf16(v[4], v[5]),
            hopper::pack_bf16(v[6], v[7])};
  }
  __device__ __forceinline__ uint2 cast(float scale) const {
    Vector<uint8_t, 8> bytes;
#pragma unroll
    for (int i = 0; i < 8; ++i) bytes.v[i] = to_fp8<DType::e4m3>(v[i] * scale);
    return *reinterpret_cast<const uint2*>(&bytes);
  }
  __device__ __forceinline__ uint32_t largest() const {
    uint32_t bits = 0;
#pragma unroll
    for (float x : v) bits = max(bits, abs_bits(x));
    return bits;
  }
};

class ChainInput {
 public:
  using bf16 = __nv_bfloat16;
  using Partial = float[2][kChainWarps][kChainRows];

  __device__ __forceinline__ ChainInput(int rows, uint8_t* input, Partial& partial)
      : rows_(rows),
        input_(input),
        partial_(partial),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize) {}

  /// As fragments read it; returns the inverse of the scale that it is cast with.
  template <DType kType>
  __device__ __forceinline__ float prepare(const Link& link) {
    const int stride = input_stride(link.row_bytes);
    if constexpr (kType == DType::bf16) {
      link.gamma != nullptr ? normalize(link, input_, stride) : copy(link, stride);
      return 1.0f;
    } else {
      return link.gamma != nullptr ? normalize_and_cast(link, stride) : cast(link, stride);
    }
  }

 private:
  using Packed = uint4;  ///< eight values
  static constexpr int kBatch = 6;
  static constexpr int kStep = kChainConsumers * 8;

  /// What another block may have written in this launch: not from the L1 cache.
  static __device__ __forceinline__ Packed fresh(const bf16* p) {
    return __ldcg(reinterpret_cast<const Packed*>(p));
  }
  static __device__ __forceinline__ Packed constant(const bf16* p) {
    return __ldg(reinterpret_cast<const Packed*>(p));
  }
  static __device__ __forceinline__ Packed* at(uint8_t* rows, int stride, int row, int column) {
    return reinterpret_cast<Packed*>(rows + row * stride + 2 * column);
  }
  /// fn(row, first column) of this thread's eights, always the same.
  template <class Fn>
  __device__ __forceinline__ void for_own(const Link& link, Fn&& fn) const {
    for (int row = 0; row < rows_; ++row)
      for (int c = static_cast<int>(threadIdx.x) * 8; c < link.k; c += kStep) fn(row, c);
  }

  // --- inputs without a norm, whose eights are dealt out over all rows as one

  __device__ __forceinline__ int eights(const Link& link) const { return rows_ * (link.k / 8); }
  /// This thread's eights from `first` on; 0 behind the last.
  __device__ __forceinline__ void load_batch(const Link& link, int first, Packed (&x)[kBatch]) const {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = first + j * kChainConsumers;
      x[j] = i < eights(link) ? fresh(link.x + int64_t{i} * 8) : Packed{};
    }
  }
  /// fn(eight, row, first column)
  template <class Fn>
  __device__ __forceinline__ void for_batch(const Link& link, int first, const Packed (&x)[kBatch],
                                            Fn&& fn) const {
    const int in_row = link.k / 8;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = first + j * kChainConsumers;
      if (i < eights(link)) fn(x[j], i / in_row, i % in_row * 8);
    }
  }

  __device__ __forceinline__ void copy(const Link& link, int stride) const {
    for (int first = static_cast<int>(threadIdx.x); first < eights(link); first += kBatch * kChainConsumers) {
      Packed x[kBatch];
      load_batch(link, first, x);
      for_batch(link, first, x, [&](const Packed& e, int row, int c) { *at(input_, stride, row, c) = e; });
    }
  }

  /// A thread keeps a batch of what it has read for the amax, and reads more than that again.
  __device__ __forceinline__ float cast(const Link& link, int stride) {
    constexpr int kBatchStep = kBatch * kChainConsumers;
    Packed x[kBatch];
    uint32_t largest = 0;
    for (int first = static_cast<int>(threadIdx.x); first < eights(link); first += kBatchStep) {
      load_batch(link, first, x);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) largest = max(largest, Eight(x[j]).largest());
    }
    const float scale = scale_for(link, largest);
    for (int first = static_cast<int>(threadIdx.x); first < eights(link); first += kBatchStep) {
      if (eights(link) > kBatchStep) load_batch(link, first, x);
      for_batch(link, first, x, [&](const Packed& e, int row, int c) {
        *reinterpret_cast<uint2*>(input_ + row * stride + c) = Eight(e).cast(scale);
      });
    }
    return 1.0f / scale;
  }

  // --- norms

  /// The norm's result waits behind the input for the amax.
  __device__ __forceinline__ float normalize_and_cast(const Link& link, int stride) {
    uint8_t* const kept = input_ + rows_ * stride;
    const int kept_stride = input_stride(2 * link.k);
    normalize(link, kept, kept_stride);
    uint32_t largest = 0;
    for_own(link,
            [&](int row, int c) { largest = max(largest, Eight(*at(kept, kept_stride, row, c)).largest()); });
    const float scale = scale_for(link, largest);
    for_own(link, [&](int row, int c) {
      *reinterpret_cast<uint2*>(input_ + row * stride + c) =
          Eight(*at(kept, kept_stride, row, c)).cast(scale);
    });
    return 1.0f / scale;
  }

  __device__ __forceinline__ void normalize(const Link& link, uint8_t* rows, int stride) {
    rows_ == 1 ? normalize<1, 4>(link, rows, stride) : normalize<kChainRows, 1>(link, rows, stride);
  }

  /// norm(x + delta) to shared memory; the sum to global memory. kUnroll: eights of a row that a thread asks for at
  /// once.
  template <int kRows, int kUnroll>
  __device__ __forceinline__ void normalize(const Link& link, uint8_t* rows, int stride) {
    float mean[kRows] = {}, rstd[kRows] = {};
    // 1. The sum, and what its mean and its square's add up to.
    constexpr int kAtOnce = kRows < 4 ? kRows : 4;
#pragma unroll
    for (int first = 0; first < kRows; first += kAtOnce) {
      if (first >= rows_) break;
      for (int begin = static_cast<int>(threadIdx.x) * 8; begin < link.k; begin += kUnroll * kStep) {
        Packed x[kAtOnce][kUnroll], delta[kAtOnce][kUnroll];
        const auto each = [&](auto&& fn) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) fn(i, u, first + i, begin + u * kStep);
          }
        };
        each([&](int i, int u, int row, int c) {
          const int64_t from = int64_t{row} * link.k + c;
          const bool there = row < rows_ && c < link.k;
          x[i][u] = there ? fresh(link.x + from) : Packed{};
          delta[i][u] = there && link.delta != nullptr ? fresh(link.delta + from) : Packed{};
        });
        each([&](int i, int u, int row, int c) {
          if (row >= rows_ || c >= link.k) return;
          Eight sum(x[i][u]);
          if (link.delta != nullptr) {
            const Eight other(delta[i][u]);
#pragma unroll
            for (int j = 0; j < 8; ++j) sum.v[j] = round_to<bf16>(sum.v[j] + other.v[j]);
            if (blockIdx.x == 0)
              *reinterpret_cast<Packed*>(link.sum + int64_t{row} * link.k + c) = sum.packed();
          }
          *at(rows, stride, row, c) = sum.packed();
#pragma unroll
          for (float value : sum.v) mean[first + i] += value, rstd[first + i] += value * value;
        });
      }
    }
    if (link.layer) centered_squares(link, rows, stride, mean, rstd);
    // 2. Its standard deviation.
    add_over_block(rstd);
    // 3. Normalized.
    const float size = static_cast<float>(link.k);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows_) break;
      const float factor = 1.0f / sqrtf(rstd[row] / size + link.eps);
      for (int c = static_cast<int>(threadIdx.x) * 8; c < link.k; c += kStep) {
        Eight x(*at(rows, stride, row, c));
        const Eight gamma(constant(link.gamma + c)), beta(link.layer ? constant(link.beta + c) : Packed{});
#pragma unroll
        for (int j = 0; j < 8; ++j)
          x.v[j] = norm_element(link.layer, x.v[j], mean[row], factor,
                                norm_gain(link.zero_centered, gamma.v[j]), beta.v[j]);
        *at(rows, stride, row, c) = x.packed();
      }
    }
  }

  /// Sums to means, over the block; squares of what is left without them.
  template <int kRows>
  __device__ __forceinline__ void centered_squares(const Link& link, uint8_t* rows, int stride,
                                                   float (&mean)[kRows], float (&squares)[kRows]) {
    add_over_block(mean);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows_) break;
      mean[row] /= static_cast<float>(link.k), squares[row] = 0.0f;
      for (int c = static_cast<int>(threadIdx.x) * 8; c < link.k; c += kStep) {
        const Eight x(*at(rows, stride, row, c));
#pragma unroll
        for (float value : x.v) squares[row] += (value - mean[row]) * (value - mean[row]);
      }
    }
  }

  // --- over the block. One barrier each: a warp that writes one of two buffers has passed the barrier behind which all
  // have read it.

  template <int kRows>
  __device__ __forceinline__ void add_over_block(float (&values)[kRows]) {
    auto& buffer = partial_[turn_];
    turn_ ^= 1;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows_) break;
      const float sum = warp_sum(values[row]);
      if (lane_ == 0) buffer[warp_][row] = sum;
    }
    sync_consumers();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows_) break;
      values[row] = 0.0f;
#pragma unroll
      for (int w = 0; w < kChainWarps; ++w) values[row] += buffer[w][row];
    }
  }

  __device__ __forceinline__ float scale_for(const Link& link, uint32_t largest) {
    auto& buffer = partial_[turn_];
    turn_ ^= 1;
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (lane_ == 0) buffer[warp_][0] = __uint_as_float(largest);
    sync_consumers();
#pragma unroll
    for (int w = 0; w < kChainWarps; ++w) largest = max(largest, __float_as_uint(buffer[w][0]));
    return group_scale(__uint_as_float(largest), fp8_max(DType::e4m3), link.margin_factor, link.power_of_two);
  }

  const int rows_;
  uint8_t* const input_;
  Partial& partial_;
  const int warp_, lane_;
  int turn_ = 0;
};

}  // namespace te::kernels::cuda
