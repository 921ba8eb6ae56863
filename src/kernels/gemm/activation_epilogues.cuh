// What happens to a tile of a product (activation_product.cuh): the activation after linear_fc1, and its gradient after the
// dgrad of linear_fc2. A warpgroup takes a tile through kSlots buffers of 64 rows; a thread finds in them what belongs to its
// accumulators (ldmatrix, stmatrix).
#pragma once

#include "kernels/activation/activation_device.cuh"
#include "kernels/gemm/activation_product.cuh"

namespace te::kernels::fused {

/// Address of the 16 bytes that this lane names to ldmatrix and stmatrix for the warp's rows, columns `column` to column + 15, in a
/// buffer whose rows are kWidth values. Swizzled (hopper.cuh): in rows of 128 bytes the 16-byte unit u of row r is at
/// u ^ (r % 8), in rows of 64 bytes at u ^ (r / 2 % 4).
template <int kWidth>
__device__ __forceinline__ uint32_t matrices_at(uint32_t buffer, int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize,
            warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarpSize;
  const uint32_t row = warp * 16 + lane % 16, swizzle = kWidth == 64 ? row % 8 : row / 2 % 4;
  return (buffer + row * (kWidth * 2) + ((lane / 16) ^ swizzle) * 16) ^ (column * 2);
}

/// Four registers are eight values of a thread, in two groups of columns eight apart: [row, row + 8][column, column + 1].
__device__ __forceinline__ float value(const uint32_t (&packed)[4], int i) {
  return i % 2 == 0 ? low_bf16(packed[i / 2]) : high_bf16(packed[i / 2]);
}
__device__ __forceinline__ void store8(uint32_t address, const uint32_t (&packed)[4]) {
  store_matrices(address, packed[0], packed[1], packed[2], packed[3]);
}

/// A thread's bias for kCount columns, from `column` of a block on: two of every eight.
template <int kCount>
struct Bias {
  uint32_t packed[kCount / 8];
  __device__ __forceinline__ Bias(const ProductParams& p, int block, int column) {
    const int mine = column + static_cast<int>(threadIdx.x) % 4 * 2;
    const __nv_bfloat16* const from = p.bias + static_cast<int64_t>(block) * p.columns + mine;
#pragma unroll
    for (int i = 0; i < kCount / 8; ++i)
      packed[i] = p.bias != nullptr && mine + i * 8 < p.columns
                      ? *reinterpret_cast<const uint32_t*>(from + i * 8)
                      : 0u;
  }
  /// Sum + bias of the `i`th 16 columns, rounded to BF16: what is stored, and what the activation is taken of.
  __device__ __forceinline__ void add(const float* sum, int i, uint32_t (&rounded)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t bias = packed[i * 2 + j / 2];
      rounded[j] = pack_bf16(sum[j * 2] + low_bf16(bias), sum[j * 2 + 1] + high_bf16(bias));
    }
  }
};

/// The sigmoids that the activation of eight values needs.
template <ActivationKind kKind>
struct Sigmoids {
  float of[8];
  explicit __device__ __forceinline__ Sigmoids(const uint32_t (&x)[4]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) of[j] = activation_argument<kKind>(value(x, j));
    cuda::sigmoids(of);
  }
};

/// y may be one of the operands.
__device__ __forceinline__ void swiglu(const uint32_t (&gate)[4], const uint32_t (&up)[4],
                                       const Sigmoids<ActivationKind::swiglu>& s, uint32_t (&y)[4]) {
  const auto of = [&](int j) {
    return activation_value<ActivationKind::swiglu>(value(gate, j), value(up, j), s.of[j]);
  };
#pragma unroll
  for (int j = 0; j < 4; ++j) y[j] = pack_bf16(of(2 * j), of(2 * j + 1));
}

/// Buffers: 64 columns of x, the same of y, of either half of the rows; then the next columns.
struct GeluForward {
  static constexpr int kBlocks = 1, kSlots = 2 * kHalves * kColumns / 64;
  static constexpr bool kReads = false;

  static __device__ void store(const ProductMaps& maps, const __nv_bfloat16* buffer, int slot, Place tile) {
    store_box(slot % 2 == 0 ? &maps.x : &maps.y, buffer, tile.column * kColumns + slot / 4 * 64, 0,
              tile.row * kRows + slot / 2 % 2 * 64);
  }
  static __device__ __forceinline__ void run(ProductShared&, const ProductParams& p, const Accumulators& sums,
                                             Buffers& buffers, Place tile, int) {
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      const Bias<64> bias(p, 0, tile.column * kColumns + c * 64);
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const uint32_t x_to = buffers.open(), y_to = buffers.open(1);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t packed[4];
          bias.add(sums[h] + c * 32 + i * 8, i, packed);
          store8(matrices_at<64>(x_to, i * 16), packed);
          const Sigmoids<ActivationKind::gelu> s(packed);
          const auto y = [&](int j) {
            return activation_value<ActivationKind::gelu>(value(packed, j), 0.0f, s.of[j]);
          };
#pragma unroll
          for (int j = 0; j < 4; ++j) packed[j] = pack_bf16(y(2 * j), y(2 * j + 1));
          store8(matrices_at<64>(y_to, i * 16), packed);
        }
        buffers.pass_on(2);
      }
    }
  }
};

/// The first half of a tile's columns is the gate's, the second the up projection's. Buffers: 32 columns of both, 32 of y, of either
/// half of the rows; then the next columns.
struct SwigluForward {
  static constexpr int kBlocks = 2, kOfBlock = kColumns / kBlocks, kSlots = 2 * kHalves * kOfBlock / 32;
  static constexpr bool kReads = false;

  static __device__ void store(const ProductMaps& maps, const __nv_bfloat16* buffer, int slot, Place tile) {
    const int column = tile.column * kOfBlock + slot / 4 * 32, row = tile.row * kRows + slot / 2 % 2 * 64;
    if (slot % 2 == 1) return store_box(&maps.y, buffer, column, 0, row);
    store_box(&maps.x, buffer, column, 0, row);
    store_box(&maps.x, buffer + 64 * 32, column, 1, row);
  }
  static __device__ __forceinline__ void run(ProductShared&, const ProductParams&, const Accumulators& sums,
                                             Buffers& buffers, Place, int) {
#pragma unroll
    for (int c = 0; c < kOfBlock / 32; ++c) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const uint32_t x_to = buffers.open(), y_to = buffers.open(1);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t gate[4], up[4];
          const float *const gate_sums = sums[h] + c * 16 + i * 8, *const up_sums = gate_sums + kOfBlock / 2;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            gate[j] = pack_bf16(gate_sums[2 * j], gate_sums[2 * j + 1]);
            up[j] = pack_bf16(up_sums[2 * j], up_sums[2 * j + 1]);
          }
          store8(matrices_at<32>(x_to, i * 16), gate);
          store8(matrices_at<32>(x_to + 64 * 64, i * 16), up);
          swiglu(gate, up, Sigmoids<ActivationKind::swiglu>(gate), gate);
          store8(matrices_at<32>(y_to, i * 16), gate);
        }
        buffers.pass_on(2);
      }
    }
  }
};

/// Buffers: 64 columns of x, overwritten with dx, of either half of the rows; then the next columns.
struct GeluBackward {
  static constexpr int kBlocks = 1, kSlots = kHalves * kColumns / 64;
  static constexpr bool kReads = true;

  static __device__ void load(const ProductMaps& maps, __nv_bfloat16* buffer, uint64_t* barrier, int slot,
                              Place tile) {
    arrive_expect_bytes(barrier, kBufferBytes);
    load_box(buffer, &maps.x, barrier, tile.column * kColumns + slot / 2 * 64, 0,
             tile.row * kRows + slot % 2 * 64);
  }
  static __device__ void store(const ProductMaps& maps, const __nv_bfloat16* buffer, int slot, Place tile) {
    store_box(&maps.dx, buffer, tile.column * kColumns + slot / 2 * 64, 0, tile.row * kRows + slot % 2 * 64);
  }

  static __device__ __forceinline__ void run(ProductShared& s, const ProductParams& p,
                                             const Accumulators& sums, Buffers& buffers, Place tile,
                                             int warpgroup) {
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      float2 column_sums{0.0f, 0.0f};
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const uint32_t buffer = buffers.open();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const dy = sums[h] + c * 32 + i * 8;
          const uint32_t address = matrices_at<64>(buffer, i * 16);
          uint32_t packed[4];
          load_matrices(address, packed);
          const Sigmoids<ActivationKind::gelu> sigmoids(packed);
          const auto dx = [&](int j) { return gelu_gradient(value(packed, j), sigmoids.of[j], dy[j]); };
#pragma unroll
          for (int j = 0; j < 4; ++j) packed[j] = pack_bf16(dx(2 * j), dx(2 * j + 1));
          store8(address, packed);
        }
        if (p.partial != nullptr) add_rows(buffer, column_sums);
        buffers.pass_on(1);
      }
      if (p.partial != nullptr) add_warps(s, p, column_sums, tile, c, warpgroup);
    }
  }

 private:
  /// Adds the warp's 16 rows up, of the two columns that are this lane's.
  static __device__ __forceinline__ void add_rows(uint32_t buffer, float2& sum) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize,
              warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarpSize;
    const uint32_t rows = buffer + warp * 16 * kTileRowBytes + lane % 4 * 4;
    __syncwarp();
#pragma unroll
    for (int row = 0; row < 16; ++row) {
      uint32_t pair;
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(pair)
                   : "r"(rows + row * kTileRowBytes + ((lane / 4) ^ (row % 8)) * 16)
                   : "memory");
      sum.x += low_bf16(pair);
      sum.y += high_bf16(pair);
    }
  }
  /// And the warps' sums: those of a tile's rows, of 64 columns.
  static __device__ __forceinline__ void add_warps(ProductShared& s, const ProductParams& p, float2 sum,
                                                   Place tile, int c, int warpgroup) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % kWarpSize;
    float(&of)[kWarps][64] = s.sums[warpgroup];
    const int column = tile.column * kColumns + c * 64 + thread;
    *reinterpret_cast<float2*>(of[thread / kWarpSize] + lane * 2) = sum;
    sync_warps<kWarpgroup>(kSums + warpgroup);
    if (thread < 64 && column < p.columns && tile.row * kRows < p.rows)
      p.partial[static_cast<int64_t>(tile.row) * p.columns + column] =
          (of[0][thread] + of[1][thread]) + (of[2][thread] + of[3][thread]);
    sync_warps<kWarpgroup>(kSums + warpgroup);
  }
};

/// Buffers: 64 columns of the gate and of the up projection, overwritten with their gradients, and with kAgain 64 of the activation's
/// result, of either half of the rows; then the next columns.
template <bool kAgain>
struct SwigluBackward {
  static constexpr int kTensors = kAgain ? 3 : 2;
  static constexpr int kBlocks = 1, kSlots = kTensors * kHalves * kColumns / 64;
  static constexpr bool kReads = true;

  static __device__ void load(const ProductMaps& maps, __nv_bfloat16* buffer, uint64_t* barrier, int slot,
                              Place tile) {
    const int tensor = slot % kTensors, part = slot / kTensors;
    if (tensor == 2) return arrive(barrier);
    arrive_expect_bytes(barrier, kBufferBytes);
    load_box(buffer, &maps.x, barrier, tile.column * kColumns + part / kHalves * 64, tensor,
             tile.row * kRows + part % kHalves * 64);
  }
  static __device__ void store(const ProductMaps& maps, const __nv_bfloat16* buffer, int slot, Place tile) {
    const int tensor = slot % kTensors, part = slot / kTensors;
    store_box(tensor == 2 ? &maps.y : &maps.dx, buffer, tile.column * kColumns + part / kHalves * 64,
              tensor % 2, tile.row * kRows + part % kHalves * 64);
  }
  static __device__ __forceinline__ void run(ProductShared&, const ProductParams&, const Accumulators& sums,
                                             Buffers& buffers, Place, int) {
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const uint32_t gate_at = buffers.open(), up_at = buffers.open(1), y_at = kAgain ? buffers.open(2) : 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const dy = sums[h] + c * 32 + i * 8;
          const uint32_t gate_address = matrices_at<64>(gate_at, i * 16),
                         up_address = matrices_at<64>(up_at, i * 16);
          uint32_t gate[4], up[4];
          load_matrices(gate_address, gate);
          load_matrices(up_address, up);
          const Sigmoids<ActivationKind::swiglu> s(gate);
          if constexpr (kAgain) {
            uint32_t y[4];
            swiglu(gate, up, s, y);
            store8(matrices_at<64>(y_at, i * 16), y);
          }
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            float d_gate[2], d_up[2];
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
              const int at = 2 * j + odd;
              d_gate[odd] = swiglu_gate_gradient(value(gate, at), value(up, at), s.of[at], dy[at]);
              d_up[odd] = swiglu_up_gradient(value(gate, at), s.of[at], dy[at]);
            }
            gate[j] = pack_bf16(d_gate[0], d_gate[1]);
            up[j] = pack_bf16(d_up[0], d_up[1]);
          }
          store8(gate_address, gate);
          store8(up_address, up);
        }
        buffers.pass_on(kTensors);
      }
  }
};

}  // namespace te::kernels::fused
