// Token shards of llm.c and modded-nanogpt: a header of 256 int32 (magic, version, number of tokens; the rest is
// unused), followed by the tokens, all little-endian.
//
//   magic 20240520, version 1    uint16 tokens, GPT-2
//   magic 20240801, version 7    uint32 tokens, Llama 3
//
// Format: llm.c, dev/data/data_common.py and llmc/dataloader.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "data/indexed_dataset.h"

namespace te::data {

class TokenShard {
 public:
  /// UserError for an unknown magic or version, and for a file size that does not match the header.
  explicit TokenShard(const std::string& path);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t token_bytes() const { return token_bytes_; }  ///< 2 or 4

  /// Calls on_tokens for consecutive blocks of all tokens, in order. UserError with the position in the file for a
  /// token that is not below vocab_size.
  void read(int64_t vocab_size, const std::function<void(std::span<const int32_t> tokens)>& on_tokens) const;

 private:
  MappedFile file_;
  int64_t num_tokens_ = 0;
  int64_t token_bytes_ = 0;
};

}  // namespace te::data
