// A shuffle that needs little memory: a pseudo-random permutation of {0, ..., size - 1}, computed per index.
//
// A Feistel network over pairs (left, right) with left < a, right < b, a * b >= size: each round adds a keyed
// hash of one half to the other, modulo that half's range, which is a bijection of the a * b pairs. Indices
// that land beyond `size` walk on until they come back inside ("cycle walking"; Black and Rogaway, "Ciphers
// with arbitrary finite domains", CT-RSA 2002). With a = ceil(sqrt(size)) fewer than a pairs are outside, so
// walks are rare. A half has so few values that each round's hashes are a table.
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
  /// inverse() of as many items from `first` on, in a third of the time.
  void inverse(int64_t first, std::span<int64_t> indices) const;

 private:
  static constexpr int kRounds = 8;
  int64_t size_;
  uint32_t a_, b_;
  std::vector<uint32_t>
      shifts_[kRounds];  ///< of left by each right in even rounds, of right by each left in odd ones
};

}  // namespace te::data
