// A memory-efficient shuffle: a pseudorandom permutation of {0, ..., size - 1} that is computed per index.
//
// A Feistel network over pairs (left, right) with left < a, right < b, a * b >= size: each round adds a keyed hash of
// one half to the other, modulo that half's range, which is a bijection of the a * b pairs. A result that is not below
// `size` is permuted again until it is ("cycle walking"; Black and Rogaway, "Ciphers with arbitrary finite domains",
// CT-RSA 2002). With a = ceil(sqrt(size)), fewer than a pairs are outside, so this is rare. A half has so few values
// that the hashes of each round fit into a table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace te::data {

class Permutation {
 public:
  Permutation(int64_t size, uint64_t seed, uint64_t stream);
  int64_t size() const { return size_; }
  int64_t operator()(int64_t index) const;  ///< 0 <= index < size()
  /// The index that operator() maps to `item`; 0 <= item < size().
  int64_t inverse(int64_t item) const;
  /// Fills `indices` with inverse() of the items from `first`; faster than single calls.
  void inverse(int64_t first, std::span<int64_t> indices) const;

 private:
  static constexpr int kRounds = 8;
  int64_t size_;
  uint32_t a_, b_;
  /// Added to left, indexed by right, in even rounds; added to right, indexed by left, in odd rounds.
  std::vector<uint32_t> shifts_[kRounds];
};

}  // namespace te::data
