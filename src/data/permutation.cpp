// Feistel rounds with ranges a and b; see permutation.h.
#include "data/permutation.h"

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

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t stream) : size_(size) {
  TE_CHECK(size > 0, "permutation: size {} must be positive", size);
  const uint64_t n = static_cast<uint64_t>(size);
  a_ = static_cast<uint64_t>(std::sqrt(static_cast<double>(n)));
  while (a_ * a_ < n) ++a_;
  b_ = (n + a_ - 1) / a_;
  for (int round = 0; round < kRounds; ++round) {
    const Philox4 random = philox(seed, stream, static_cast<uint64_t>(round));
    keys_[round] = (uint64_t{random.word[0]} << 32) | random.word[1];
  }
}

int64_t Permutation::operator()(int64_t index) const {
  uint64_t x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x % a_, right = x / a_;
    for (int round = 0; round < kRounds; round += 2) {
      left = (left + mix(right + keys_[round]) % a_) % a_;
      right = (right + mix(left + keys_[round + 1]) % b_) % b_;
    }
    x = right * a_ + left;
  } while (x >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(x);
}

}  // namespace te::data
