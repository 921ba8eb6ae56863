// Kernels for segments that fit into the registers of a warp, which reads every value once. A warp loads several short
// segments before it computes, so that enough reads are in flight.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/qk_norm/qk_norm_params.cuh"

namespace te::kernels::cuda::qk_norm {

/// Columns of a segment that a warp holds per vector of a lane.
constexpr int kVectorColumns = kWarpSize * kVector;
/// Vectors of a lane, at most: three segments and FP32 sums of them take registers.
template <class T>
constexpr int kMostVectors = sizeof(T) == 4 ? 8 : 16;

/// Segments that a warp loads at once.
template <int kVectors>
constexpr int kSegments = kVectors < 4 ? 4 / kVectors : 1;

/// A lane's columns of a segment; zeros beyond its width.
template <class T, int kVectors>
struct LaneColumns {
  Vector<T, kVector> v[kVectors];

  static __device__ __forceinline__ int column(int k) {
    return k * kVectorColumns + static_cast<int>(threadIdx.x) % kWarpSize * kVector;
  }
  __device__ __forceinline__ void load(const T* from, int width) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      v[k] = column(k) < width ? load_vector<T, kVector>(from + column(k)) : Vector<T, kVector>{};
  }
  __device__ __forceinline__ void store(T* to, int width) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      if (column(k) < width) store_vector<T, kVector>(to + column(k), v[k]);
  }
  /// Keeps the compiler from keeping the values as FP32, too, from one loop over them to the next.
  __device__ __forceinline__ void keep_packed() {
    if constexpr (sizeof(T) == 2) {
      auto* const words = reinterpret_cast<uint32_t*>(v);
#pragma unroll
      for (int i = 0; i < kVectors * kVector / 2; ++i) asm volatile("" : "+r"(words[i]));
    }
  }
  /// Calls f(value, vector, element) for all columns; f may change the value.
  template <class F>
  __device__ __forceinline__ void each(F&& f) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
#pragma unroll
      for (int i = 0; i < kVector; ++i) f(v[k].v[i], k, i);
  }
};

template <class T, int kVectors>
__global__ void __launch_bounds__(kThreads) forward_registers_kernel(const __grid_constant__ Params<T> p) {
  constexpr int kCount = kSegments<kVectors>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize,
            warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t first = int64_t{blockIdx.x} * kWarps * kCount + warp;
  typename Params<T>::Segment segments[kCount];
  LaneColumns<T, kVectors> values[kCount];
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
    const int64_t item = first + s * kWarps;
    if (item >= p.work) break;
    segments[s] = p.segment(item);
    values[s].load(p.packed + segments[s].row * p.columns + segments[s].begin, segments[s].width);
  }
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
    const int64_t item = first + s * kWarps;
    if (item >= p.work) return;
    const auto& segment = segments[s];
    float squares = 0.0f;
    values[s].each([&](T& x, int, int) { squares += load_float(&x) * load_float(&x); });
    squares = p.sums != nullptr ? p.sums[item] : warp_sum(squares);
    const float rstd = 1.0f / sqrtf(squares / p.norm_width(segment.width) + p.eps);
    if (p.raw != nullptr) {
      values[s].store(p.raw + segment.row * p.kept + segment.begin, segment.width);
      if (lane == 0) p.rstd[item] = rstd;
    }
    LaneColumns<T, kVectors> gain;
    gain.load(segment.gain, segment.width);
    values[s].each([&](T& x, int k, int i) {
      store_float(&x, load_float(&x) * rstd * (load_float(&gain.v[k].v[i]) + p.shift));
    });
    values[s].store(p.packed + segment.row * p.columns + segment.begin, segment.width);
  }
}

/// The gain of a lane's columns, in registers or, of wide segments, in the L1 cache.
template <class T, int kVectors>
struct Gain {
  static constexpr bool kInRegisters = kVectors < 8;
  LaneColumns<T, kInRegisters ? kVectors : 1> own;
  const T* gains;
  int width;
  __device__ Gain(const T* gains, int width) : gains(gains), width(width) {
    if constexpr (kInRegisters) own.load(gains, width);
  }
  __device__ __forceinline__ float at(int k, int j) const {
    if constexpr (kInRegisters) return load_float(&own.v[k].v[j]);
    const int column = LaneColumns<T, kVectors>::column(k) + j;
    return column < width ? load_float(gains + column) : 0.0f;
  }
};

/// Where a segment of some rows begins.
struct SegmentPlace {
  int row, segment;
  /// The segment `step` later, of `count` per row.
  __device__ __forceinline__ void advance(int step, int count) {
    row += step / count, segment += step % count;
    if (segment >= count) segment -= count, ++row;
  }
};

/// Queries, or keys, of rows [begin, end): replaces dy by dx, and stores the sum of the gain's gradients, of which a
/// warp adds every kWarps-th segment. All threads of the block must call it.
template <class T, int kVectors>
__device__ __forceinline__ void backward_segments(const Params<T>& p, bool query, int64_t begin, int64_t end,
                                                  float* d_gain, float (&sums)[kWarps][kVectorColumns]) {
  using Columns = LaneColumns<T, kVectors>;
  constexpr int kCount = kSegments<kVectors>;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int first = query ? 0 : p.q_segments, count = query ? p.q_segments : p.segments - p.q_segments;
  const int width = query ? p.q_width : p.k_width, start = query ? 0 : p.q_segments * p.q_width;
  const int rows = static_cast<int>(end - begin);
  // Within a part, offsets fit into 32 bits.
  const int columns = static_cast<int>(p.columns), kept = static_cast<int>(p.kept);
  T* const dy = p.packed + begin * p.columns + start;
  const T* const x = p.raw + begin * p.kept + start;
  const float* const all_rstd = p.rstd + begin * p.segments + first;
  const Gain<T, kVectors> gain(query ? p.q_gain : p.k_gain, width);
  float sum[kVectors][kVector] = {};
  SegmentPlace next{warp / count, warp % count};
  while (next.row < rows) {
    SegmentPlace places[kCount];
    Columns d[kCount], value[kCount];
    float rstd[kCount];
#pragma unroll
    for (int s = 0; s < kCount; ++s, next.advance(kWarps, count)) {
      places[s] = next;
      if (next.row >= rows) continue;
      d[s].load(dy + (next.row * columns + next.segment * width), width);
      value[s].load(x + (next.row * kept + next.segment * width), width);
      rstd[s] = all_rstd[next.row * p.segments + next.segment];
    }
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      const auto [row, segment] = places[s];
      if (row >= rows) break;
      const float r = rstd[s];
      float along = 0.0f;
      d[s].each([&](T& d_value, int k, int j) {
        const float v = load_float(&value[s].v[k].v[j]), g = gain.at(k, j) + p.shift;
        along += load_float(&d_value) * g * v * r;
        sum[k][j] += load_float(&d_value) * v * r;
      });
      along = p.sums != nullptr ? p.sums[(begin + row) * p.segments + first + segment] : warp_sum(along);
      along /= p.norm_width(width);
      d[s].keep_packed(), value[s].keep_packed();
      d[s].each([&](T& d_value, int k, int j) {
        const float v = load_float(&value[s].v[k].v[j]), g = gain.at(k, j) + p.shift;
        store_float(&d_value, r * (load_float(&d_value) * g - v * r * along));
      });
      d[s].store(dy + (row * columns + segment * width), width);
    }
  }
  if (d_gain == nullptr) return;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int column = Columns::column(k), at = column - k * kVectorColumns;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kVector; ++j) sums[warp][at + j] = sum[k][j];
    __syncthreads();
    if (warp != 0 || column >= width) continue;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
#pragma unroll
      for (int w = 1; w < kWarps; ++w) sum[k][j] += sums[w][at + j];
      d_gain[column + j] = sum[k][j];
    }
  }
}

/// A block per part of the rows. d_gains[part, column of q's gain | k's gain]; null: gains have no gradients.
template <class T, int kVectors>
__global__ void __launch_bounds__(kThreads, kVectors <= 2   ? 3
                                            : kVectors <= 8 ? 2
                                                            : 1)
    backward_registers_kernel(const __grid_constant__ Params<T> p, int64_t rows, float* d_gains) {
  __shared__ float sums[kWarps][kVectorColumns];
  const int64_t per_part = (rows + kQkNormParts - 1) / kQkNormParts;
  const int64_t begin = min(rows, blockIdx.x * per_part), end = min(rows, begin + per_part);
  if (d_gains != nullptr) d_gains += int64_t{blockIdx.x} * (p.q_width + p.k_width);
  backward_segments<T, kVectors>(p, true, begin, end, d_gains, sums);
  backward_segments<T, kVectors>(p, false, begin, end, d_gains == nullptr ? nullptr : d_gains + p.q_width,
                                 sums);
}

/// Calls launch with the vectors of a lane; false if there are too many.
template <class T, int kVectors = 1, class Launch>
bool in_registers(const Params<T>& p, Launch&& launch) {
  if constexpr (kVectors <= kMostVectors<T>) {
    if (max(p.q_width, p.k_width) > kVectors * kVectorColumns)
      return in_registers<T, 2 * kVectors>(p, std::forward<Launch>(launch));
    launch(std::integral_constant<int, kVectors>{});
    return true;
  }
  return false;
}

}  // namespace te::kernels::cuda::qk_norm
