// The tokens that end generated text. They may differ from the end-of-document token
// (text::Tokenizer::end_of_document()), which te-data writes after each document: an instruction model may end its
// replies with one of several other tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace te::generate {

class ModelSource;

/// A set of token ids.
class EndTokens {
 public:
  EndTokens() = default;
  explicit EndTokens(std::vector<int32_t> ids) : ids_(std::move(ids)) {
    std::ranges::sort(ids_);
    ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
  }
  bool contains(int32_t token) const { return std::ranges::binary_search(ids_, token); }
  bool empty() const { return ids_.empty(); }
  size_t size() const { return ids_.size(); }
  const std::vector<int32_t>& ids() const { return ids_; }  ///< ascending

 private:
  std::vector<int32_t> ids_;
};

/// The eos_token_id (a number, a list, or null for no end token) in a Hugging Face folder's generation_config.json, or
/// without that file in its config.json, as in transformers' generate(). nullopt without a file or without the key.
/// UserError for a value of another type.
std::optional<EndTokens> read_end_tokens(const std::filesystem::path& folder);

/// The keys of the same file that te-generate does not use although transformers' generate() would choose other tokens
/// with their values.
std::vector<std::string> unused_generation_keys(const std::filesystem::path& folder);

/// The end tokens in the files next to a tokenizer, else its end-of-document token.
EndTokens end_tokens(const text::Tokenizer& tokenizer);

/// The end tokens in a model's files, else those of its tokenizer.
EndTokens end_tokens(const ModelSource& source, const text::Tokenizer& tokenizer);

}  // namespace te::generate
