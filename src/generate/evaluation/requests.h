// Converts the texts of requests to the tokens of a model, as lm-evaluation-harness does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "generate/evaluation/task.h"
#include "text/tokenizer.h"

namespace te::generate {

/// Tokens of which the last `scored` are scored: each by the model's log probability of it given all tokens before it.
/// At least one token precedes them. A rolling request is divided into several.
struct TokenRequest {
  std::vector<int32_t> tokens;
  int64_t scored = 0;
  bool truncated = false;  ///< truncated at the start to fit the model's context

  int64_t inputs() const { return static_cast<int64_t>(tokens.size()) - 1; }  ///< number of input tokens
};

class RequestEncoder {
 public:
  /// For a model with at most max_length input tokens, each below vocab_size. `begin`: the begin-of-document token is
  /// prepended to texts that do not start with it (adds_begin_of_document()).
  RequestEncoder(const text::Tokenizer& tokenizer, bool begin, int64_t vocab_size, int64_t max_length);

  /// The token requests of each request of the documents, in order. UserError that names task and document if a
  /// continuation has no token or more than max_length, or if a token is outside the vocabulary.
  std::vector<std::vector<TokenRequest>> encode(const Task& task, std::span<const Document> documents) const;

 private:
  std::vector<int32_t> with_begin(std::string_view text, std::vector<int32_t> tokens) const;
  std::vector<TokenRequest> windows(const std::vector<int32_t>& tokens) const;
  void check_tokens(std::span<const TokenRequest> requests, const std::string& place) const;
  TokenRequest request(std::vector<int32_t> context, const std::vector<int32_t>& continuation,
                       const std::string& place) const;

  const text::Tokenizer& tokenizer_;
  bool begin_;
  int64_t vocab_size_, max_length_;
  int32_t prefix_;  ///< context of requests without one
  std::string prefix_text_;
};

}  // namespace te::generate
