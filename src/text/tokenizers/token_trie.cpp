#include "text/tokenizers/token_trie.h"

#include <algorithm>

#include "core/error.h"

namespace te::text {

TokenTrie::TokenTrie(std::vector<std::pair<std::string_view, int32_t>> tokens) {
  std::ranges::stable_sort(tokens, [](const auto& a, const auto& b) { return a.first < b.first; });
  // Tokens [begin, end) have the same first `depth` bytes, which lead to `node` (-1: the root).
  struct Range {
    size_t begin, end, depth;
    int32_t node;
  };
  roots_.fill(-1);
  std::vector<Range> level = {{0, tokens.size(), 0, -1}}, next;
  while (!level.empty()) {
    next.clear();
    for (const Range& range : level) {
      size_t begin = range.begin;
      while (begin < range.end && tokens[begin].first.size() == range.depth) {
        TE_CHECK(range.node >= 0, "empty token in a trie");
        nodes_[static_cast<size_t>(range.node)].id = tokens[begin++].second;
      }
      const auto first = static_cast<uint32_t>(nodes_.size());
      while (begin < range.end) {
        const char byte = tokens[begin].first[range.depth];
        size_t end = begin + 1;
        while (end < range.end && tokens[end].first[range.depth] == byte) ++end;
        const auto node = static_cast<int32_t>(nodes_.size());
        nodes_.push_back({.byte = static_cast<uint8_t>(byte)});
        if (range.node < 0) roots_[static_cast<uint8_t>(byte)] = node;
        next.push_back({begin, end, range.depth + 1, node});
        begin = end;
      }
      if (range.node < 0) continue;
      nodes_[static_cast<size_t>(range.node)].first_child = first;
      nodes_[static_cast<size_t>(range.node)].children = static_cast<uint16_t>(nodes_.size() - first);
    }
    level.swap(next);
  }
}

}  // namespace te::text
