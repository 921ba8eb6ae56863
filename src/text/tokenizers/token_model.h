// The model of a tokenizer: from words to tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/vocabulary.h"
#include "text/tokenizers/word_cache.h"

namespace te::text {

/// What a thread needs to encode words; serves one model only.
struct ModelWorkspace {
  struct Symbol {                // of byte pair encoding
    int32_t id, previous, next;  // positions in the word; -1 at its ends
    uint32_t rank;               // of the merge with the next symbol
    int32_t merged;              // what that makes
  };
  struct Node {  // of Unigram: the best path to a byte of the word
    double score;
    int32_t id;     // of the path's last token; -1: none ends here
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

  /// Appends the tokens of `word`, any bytes, not empty.
  virtual void encode(std::string_view word, ModelWorkspace& workspace,
                      std::vector<int32_t>& tokens) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};

}  // namespace te::text
