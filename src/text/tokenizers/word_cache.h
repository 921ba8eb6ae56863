// A per-thread cache of words and their tokens, of fixed size: a new word replaces the one in its slot.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace te::text {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 30, kMaxTokens = 8;
  struct Entry {                    // a cache line
    uint8_t bytes = 0, tokens = 0;  // bytes 0: free
    char word[kMaxBytes];
    int32_t ids[kMaxTokens];
  };

  WordCache() : entries_(kEntries) {}
  /// The slot of a word of 1 to kMaxBytes bytes; it can be free or contain another word.
  Entry& slot(std::string_view word);

  /// Appends the tokens of a non-empty word: the cached tokens, else those that encode(word) appends.
  template <class Encode>
  void encode(std::string_view word, std::vector<int32_t>& tokens, Encode encode) {
    if (word.size() > kMaxBytes) return encode(word);
    Entry& entry = slot(word);
    if (std::string_view(entry.word, entry.bytes) == word) {
      tokens.insert(tokens.end(), entry.ids, entry.ids + entry.tokens);
      return;
    }
    const size_t start = tokens.size();
    encode(word);
    const size_t count = tokens.size() - start;
    if (count > kMaxTokens) return;
    entry.bytes = static_cast<uint8_t>(word.size());
    entry.tokens = static_cast<uint8_t>(count);
    std::copy(word.begin(), word.end(), entry.word);
    std::copy(tokens.begin() + static_cast<std::ptrdiff_t>(start), tokens.end(), entry.ids);
  }

 private:
  static constexpr size_t kEntries = size_t{1} << 15;  // 2 MiB
  std::vector<Entry> entries_;
};

}  // namespace te::text
