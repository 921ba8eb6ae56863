// Interface of a tokenizer's model, which encodes words to tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/vocabulary.h"
#include "text/tokenizers/word_cache.h"

namespace te::text {

/// Per-thread state for encoding words; must be used with one model only.
struct ModelWorkspace {
  struct Symbol {                // byte pair encoding: a token of the word in a doubly linked list
    int32_t id, previous, next;  // token id; indices of the neighbors, -1 at the ends
    uint32_t rank;               // rank of the merge with the next symbol
    int32_t merged;              // token id after that merge
  };
  struct Node {  // Unigram: the best path that ends at a byte of the word
    double score;
    int32_t id;     // the path's last token; -1: no path ends here
    uint32_t from;  // where that token begins
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;
  std::vector<Node> nodes;
  WordCache cache;
};

class TokenModel {
 public:
  TokenModel(const std::vector<std::pair<std::string, int64_t>>& tokens, const std::string& where)
      : vocabulary_(tokens, where) {}
  virtual ~TokenModel() = default;
  TokenModel(const TokenModel&) = delete;
  TokenModel& operator=(const TokenModel&) = delete;

  /// Appends the tokens of `word`, which can contain any bytes but is not empty.
  virtual void encode(std::string_view word, ModelWorkspace& workspace,
                      std::vector<int32_t>& tokens) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};

}  // namespace te::text
