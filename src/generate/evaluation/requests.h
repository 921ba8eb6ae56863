// From the texts of requests to the tokens that a model is given, as lm-evaluation-harness does it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "generate/evaluation/task.h"
#include "text/tokenizer.h"

namespace te::generate {

/// Tokens of which the last `scored` are judged, each by what the model says behind those before it; at least one comes
/// before them. A rolling request is cut into several.
struct TokenRequest {
  std::vector<int32_t> tokens;
  int64_t scored = 0;
  bool cut = false;  ///< its beginning was left out, to fit the model's context

  int64_t inputs() const { return static_cast<int64_t>(tokens.size()) - 1; }  ///< tokens the model is given
};

class RequestEncoder {
 public:
  /// For a model that can be given max_length tokens, each below vocab_size. `begin`: texts are encoded with the
  /// begin-of-document token in front, but those that have it written out (adds_begin_of_document()).
  RequestEncoder(const text::Tokenizer& tokenizer, bool begin, int64_t vocab_size, int64_t max_length);

  /// The token requests of each request of the documents, in their order. UserError naming task and document where a
  /// continuation has no token of its own, or more than the model can be given, or where a token is not the model's.
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
  int32_t prefix_;  ///< stands for an empty context
  std::string prefix_text_;
};

}  // namespace te::generate
