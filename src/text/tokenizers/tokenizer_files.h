// Reads the files that describe tokenizers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "text/tokenizers/pipeline_tokenizer.h"
#include "text/tokenizers/tokenizer_settings.h"

namespace te::text {

/// Reads Hugging Face's tokenizer.json from its text. Ignores its truncation and padding (with a warning) and its
/// post-processor, so no token is added or dropped. `add_prefix_space`: the value of tokenizer_config.json, which takes
/// precedence. UserError "tokenizer NAME: ..." if the text is malformed or not supported.
PipelineSpec read_tokenizer_json(const std::string& text, const std::string& name,
                                 std::optional<bool> add_prefix_space = {});

/// Reads GPT-2's vocab.json (encoder.json) and merges.txt (vocab.bpe) from their texts, for the tokenizer class of the
/// settings: GPT-2's, or Qwen2's, which normalizes and splits words differently. `<|endoftext|>` becomes an added token
/// if it is in the vocabulary. UserError for another class.
PipelineSpec read_gpt2_files(const std::string& vocab, const std::string& merges,
                             const TokenizerSettings& settings, const std::string& name);

/// Finds a special token (one that ordinary text never produces) by its name.
using FindToken = std::function<std::optional<int32_t>(const char*)>;

/// The end-of-document token. In order of precedence: the eos_token that the files in the tokenizer's folder name, the
/// eos_token of its class in transformers, the eos_token_id of generation_config.json, `model_end`, the first special
/// token of <|endoftext|>, </s>, <|end_of_text|>, <|im_end|>, <eos>, and, without a tokenizer_config.json, an ordinary
/// token with one of these names. UserError if there is none.
int32_t choose_end_of_document(const Tokenizer& tokenizer, const TokenizerSettings& settings,
                               std::optional<int32_t> model_end, const FindToken& find_special);

/// The begin-of-document token. In order of precedence: the bos_token that the files name (there is none if it is
/// null), the bos_token of the class in transformers, `model_begin`, and, without a tokenizer_config.json, the first
/// special token of <s>, <|begin_of_text|> and <bos>.
std::optional<int32_t> choose_begin_of_document(const Tokenizer& tokenizer, const TokenizerSettings& settings,
                                                std::optional<int32_t> model_begin,
                                                const FindToken& find_special);

}  // namespace te::text
