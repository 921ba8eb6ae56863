// Token shards of llm.c and modded-nanogpt: a header of 256 int32 (magic, version, number of tokens, the rest unused),
// then the tokens, all little-endian.
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
  /// UserError for a file with another magic or version, and for one whose size is not what its header says.
  explicit TokenShard(const std::string& path);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t token_bytes() const { return token_bytes_; }  ///< 2 or 4

  /// Calls on_tokens for all tokens in order, in pieces. UserError for a token of `vocab_size` or above, which names
  /// its position in the file.
  void read(int64_t vocab_size, const std::function<void(std::span<const int32_t> tokens)>& on_tokens) const;

 private:
  MappedFile file_;
  int64_t num_tokens_ = 0;
  int64_t token_bytes_ = 0;
};

}  // namespace te::data
