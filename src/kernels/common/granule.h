// Flags of the flat buffers of parameters: one byte per granule. Parameters start at multiples of a granule,
// so a flag per granule is exact.
#pragma once

#include <cstdint>

namespace te::kernels {

/// Elements of a granule.
constexpr int64_t kAdamWGranule = 128;

/// Weight decay applies.
constexpr uint8_t kGranuleDecays = 1;
/// This rank counts the granule in the global gradient norm: of several ranks that hold the same parameter,
/// one does.
constexpr uint8_t kGranuleCounted = 2;
/// Its gradients are zeroed when a step begins: not all of them are written by a GEMM before they are read.
constexpr uint8_t kGranuleZeroed = 4;

/// Granules of a buffer of n elements.
constexpr int64_t granules_of(int64_t n) {
  return (n + kAdamWGranule - 1) / kAdamWGranule;
}

}  // namespace te::kernels
