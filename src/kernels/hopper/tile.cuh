// Tiles in shared memory: rows of 128 bytes (64 BF16, 128 FP8 or 32 FP32 values) in TMA's 128-byte swizzle, which
// spreads the rows of a column over the banks: the 16-byte unit u of row r is stored at unit u ^ (r % 8) of that row. A
// tile starts at a multiple of 1024 bytes. Wider matrices consist of several tiles. (Rows of 64 bytes use the 64-byte
// swizzle: unit u ^ (r / 2 % 4); rows of 32 bytes use u ^ (r / 4 % 2).)
#pragma once

#include "kernels/hopper/roles.cuh"

namespace te::kernels::hopper {

constexpr int kTileColumns = 64;
constexpr uint32_t kTileRowBytes = kTileColumns * sizeof(__nv_bfloat16);
constexpr uint32_t kWarpgroupTileBytes = 64 * kTileRowBytes;  ///< 64 rows of a wgmma

/// Shared memory address of an array's element, in 32 bits.
template <class T, int kCount>
__device__ __forceinline__ uint32_t stage_address(const T (&array)[kCount], int stage) {
  return shared_address(array) + static_cast<uint32_t>(stage) * static_cast<uint32_t>(sizeof(T));
}

/// Byte offsets within a row of kColumns values are XORed with this to apply the swizzle.
template <int kColumns = kTileColumns>
__device__ __forceinline__ uint32_t swizzle(uint32_t row) {
  static_assert(kColumns == 64 || kColumns == 32 || kColumns == 16);
  return (kColumns == 64 ? row % 8 : kColumns == 32 ? row / 2 % 4 : row / 4 % 2) * 16;
}

/// Address that a thread passes to stmatrix and ldmatrix for its warp's 16 of a warpgroup's 64 rows, and for 16
/// columns.
template <int kColumns = kTileColumns>
__device__ __forceinline__ uint32_t matrices_at(const Thread& thread, uint32_t tile, int column) {
  const uint32_t row = thread.warp * 16 + thread.lane % 16;
  return (tile + row * (kColumns * 2) + (thread.lane / 16 * 16 ^ swizzle<kColumns>(row))) ^ (column * 2);
}

/// Stores accumulators (wgmma.cuh) to a warpgroup's 64 rows in BF16; word(i) returns the values 2 i and 2 i + 1.
template <int kColumns, class Word>
__device__ __forceinline__ void store_accumulators(const Thread& thread, uint32_t tile,
                                                   uint32_t next_tile_bytes, const Word& word) {
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k)
    stmatrix(matrices_at(thread, tile, k % 4 * 16) + k / 4 * next_tile_bytes,
             {word(k * 4), word(k * 4 + 1), word(k * 4 + 2), word(k * 4 + 3)});
}

/// wgmma descriptor of an operand. `next_tile_bytes` is the distance to the tile with the next 64 columns; it is used
/// only if rows are the summed dimension and the operand is wider than a tile.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t next_tile_bytes = 0) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{8 * kTileRowBytes / 16} << 32;
  return kSwizzle128 | kEightRows | (uint64_t{next_tile_bytes / 16} << 16) | ((address & 0x3ffff) >> 4);
}
/// Descriptor of an operand whose groups of eight rows are `group_bytes` apart instead of contiguous.
__device__ __forceinline__ uint64_t descriptor_of_groups(uint32_t address, uint32_t group_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | (uint64_t{group_bytes / 16} << 32) | ((address & 0x3ffff) >> 4);
}
/// Descriptor of an address `bytes` further on; cheaper than a new descriptor.
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

}  // namespace te::kernels::hopper
