// Reads the models of tokenizer.json, and the parts that GPT-2's two files have in common with them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/pipeline_tokenizer.h"

namespace te::text {

/// `json`: the value of "model": BPE, Unigram, WordPiece or WordLevel. UserError if it is malformed or not supported.
ModelSpec read_model(const JsonReader& json);

/// {"token": id, ...}
using TokenIds = std::vector<std::pair<std::string, int64_t>>;
void read_token_ids(const JsonReader& json, TokenIds& tokens);

/// Splits "left right", two tokens with exactly one space between them. UserError "WHERE: ..." for other texts.
std::pair<std::string, std::string> split_merge(std::string_view text, const std::string& where);

}  // namespace te::text
