// Feistel rounds with ranges a and b; see permutation.h.
#include "data/permutation.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/random.h"

namespace te::data {
namespace {

/// Mixes 64 bits (Stafford's variant 13 of the MurmurHash3 finalizer, as in SplitMix64).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Sum and difference modulo `range`, which can exceed 2^31. Branch-free, because half of the branches would be
// mispredicted.
uint32_t add(uint32_t x, uint32_t y, uint32_t range) {
  const uint32_t rest = range - y;
  return x - rest + (range & -uint32_t{x < rest});
}

uint32_t subtract(uint32_t x, uint32_t y, uint32_t range) {
  return x - y + (range & -uint32_t{x < y});
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t stream) : size_(size) {
  TE_CHECK(size > 0, "permutation: size {} must be positive", size);
  const uint64_t n = static_cast<uint64_t>(size);
  uint64_t a = static_cast<uint64_t>(std::sqrt(static_cast<double>(n)));
  while (a * a < n) ++a;
  a_ = static_cast<uint32_t>(a);
  b_ = static_cast<uint32_t>((n + a - 1) / a);
  for (int round = 0; round < kRounds; ++round) {
    const Philox4 random = philox(seed, stream, static_cast<uint64_t>(round));
    const uint64_t key = (uint64_t{random.word[0]} << 32) | random.word[1];
    const bool even = round % 2 == 0;
    std::vector<uint32_t>& shifts = shifts_[round];
    shifts.resize(even ? b_ : a_);
    for (size_t half = 0; half < shifts.size(); ++half)
      shifts[half] = static_cast<uint32_t>(mix(half + key) % (even ? a_ : b_));
  }
}

int64_t Permutation::operator()(int64_t index) const {
  int64_t x = index;
  do {
    auto right = static_cast<uint32_t>(static_cast<uint64_t>(x) / a_),
         left = static_cast<uint32_t>(x) - right * a_;
    for (int round = 0; round < kRounds; round += 2) {
      left = add(left, shifts_[round][right], a_);
      right = add(right, shifts_[round + 1][left], b_);
    }
    x = int64_t{right} * a_ + left;
  } while (x >= size_);
  return x;
}

int64_t Permutation::inverse(int64_t item) const {
  int64_t x = item;
  do {
    auto right = static_cast<uint32_t>(static_cast<uint64_t>(x) / a_),
         left = static_cast<uint32_t>(x) - right * a_;
    for (int round = kRounds - 2; round >= 0; round -= 2) {
      right = subtract(right, shifts_[round + 1][left], b_);
      left = subtract(left, shifts_[round][right], a_);
    }
    x = int64_t{right} * a_ + left;
  } while (x >= size_);
  return x;
}

// Processes many items round by round, so that the table lookups overlap.
void Permutation::inverse(int64_t first, std::span<int64_t> indices) const {
  constexpr size_t kPart = 256;
  uint32_t left[kPart], right[kPart];
  for (size_t begin = 0; begin < indices.size(); begin += kPart) {
    const size_t count = std::min(kPart, indices.size() - begin);
    const int64_t item = first + static_cast<int64_t>(begin);
    auto l = static_cast<uint32_t>(item % a_), r = static_cast<uint32_t>(item / a_);
    for (size_t i = 0; i < count; ++i) {
      left[i] = l;
      right[i] = r;
      const bool wraps = ++l == a_;
      l = wraps ? 0 : l;
      r += wraps;
    }
    for (int round = kRounds - 2; round >= 0; round -= 2) {
      const uint32_t *of_left = shifts_[round + 1].data(), *of_right = shifts_[round].data();
      for (size_t i = 0; i < count; ++i) right[i] = subtract(right[i], of_left[left[i]], b_);
      for (size_t i = 0; i < count; ++i) left[i] = subtract(left[i], of_right[right[i]], a_);
    }
    for (size_t i = 0; i < count; ++i) {
      const int64_t x = int64_t{right[i]} * a_ + left[i];
      indices[begin + i] = x < size_ ? x : inverse(x);
    }
  }
}

}  // namespace te::data
