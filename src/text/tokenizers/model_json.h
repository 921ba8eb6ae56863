// Reads the models of tokenizer.json, and the parts that GPT-2's two files share with them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/pipeline_tokenizer.h"

namespace te::text {

/// The value of "model": BPE, Unigram, WordPiece or WordLevel. UserError for what is malformed or not supported.
ModelSpec read_model(const JsonReader& json);

/// {"token": id, ...}
using TokenIds = std::vector<std::pair<std::string, int64_t>>;
void read_token_ids(const JsonReader& json, TokenIds& tokens);

/// "left right": one space, and nothing but these two.
std::pair<std::string, std::string> split_merge(std::string_view text, const std::string& where);

}  // namespace te::text
