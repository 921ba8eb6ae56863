// Offsets of scratch buffers. A buffer has a lifetime: the steps of a timeline (model/layer_steps.h) in which it is
// used. Buffers without a common step can share memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace te {

/// A set of steps, numbered from 0 to 63. A buffer with an empty lifetime is not scratch: it does not share memory.
class Lifetime {
 public:
  static constexpr int kSteps = 64;
  constexpr Lifetime() = default;
  /// Steps first, ..., last.
  constexpr Lifetime(int first, int last)
      : steps_((~uint64_t{0} << first) & (~uint64_t{0} >> (kSteps - 1 - last))) {}
  friend constexpr Lifetime operator|(Lifetime a, Lifetime b) {
    a.steps_ |= b.steps_;
    return a;
  }
  constexpr bool empty() const { return steps_ == 0; }
  constexpr bool overlaps(Lifetime other) const { return (steps_ & other.steps_) != 0; }
  constexpr bool contains(int step) const { return step >= 0 && (steps_ >> step & 1) != 0; }
  constexpr bool operator==(const Lifetime&) const = default;

 private:
  uint64_t steps_ = 0;
};

struct ScratchBuffer {
  std::string name;
  Lifetime lifetime;
  int64_t bytes = 0;
  int64_t offset = 0;
  int64_t end() const { return offset + bytes; }
};

/// Assigns each buffer an offset, a multiple of `alignment`: largest buffer first, each at the lowest offset that is
/// free during its lifetime. Deterministic for the same buffers in the same order. Returns the total size in bytes.
int64_t pack(std::span<ScratchBuffer> buffers, int64_t alignment);
/// Throws InternalError, which names both buffers, if two buffers with a common step overlap in memory.
void check_packing(std::span<const ScratchBuffer> buffers);

}  // namespace te
