// The tokens of a vocabulary as a trie over bytes: finds all tokens that are prefixes of a text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace te::text {

class TokenTrie {
 public:
  /// `tokens`: non-empty texts with ids; if several texts are equal, the last counts.
  explicit TokenTrie(std::vector<std::pair<std::string_view, int32_t>> tokens);

  /// Calls on_token(length, id) for every token that `text` begins with, shortest first.
  template <class OnToken>
  void for_each_prefix(std::string_view text, OnToken on_token) const {
    if (text.empty()) return;
    int32_t node = roots_[static_cast<uint8_t>(text[0])];
    for (size_t length = 1; node >= 0; ++length) {
      const Node& here = nodes_[static_cast<size_t>(node)];
      if (here.id >= 0) on_token(length, here.id);
      if (length == text.size()) return;
      node = child(here, static_cast<uint8_t>(text[length]));
    }
  }

 private:
  struct Node {
    int32_t id = -1;  // id of the token that ends here
    uint32_t first_child = 0;
    uint16_t children = 0;
    uint8_t byte = 0;
  };
  int32_t child(const Node& node, uint8_t byte) const {
    uint32_t low = node.first_child, high = low + node.children;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (nodes_[middle].byte < byte) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const bool found = low < node.first_child + node.children && nodes_[low].byte == byte;
    return found ? static_cast<int32_t>(low) : -1;
  }

  std::vector<Node> nodes_;  // the children of a node are consecutive and sorted by byte
  std::array<int32_t, 256> roots_{};
};

}  // namespace te::text
