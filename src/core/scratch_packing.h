// Scratch memory is planned with the steps in which it lives: numbers of a timeline, which model/layer_steps.h defines.
// Buffers that are never alive in the same step may lie in the same bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace te {

/// A set of steps, numbers from 0 to 63. The empty one is no scratch: memory of its own.
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

/// Gives each buffer an offset, a multiple of `alignment`: the largest first, each as low as those that live with it
/// leave room. The same buffers in the same order give the same offsets. Returns the bytes that hold them all.
int64_t pack(std::span<ScratchBuffer> buffers, int64_t alignment);
/// InternalError, which names both, when two buffers with a common step have a byte in common.
void check_packing(std::span<const ScratchBuffer> buffers);

}  // namespace te
