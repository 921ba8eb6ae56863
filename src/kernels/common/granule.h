// Per-granule flags of flat parameter buffers, one byte each. Every parameter starts at a multiple of a granule, so no
// granule belongs to two parameters.
#pragma once

#include <cstdint>

namespace te::kernels {

/// Elements of a granule.
constexpr int64_t kAdamWGranule = 128;

/// Weight decay applies.
constexpr uint8_t kGranuleDecays = 1;
/// This rank counts the granule in the global gradient norm. Exactly one of the ranks that hold the same parameter
/// counts it.
constexpr uint8_t kGranuleCounted = 2;
/// The granule's gradients are zeroed at the start of a step, because some of them are read before a GEMM writes them.
constexpr uint8_t kGranuleZeroed = 4;
/// The upper bits have the granule's index in AdamW::groups.
constexpr int kGranuleGroupShift = 3;
constexpr int kMaxAdamWGroups = 1 << (8 - kGranuleGroupShift);

/// Number of granules in a buffer of n elements.
constexpr int64_t granules_of(int64_t n) {
  return (n + kAdamWGranule - 1) / kAdamWGranule;
}

}  // namespace te::kernels
