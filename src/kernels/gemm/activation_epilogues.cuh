// Epilogues for the tiles of a GEMM (activation_mainloop.cuh): the activation after linear_fc1, and its gradient after
// the dgrad of linear_fc2. A warpgroup processes a tile in kParts buffers of 64 rows; a thread accesses the elements
// that belong to its accumulators (ldmatrix, stmatrix).
//
// Epilogues of the forward pass have a Result parameter, which writes y: unchanged (StoredResult), or in FP8
// (activation_quantize.cuh).
#pragma once

#include "kernels/activation/activation_device.cuh"
#include "kernels/common/vec8.cuh"
#include "kernels/gemm/activation_mainloop.cuh"

namespace te::kernels::fused {

/// Eight values of a thread, in two groups of columns that are eight apart: [row, row + 8][column, column + 1].
using Values = Vec8<__nv_bfloat16>;

__device__ __forceinline__ Values load_values(uint32_t address) {
  Values x;
  ldmatrix(address, x.word);
  return x;
}
/// Rounds value(i), i = 0 to 7, to BF16.
template <class Value>
__device__ __forceinline__ Values rounded(Value&& value) {
  Values x;
#pragma unroll
  for (int j = 0; j < 4; ++j) x.word[j] = pack_bf16(value(2 * j), value(2 * j + 1));
  return x;
}

/// A thread's bias for 64 columns, from `column` on: two of every eight.
struct Bias {
  uint32_t packed[8];
  __device__ __forceinline__ Bias(const GemmParams& p, int column, const Thread& thread) {
    const int mine = column + thread.column();
    const __nv_bfloat16* const from = p.bias + mine;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      packed[i] = p.bias != nullptr && mine + i * 8 < p.columns
                      ? *reinterpret_cast<const uint32_t*>(from + i * 8)
                      : 0u;
  }
  /// Sums + bias of the i-th 16 columns, rounded to BF16: the stored values, to which the activation is applied.
  __device__ __forceinline__ Values add(const float* sums, int i) const {
    Values x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t bias = packed[i * 2 + j / 2];
      x.word[j] = pack_bf16(sums[j * 2] + low_bf16(bias), sums[j * 2 + 1] + high_bf16(bias));
    }
    return x;
  }
};

/// Sigmoids that the activation of eight values needs.
template <ActivationKind kKind>
struct Sigmoids {
  float of[8];
  explicit __device__ __forceinline__ Sigmoids(const Values& x) {
#pragma unroll
    for (int j = 0; j < 8; ++j) of[j] = activation_argument<kKind>(x.get(j));
    cuda::sigmoids(of);
  }
};

__device__ __forceinline__ Values swiglu(const Values& gate, const Values& up,
                                         const Sigmoids<ActivationKind::swiglu>& s) {
  return rounded(
      [&](int j) { return activation_value<ActivationKind::swiglu>(gate.get(j), up.get(j), s.of[j]); });
}

/// Base of epilogues that keep no state between tiles.
struct Stateless {
  explicit __device__ Stateless(const GemmParams&) {}
  /// Called after the last tile.
  __device__ void finish(const GemmParams&, const Thread&) const {}
};

/// y in BF16.
struct StoredResult : Stateless {
  using Stateless::Stateless;
  /// Stores a buffer of 64 rows from `row` on.
  static __device__ void store(const GemmParams&, const GemmMaps& maps, const __nv_bfloat16* buffer,
                               int column, int row) {
    tma_store(&maps.y, buffer, column, 0, row);
  }
  /// Writes the i-th 16 columns of a buffer with kWidth columns. `exist`: whether the warp's rows exist.
  template <int kWidth>
  __device__ __forceinline__ void write(const Thread& thread, uint32_t buffer, int i, const Values& y,
                                        bool /*exist*/) const {
    stmatrix(matrices_at<kWidth>(thread, buffer, i * 16), y.word);
  }
};

/// Forward pass: buffers are only written, and Result writes y.
template <class Result>
struct ForwardEpilogue {
  static constexpr bool kReads = false;
  Result result;

  explicit __device__ ForwardEpilogue(const GemmParams& p) : result(p) {}
  __device__ void finish(const GemmParams& p, const Thread& thread) { result.finish(p, thread); }
};

/// Whether the warp's rows in half h of a tile exist.
__device__ __forceinline__ bool rows_exist(const GemmParams& p, TileCoord tile, int h, const Thread& thread) {
  return tile.row * kRows + h * 64 + thread.warp * 16 < p.rows;
}

/// Buffers: 64 columns of x, then the same columns of y, for each half of the rows; then the next columns.
template <class Result>
struct GeluForward : ForwardEpilogue<Result> {
  static constexpr int kBlocks = 1, kParts = 2 * kHalves * kColumns / 64;
  using ForwardEpilogue<Result>::ForwardEpilogue;

  static __device__ void store(const GemmParams& p, const GemmMaps& maps, const __nv_bfloat16* buffer,
                               int part, TileCoord tile) {
    const int column = tile.column * kColumns + part / 4 * 64, row = tile.row * kRows + part / 2 % 2 * 64;
    if (part % 2 == 1) return Result::store(p, maps, buffer, column, row);
    tma_store(&maps.x, buffer, column, 0, row);
  }
  __device__ __forceinline__ void run(GemmShared&, const GemmParams& p, const Accumulators& sums,
                                      Buffers& buffers, TileCoord tile, const Thread& thread) {
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      const Bias bias(p, tile.column * kColumns + c * 64, thread);
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const Buffer x_to = buffers.open(), y_to = buffers.open();
        const bool exist = rows_exist(p, tile, h, thread);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const Values x = bias.add(sums[h] + c * 32 + i * 8, i);
          stmatrix(matrices_at(thread, x_to.address, i * 16), x.word);
          const Sigmoids<ActivationKind::gelu> s(x);
          const Values y =
              rounded([&](int j) { return activation_value<ActivationKind::gelu>(x.get(j), 0.0f, s.of[j]); });
          this->result.template write<64>(thread, y_to.address, i, y, exist);
        }
        buffers.pass_on(x_to, y_to);
      }
    }
  }
};

/// The first half of a tile's columns belongs to the gate, the second to the up projection. Buffers: 32 columns of
/// both, then 32 of y, for each half of the rows; then the next columns.
template <class Result>
struct SwigluForward : ForwardEpilogue<Result> {
  static constexpr int kBlocks = 2, kOfBlock = kColumns / kBlocks, kParts = 2 * kHalves * kOfBlock / 32;
  using ForwardEpilogue<Result>::ForwardEpilogue;

  static __device__ void store(const GemmParams& p, const GemmMaps& maps, const __nv_bfloat16* buffer,
                               int part, TileCoord tile) {
    const int column = tile.column * kOfBlock + part / 4 * 32, row = tile.row * kRows + part / 2 % 2 * 64;
    if (part % 2 == 1) return Result::store(p, maps, buffer, column, row);
    tma_store(&maps.x, buffer, column, 0, row);
    tma_store(&maps.x, buffer + 64 * 32, column, 1, row);
  }
  __device__ __forceinline__ void run(GemmShared&, const GemmParams& p, const Accumulators& sums,
                                      Buffers& buffers, TileCoord tile, const Thread& thread) {
#pragma unroll
    for (int c = 0; c < kOfBlock / 32; ++c) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const Buffer x_to = buffers.open(), y_to = buffers.open();
        const bool exist = rows_exist(p, tile, h, thread);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float *const gate_sums = sums[h] + c * 16 + i * 8, *const up_sums = gate_sums + kOfBlock / 2;
          const Values gate = rounded([&](int j) { return gate_sums[j]; }),
                       up = rounded([&](int j) { return up_sums[j]; });
          stmatrix(matrices_at<32>(thread, x_to.address, i * 16), gate.word);
          stmatrix(matrices_at<32>(thread, x_to.address + 64 * 64, i * 16), up.word);
          this->result.template write<32>(thread, y_to.address, i,
                                          swiglu(gate, up, Sigmoids<ActivationKind::swiglu>(gate)), exist);
        }
        buffers.pass_on(x_to, y_to);
      }
    }
  }
};

/// Buffers: 64 columns of x, overwritten with dx, for each half of the rows; then the next columns.
struct GeluBackward : Stateless {
  using Stateless::Stateless;
  static constexpr int kBlocks = 1, kParts = kHalves * kColumns / 64;
  static constexpr bool kReads = true;

  static __device__ void load(GemmShared& s, const GemmMaps& maps, Ring<kBuffers>::EmptySlot slot, int part,
                              TileCoord tile) {
    s.buffers.commit(slot, kBufferBytes);
    tma_load(s.buffer[slot.stage()], &maps.x, s.buffers.full(slot), tile.column * kColumns + part / 2 * 64, 0,
             tile.row * kRows + part % 2 * 64);
  }
  static __device__ void store(const GemmParams&, const GemmMaps& maps, const __nv_bfloat16* buffer, int part,
                               TileCoord tile) {
    tma_store(&maps.dx, buffer, tile.column * kColumns + part / 2 * 64, 0, tile.row * kRows + part % 2 * 64);
  }

  static __device__ __forceinline__ void run(GemmShared& s, const GemmParams& p, const Accumulators& sums,
                                             Buffers& buffers, TileCoord tile, const Thread& thread) {
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      float2 column_sums{0.0f, 0.0f};
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const Buffer buffer = buffers.open();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const dy = sums[h] + c * 32 + i * 8;
          const uint32_t address = matrices_at(thread, buffer.address, i * 16);
          const Values x = load_values(address);
          const Sigmoids<ActivationKind::gelu> s(x);
          stmatrix(address, rounded([&](int j) { return gelu_gradient(x.get(j), s.of[j], dy[j]); }).word);
        }
        if (p.partial != nullptr) add_rows(thread, buffer.address, column_sums);
        buffers.pass_on(buffer);
      }
      if (p.partial != nullptr) add_warps(s, p, column_sums, tile, c, thread);
    }
  }

 private:
  /// Adds up the warp's 16 rows in the two columns of this lane.
  static __device__ __forceinline__ void add_rows(const Thread& thread, uint32_t buffer, float2& sum) {
    const uint32_t rows = buffer + thread.warp * 16 * kTileRowBytes + thread.lane % 4 * 4;
    __syncwarp();
#pragma unroll
    for (int row = 0; row < 16; ++row) {
      uint32_t pair;
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(pair)
                   : "r"(rows + row * kTileRowBytes + (thread.lane / 4 * 16 ^ swizzle(row)))
                   : "memory");
      sum.x += low_bf16(pair);
      sum.y += high_bf16(pair);
    }
  }
  /// Adds the sums of the warps, which gives the sums over a tile's rows for 64 columns.
  static __device__ __forceinline__ void add_warps(GemmShared& s, const GemmParams& p, float2 sum,
                                                   TileCoord tile, int c, const Thread& thread) {
    float(&of)[kWarps][64] = s.sums[thread.warpgroup];
    const int column = tile.column * kColumns + c * 64 + thread.index;
    *reinterpret_cast<float2*>(of[thread.warp] + thread.lane * 2) = sum;
    named_barrier_sync<kWarpgroup>(kSumsBarrier + thread.warpgroup);
    if (thread.index < 64 && column < p.columns && tile.row * kRows < p.rows)
      p.partial[static_cast<int64_t>(tile.row) * p.columns + column] =
          (of[0][thread.index] + of[1][thread.index]) + (of[2][thread.index] + of[3][thread.index]);
    named_barrier_sync<kWarpgroup>(kSumsBarrier + thread.warpgroup);
  }
};

/// Buffers: 64 columns of the gate and of the up projection, overwritten with their gradients, and with
/// kRecomputeOutput 64 columns of the activation's result, for each half of the rows; then the next columns.
template <bool kRecomputeOutput>
struct SwigluBackward : Stateless {
  using Stateless::Stateless;
  static constexpr int kTensors = kRecomputeOutput ? 3 : 2;
  static constexpr int kBlocks = 1, kParts = kTensors * kHalves * kColumns / 64;
  static constexpr bool kReads = true;

  static __device__ void load(GemmShared& s, const GemmMaps& maps, Ring<kBuffers>::EmptySlot slot, int part,
                              TileCoord tile) {
    const int tensor = part % kTensors, place = part / kTensors;
    if (tensor == 2) return s.buffers.commit(slot);
    s.buffers.commit(slot, kBufferBytes);
    tma_load(s.buffer[slot.stage()], &maps.x, s.buffers.full(slot),
             tile.column * kColumns + place / kHalves * 64, tensor, tile.row * kRows + place % kHalves * 64);
  }
  static __device__ void store(const GemmParams&, const GemmMaps& maps, const __nv_bfloat16* buffer, int part,
                               TileCoord tile) {
    const int tensor = part % kTensors, place = part / kTensors;
    tma_store(tensor == 2 ? &maps.y : &maps.dx, buffer, tile.column * kColumns + place / kHalves * 64,
              tensor % 2, tile.row * kRows + place % kHalves * 64);
  }
  static __device__ __forceinline__ void run(GemmShared&, const GemmParams&, const Accumulators& sums,
                                             Buffers& buffers, TileCoord, const Thread& thread) {
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const Buffer gate_at = buffers.open(), up_at = buffers.open(),
                     y_at = kRecomputeOutput ? buffers.open() : up_at;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const dy = sums[h] + c * 32 + i * 8;
          const uint32_t gate_address = matrices_at(thread, gate_at.address, i * 16),
                         up_address = matrices_at(thread, up_at.address, i * 16);
          const Values gate = load_values(gate_address), up = load_values(up_address);
          const Sigmoids<ActivationKind::swiglu> s(gate);
          if constexpr (kRecomputeOutput)
            stmatrix(matrices_at(thread, y_at.address, i * 16), swiglu(gate, up, s).word);
          stmatrix(gate_address, rounded([&](int j) {
                                   return swiglu_gate_gradient(gate.get(j), up.get(j), s.of[j], dy[j]);
                                 }).word);
          stmatrix(up_address,
                   rounded([&](int j) { return swiglu_up_gradient(gate.get(j), s.of[j], dy[j]); }).word);
        }
        if constexpr (kRecomputeOutput)
          buffers.pass_on(gate_at, up_at, y_at);
        else
          buffers.pass_on(gate_at, up_at);
      }
  }
};

}  // namespace te::kernels::fused
