// Offsets of scratch buffers. A buffer has a lifetime: the steps of a timeline (model/layer_steps.h) in which it is
// used. Buffers without a common step can share memory.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

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

/// The identity of a scratch buffer: all slots that are planned with the same tag are one buffer. A tag consists of
/// enumerators of any enumerations, which each component declares for its own scratch, from the part of a layer to the
/// use in it: ScratchTag(Part::fc1) / OperandRole::input / Layout::rowwise. It has no layer index, because layers share
/// scratch.
class ScratchTag {
 public:
  constexpr ScratchTag() = default;
  template <class Enum>
  requires std::is_enum_v<Enum>
  constexpr ScratchTag(Enum use) : parts_{Part::of(use)}, size_(1) {}

  template <class Enum>
  requires std::is_enum_v<Enum>
  friend constexpr ScratchTag operator/(ScratchTag tag, Enum use) {
    tag.parts_.at(static_cast<size_t>(tag.size_++)) = Part::of(use);
    return tag;
  }
  constexpr bool empty() const { return size_ == 0; }
  constexpr bool operator==(const ScratchTag&) const = default;

 private:
  template <class Enum>
  static constexpr char kType = 0;  ///< its address identifies the enumeration
  struct Part {
    const void* type = nullptr;
    int64_t value = 0;
    template <class Enum>
    static constexpr Part of(Enum use) {
      return {&kType<Enum>, static_cast<int64_t>(use)};
    }
    constexpr bool operator==(const Part&) const = default;
  };
  std::array<Part, 5> parts_{};
  int size_ = 0;
};

/// How a buffer is scratch. It is not if the lifetime is empty.
struct Scratch {
  ScratchTag tag;
  Lifetime lifetime;
};

struct ScratchBuffer {
  std::string name;  ///< for messages and tables
  Lifetime lifetime;
  int64_t bytes = 0;
  int64_t offset = 0;
  ScratchTag tag{};
  int64_t end() const { return offset + bytes; }
};

/// Assigns each buffer an offset, a multiple of `alignment`: largest buffer first, each at the lowest offset that is
/// free during its lifetime. Deterministic for the same buffers in the same order. Returns the total size in bytes.
int64_t pack(std::span<ScratchBuffer> buffers, int64_t alignment);
/// Throws InternalError, which names both buffers, if two buffers with a common step overlap in memory.
void check_packing(std::span<const ScratchBuffer> buffers);

}  // namespace te
