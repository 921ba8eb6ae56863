// FP8 output y of an activation's epilogue (activation_epilogues.cuh): the first quantization launch (fp8_output.h), of
// values that are first rounded to BF16, as if they had been stored and quantized by a separate kernel.
//
// A thread has pairs of adjacent columns in rows that are eight apart. Rowwise bytes are stored two at a time. For the
// transposed layout, threads of adjacent rows exchange a column, so that each has two rows of one column. In a buffer,
// the rowwise bytes come first, as 64 rows of kWidth bytes. The transposed bytes, kWidth rows of 64, start at offset
// kTransposed. Both use the TMA swizzle of their row size, so stores have no bank conflicts.
#pragma once

#include "kernels/gemm/activation_epilogues.cuh"

namespace te::kernels::fused {

/// kTransposes: also write the columnwise layout. kCounts: also count saturated and underflowed values.
template <bool kTransposes, bool kCounts>
class QuantizedResult {
 public:
  explicit __device__ QuantizedResult(const GemmParams& p)
      : scale_(p.y.scale != nullptr ? *p.y.scale : 1.0f) {}

  static __device__ void store(const GemmParams& p, const GemmMaps& maps, const __nv_bfloat16* buffer,
                               int column, int row) {
    if (p.y.rowwise) tma_store(&maps.y, buffer, column, 0, row);
    if (kTransposes && p.y.columnwise)
      tma_store(&maps.y_columns, reinterpret_cast<const uint8_t*>(buffer) + kTransposed, row, 0, column);
  }

  template <int kWidth>
  __device__ __forceinline__ void write(const Thread& thread, uint32_t buffer, int i, Values y, bool exist) {
    if (!exist) y = {};
    y.update_amax(largest_);
    uint32_t pairs[4];  // pairs of columns: this row, eight rows on; the same for eight columns on
#pragma unroll
    for (int j = 0; j < 4; ++j)
      pairs[j] = to_fp8x2<DType::e4m3>(y.get(2 * j) * scale_, y.get(2 * j + 1) * scale_);
    if constexpr (kCounts) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        count_value<DType::e4m3>(y.get(j), y.get(j) * scale_,
                                 static_cast<uint8_t>(pairs[j / 2] >> (j % 2 * 8)), counters_);
    }
    const uint32_t row = thread.row(), at = buffer + row * kWidth + (i * 16 ^ swizzle<kWidth / 2>(row));
#pragma unroll
    for (int j = 0; j < 4; ++j)
      store_shared_2(at + j % 2 * 8 * kWidth + j / 2 * 8 + thread.column(), pairs[j]);
    if constexpr (kTransposes) write_transposed(thread, buffer + kTransposed, i, pairs);
  }

  __device__ void finish(const GemmParams& p, const Thread& thread) const {
    const uint32_t amax = __reduce_max_sync(kAllLanes, Values::amax_bits(largest_));
    if (thread.lane == 0 && p.y.amax != nullptr) atomicMax(reinterpret_cast<unsigned int*>(p.y.amax), amax);
    const bool first = blockIdx.x == 0 && threadIdx.x == 0;
    if (first && p.y.scale_inv != nullptr) *p.y.scale_inv = 1.0f / scale_;
    if constexpr (kCounts) {
      add_counters(counters_, 0, p.y.counters);
      if (first)
        atomicAdd(&p.y.counters->total,
                  static_cast<unsigned long long>(p.rows) * static_cast<unsigned long long>(p.columns));
    }
  }

 private:
  static constexpr uint32_t kTransposed = kBufferBytes / 2;

  static __device__ __forceinline__ void store_shared_2(uint32_t address, uint32_t pair) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<uint16_t>(pair)) : "memory");
  }

  /// Threads of even rows take the first of two columns, those of odd rows the second.
  static __device__ __forceinline__ void write_transposed(const Thread& thread, uint32_t buffer, int i,
                                                          const uint32_t (&pairs)[4]) {
    const uint32_t row = thread.lane / 4, odd = row % 2;
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const uint32_t mine = pairs[2 * group] | pairs[2 * group + 1] << 16;
      const uint32_t theirs = __shfl_xor_sync(kAllLanes, mine, 4);
      const uint32_t rows =
          __byte_perm(mine, theirs, odd ? 0x3715 : 0x6240);  // two rows, and two rows eight columns on
      const uint32_t column = i * 16 + group * 8 + thread.column() + odd;
      const uint32_t at = buffer + column * 64 + (thread.warp * 16 ^ swizzle<32>(column)) + (row - odd);
      store_shared_2(at, rows);
      store_shared_2(at + 8, rows >> 16);
    }
  }

  const float scale_;
  uint32_t largest_ = 0;
  ThreadCounters counters_;
};

}  // namespace te::kernels::fused
