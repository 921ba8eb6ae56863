// Input of a linear in the megakernel (decode_megakernel.cu). In every block, both warpgroups compute norm(x + delta)
// completely, quantize it if the weight is E4M3, and write it to shared memory. All blocks wait for the memory latency,
// so each phase issues all of its loads at once.
#pragma once

#include "kernels/gemm/decode_megakernel_device.cuh"
#include "kernels/norm/norm_device.cuh"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels::cuda {

/// Eight consecutive values of a row.
struct FloatVec8 {
  float v[8];

  __device__ __forceinline__ explicit FloatVec8(const uint4& packed) {
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
  __device__ __forceinline__ uint2 quantize(float scale) const {
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

/// Input of up to kRows rows.
template <int kRows>
class MegakernelInput {
 public:
  using bf16 = __nv_bfloat16;
  using Partial = float[2][kWorkerWarps][kMegakernelRows];

  __device__ __forceinline__ MegakernelInput(int rows, uint8_t* input, Partial& partial)
      : rows_(kRows == 1 ? 1 : rows),
        input_(input),
        partial_(partial),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize) {}

  /// Prepares the input in wgmma's layout; returns its inverse scale.
  template <DType kType>
  __device__ __forceinline__ float prepare(const GemmDesc& desc) {
    const int stride = input_stride(desc.row_bytes);
    clear_tails(desc.row_bytes, stride);
    if constexpr (kRows == 1) {
      if (desc.gamma != nullptr)
        return desc.k <= 2 * kStep ? one_row<kType, 2>(desc) : one_row<kType, kMaxHeld>(desc);
    } else if (desc.gamma != nullptr) {
      if constexpr (kType != DType::bf16) return normalize_and_quantize(desc, stride);
      normalize(desc, input_, stride);
      return 1.0f;
    }
    if constexpr (kType != DType::bf16) return quantize(desc, stride);
    copy(desc, stride);
    return 1.0f;
  }

 private:
  using Packed = uint4;  ///< eight values
  static constexpr int kBatch = 6;
  static constexpr int kStep = kMegakernelWorkers * 8;

  /// Loads values that another block may have written in this launch, bypassing the L1 cache.
  static __device__ __forceinline__ Packed fresh(const bf16* p) {
    return __ldcg(reinterpret_cast<const Packed*>(p));
  }
  static __device__ __forceinline__ Packed constant(const bf16* p) {
    return __ldg(reinterpret_cast<const Packed*>(p));
  }
  static __device__ __forceinline__ Packed* at(uint8_t* rows, int stride, int row, int column) {
    return reinterpret_cast<Packed*>(rows + row * stride + input_place(2 * column));
  }
  __device__ __forceinline__ uint2* quantized_at(int stride, int row, int column) const {
    return reinterpret_cast<uint2*>(input_ + row * stride + input_place(column));
  }
  /// Calls fn(row, first column) for each vector of eight that this thread owns; the assignment is fixed.
  template <class Fn>
  __device__ __forceinline__ void for_own(const GemmDesc& desc, Fn&& fn) const {
    for (int row = 0; row < rows_; ++row)
      for (int c = static_cast<int>(threadIdx.x) * 8; c < desc.k; c += kStep) fn(row, c);
  }

  /// Zeroes the gaps after the rows. Weights are zero there, but zero times NaN or infinity would not be.
  __device__ __forceinline__ void clear_tails(int row_bytes, int stride) const {
    const int each = (stride - row_bytes) / 16;
    for (int i = static_cast<int>(threadIdx.x); i < rows_ * each; i += kMegakernelWorkers)
      *reinterpret_cast<uint4*>(input_ + i / each * stride + input_place(row_bytes + i % each * 16)) = {};
  }

  // --- inputs without a norm: the vectors of all rows are distributed over the threads

  __device__ __forceinline__ int num_vec8(const GemmDesc& desc) const { return rows_ * (desc.k / 8); }
  /// Loads this thread's vectors from `first` on, with zeros after the last one.
  __device__ __forceinline__ void load_batch(const GemmDesc& desc, int first, Packed (&x)[kBatch]) const {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = first + j * kMegakernelWorkers;
      x[j] = i < num_vec8(desc) ? fresh(desc.x + int64_t{i} * 8) : Packed{};
    }
  }
  /// Calls fn(vector, row, first column).
  template <class Fn>
  __device__ __forceinline__ void for_batch(const GemmDesc& desc, int first, const Packed (&x)[kBatch],
                                            Fn&& fn) const {
    const int in_row = desc.k / 8;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = first + j * kMegakernelWorkers;
      if (i < num_vec8(desc)) fn(x[j], i / in_row, i % in_row * 8);
    }
  }

  __device__ __forceinline__ void copy(const GemmDesc& desc, int stride) const {
    for (int first = static_cast<int>(threadIdx.x); first < num_vec8(desc);
         first += kBatch * kMegakernelWorkers) {
      Packed x[kBatch];
      load_batch(desc, first, x);
      for_batch(desc, first, x, [&](const Packed& e, int row, int c) { *at(input_, stride, row, c) = e; });
    }
  }

  /// For the amax pass a thread keeps one batch in registers; it reads longer inputs again.
  __device__ __forceinline__ float quantize(const GemmDesc& desc, int stride) {
    constexpr int kBatchStep = kBatch * kMegakernelWorkers;
    Packed x[kBatch];
    uint32_t largest = 0;
    for (int first = static_cast<int>(threadIdx.x); first < num_vec8(desc); first += kBatchStep) {
      load_batch(desc, first, x);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) largest = max(largest, FloatVec8(x[j]).largest());
    }
    const float scale = scale_for(desc, largest);
    for (int first = static_cast<int>(threadIdx.x); first < num_vec8(desc); first += kBatchStep) {
      if (num_vec8(desc) > kBatchStep) load_batch(desc, first, x);
      for_batch(desc, first, x, [&](const Packed& e, int row, int c) {
        *quantized_at(stride, row, c) = FloatVec8(e).quantize(scale);
      });
    }
    return 1.0f / scale;
  }

  // --- norms

  /// Stores the norm's result after the input in shared memory until the amax is known.
  __device__ __forceinline__ float normalize_and_quantize(const GemmDesc& desc, int stride) {
    uint8_t* const kept = input_ + rows_ * stride;
    const int kept_stride = input_stride(2 * desc.k);
    normalize(desc, kept, kept_stride);
    uint32_t largest = 0;
    for_own(desc, [&](int row, int c) {
      largest = max(largest, FloatVec8(*at(kept, kept_stride, row, c)).largest());
    });
    const float scale = scale_for(desc, largest);
    for_own(desc, [&](int row, int c) {
      *quantized_at(stride, row, c) = FloatVec8(*at(kept, kept_stride, row, c)).quantize(scale);
    });
    return 1.0f / scale;
  }

  /// x + delta, rounded. One block also writes it to global memory.
  __device__ __forceinline__ Packed add_to_stream(const GemmDesc& desc, const Packed& x, const Packed& delta,
                                                  int row, int c) const {
    FloatVec8 sum(x);
    const FloatVec8 other(delta);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum.v[j] += other.v[j];
    const Packed packed = sum.packed();
    if (blockIdx.x == 0) *reinterpret_cast<Packed*>(desc.sum + int64_t{row} * desc.k + c) = packed;
    return packed;
  }

  /// Writes norm(x + delta) to shared memory and the sum to global memory.
  __device__ __forceinline__ void normalize(const GemmDesc& desc, uint8_t* rows, int stride) {
    constexpr int kAtOnce = kRows < 4 ? kRows : 4;
    float mean[kRows] = {}, rstd[kRows] = {};
    // 1. Residual add, sums for mean and mean square
#pragma unroll
    for (int first = 0; first < kRows; first += kAtOnce) {
      if (first >= rows_) break;
      for (int c = static_cast<int>(threadIdx.x) * 8; c < desc.k; c += kStep) {
        Packed x[kAtOnce], delta[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int64_t from = int64_t{first + i} * desc.k + c;
          const bool there = first + i < rows_;
          x[i] = there ? fresh(desc.x + from) : Packed{};
          delta[i] = there && desc.delta != nullptr ? fresh(desc.delta + from) : Packed{};
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + i >= rows_) break;
          const Packed packed =
              desc.delta != nullptr ? add_to_stream(desc, x[i], delta[i], first + i, c) : x[i];
          *at(rows, stride, first + i, c) = packed;
          for (const float value : FloatVec8(packed).v)
            mean[first + i] += value, rstd[first + i] += value * value;
        }
      }
    }
    if (desc.layer) centered_squares(desc, rows, stride, mean, rstd);
    // 2. Standard deviation
    add_over_block(rstd);
    // 3. Normalization
    const float size = static_cast<float>(desc.k);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows_) break;
      const float factor = 1.0f / sqrtf(rstd[row] / size + desc.eps);
      for (int c = static_cast<int>(threadIdx.x) * 8; c < desc.k; c += kStep) {
        FloatVec8 x(*at(rows, stride, row, c));
        const FloatVec8 gamma(constant(desc.gamma + c)),
            beta(desc.layer ? constant(desc.beta + c) : Packed{});
#pragma unroll
        for (int j = 0; j < 8; ++j)
          x.v[j] = norm_element(desc.layer, x.v[j], mean[row], factor,
                                norm_gain(desc.zero_centered, gamma.v[j]), beta.v[j]);
        *at(rows, stride, row, c) = x.packed();
      }
    }
  }

  /// Converts sums to means over the block, and computes squared deviations from the means.
  __device__ __forceinline__ void centered_squares(const GemmDesc& desc, uint8_t* rows, int stride,
                                                   float (&mean)[kRows], float (&squares)[kRows]) {
    add_over_block(mean);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows_) break;
      mean[row] /= static_cast<float>(desc.k), squares[row] = 0.0f;
      for (int c = static_cast<int>(threadIdx.x) * 8; c < desc.k; c += kStep) {
        const FloatVec8 x(*at(rows, stride, row, c));
#pragma unroll
        for (float value : x.v) squares[row] += (value - mean[row]) * (value - mean[row]);
      }
    }
  }

  // --- norms of one row, which stays in registers: kHeld vectors per thread. Results are bitwise equal to those of
  // normalize().

  static constexpr int kMaxHeld = kMaxNormed / kStep;
  /// Whether there are registers to load gamma early.
  template <int kHeld>
  static constexpr bool kEarlyGamma = kHeld <= 2;

  template <DType kType, int kHeld>
  __device__ __forceinline__ float one_row(const GemmDesc& desc) {
    Packed x[kHeld], gamma[kHeld];
    load_sum(desc, x, gamma);
    // 1. Mean and standard deviation
    float mean[1] = {}, squares[1] = {};
    if (desc.layer) {
      for_held<kHeld>(desc, [&](int u, int) {
        for (const float value : FloatVec8(x[u]).v) mean[0] += value;
      });
      add_over_block(mean);
      mean[0] /= static_cast<float>(desc.k);
    }
    for_held<kHeld>(desc, [&](int u, int) {
      for (const float value : FloatVec8(x[u]).v) squares[0] += (value - mean[0]) * (value - mean[0]);
    });
    add_over_block(squares);
    const float factor = 1.0f / sqrtf(squares[0] / static_cast<float>(desc.k) + desc.eps);
    // 2. Normalization
    for_held<kHeld>(desc, [&](int u, int c) {
      FloatVec8 of(x[u]);
      const FloatVec8 gain(kEarlyGamma<kHeld> ? gamma[u] : constant(desc.gamma + c)),
          beta(desc.layer ? constant(desc.beta + c) : Packed{});
#pragma unroll
      for (int j = 0; j < 8; ++j)
        of.v[j] = norm_element(desc.layer, of.v[j], mean[0], factor, norm_gain(desc.zero_centered, gain.v[j]),
                               beta.v[j]);
      x[u] = of.packed();
    });
    // 3. Write to shared memory, quantized or not
    if constexpr (kType == DType::bf16) {
      for_held<kHeld>(desc, [&](int u, int c) { *at(input_, 0, 0, c) = x[u]; });
      return 1.0f;
    } else {
      uint32_t largest = 0;
      for_held<kHeld>(desc, [&](int u, int) { largest = max(largest, FloatVec8(x[u]).largest()); });
      const float scale = scale_for(desc, largest);
      for_held<kHeld>(desc, [&](int u, int c) { *quantized_at(0, 0, c) = FloatVec8(x[u]).quantize(scale); });
      return 1.0f / scale;
    }
  }

  /// Loads x + delta, which is also written to global memory, and optionally gamma, with all loads issued at once.
  template <int kHeld>
  __device__ __forceinline__ void load_sum(const GemmDesc& desc, Packed (&x)[kHeld],
                                           Packed (&gamma)[kHeld]) const {
    Packed delta[kHeld] = {};
    for_held<kHeld>(desc, [&](int u, int c) {
      x[u] = fresh(desc.x + c);
      if (desc.delta != nullptr) delta[u] = fresh(desc.delta + c);
      if constexpr (kEarlyGamma<kHeld>) gamma[u] = constant(desc.gamma + c);
    });
    if (desc.delta == nullptr) return;
    for_held<kHeld>(desc, [&](int u, int c) { x[u] = add_to_stream(desc, x[u], delta[u], 0, c); });
  }

  /// Calls fn(index, first column) for each vector of a row that this thread holds.
  template <int kHeld, class Fn>
  __device__ __forceinline__ void for_held(const GemmDesc& desc, Fn&& fn) const {
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      const int c = (u * kMegakernelWorkers + static_cast<int>(threadIdx.x)) * 8;
      if (c < desc.k) fn(u, c);
    }
  }

  // --- reductions over the block. One barrier each: two buffers alternate, so a warp that writes one has passed a
  // barrier that all warps reach after reading it.

  __device__ __forceinline__ void add_over_block(float (&values)[kRows]) {
    auto& buffer = partial_[buffer_index_];
    buffer_index_ ^= 1;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows_) break;
      const float sum = warp_sum(values[row]);
      if (lane_ == 0) buffer[warp_][row] = sum;
    }
    sync_workers();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows_) break;
      values[row] = 0.0f;
#pragma unroll
      for (int w = 0; w < kWorkerWarps; ++w) values[row] += buffer[w][row];
    }
  }

  __device__ __forceinline__ float scale_for(const GemmDesc& desc, uint32_t largest) {
    auto& buffer = partial_[buffer_index_];
    buffer_index_ ^= 1;
    largest = __reduce_max_sync(kAllLanes, largest);
    if (lane_ == 0) buffer[warp_][0] = __uint_as_float(largest);
    sync_workers();
#pragma unroll
    for (int w = 0; w < kWorkerWarps; ++w) largest = max(largest, __float_as_uint(buffer[w][0]));
    return group_scale(__uint_as_float(largest), fp8_max(DType::e4m3), desc.margin_factor, desc.power_of_two);
  }

  const int rows_;
  uint8_t* const input_;
  Partial& partial_;
  const int warp_, lane_;
  int buffer_index_ = 0;
};

}  // namespace te::kernels::cuda
