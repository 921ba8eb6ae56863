// A shuffle that needs no memory: a pseudo-random permutation of {0, ..., size - 1}, computed per index.
//
// A Feistel network over pairs (left, right) with left < a, right < b, a * b >= size: each round adds a keyed
// hash of one half to the other, modulo that half's range, which is a bijection of the a * b pairs. Indices
// that land beyond `size` walk on until they come back inside ("cycle walking"; Black and Rogaway, "Ciphers
// with arbitrary finite domains", CT-RSA 2002). With a = ceil(sqrt(size)) fewer than a pairs are outside, so
// walks are rare.
#pragma once

#include <cstdint>

namespace te::data {

class Permutation {
 public:
  Permutation(int64_t size, uint64_t seed, uint64_t stream);
  int64_t size() const { return size_; }
  int64_t operator()(int64_t index) const;  ///< 0 <= index < size()

 private:
  static constexpr int kRounds = 8;
  int64_t size_;
  uint64_t a_, b_;
  uint64_t keys_[kRounds];
};

}  // namespace te::data
