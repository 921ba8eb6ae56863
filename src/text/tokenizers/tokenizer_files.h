// Reads the files that describe tokenizers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "text/tokenizers/pipeline_tokenizer.h"
#include "text/tokenizers/tokenizer_settings.h"

namespace te::text {

/// Hugging Face's tokenizer.json, given as its text. Its truncation, padding (these two with a warning) and
/// post-processor are left out: no token is added or dropped. `add_prefix_space`: of tokenizer_config.json, which is
/// used instead. UserError "tokenizer NAME: ..." for what is malformed or not supported.
PipelineSpec read_tokenizer_json(const std::string& text, const std::string& name,
                                 std::optional<bool> add_prefix_space = {});

/// GPT-2's vocab.json (encoder.json) and merges.txt (vocab.bpe), given as their texts, for the class of tokenizer that
/// the settings name: GPT-2's, or Qwen2's, which normalizes and splits words in another way. `<|endoftext|>` is an
/// added token where the vocabulary has it. UserError for another class.
PipelineSpec read_gpt2_files(const std::string& vocab, const std::string& merges,
                             const TokenizerSettings& settings, const std::string& name);

/// A special token by its name: one that the tokenizer does not make of other text.
using FindToken = std::function<std::optional<int32_t>(const char*)>;

/// The end-of-document token: the eos_token that the files next to the tokenizer name, then that of its class in
/// transformers, then the eos_token_id of generation_config.json, then `model_end`, then the first special token of
/// <|endoftext|>, </s>, <|end_of_text|>, <|im_end|>, <eos> (without a tokenizer_config.json, an ordinary token of such
/// a name). UserError when there is none.
int32_t choose_end_of_document(const Tokenizer& tokenizer, const TokenizerSettings& settings,
                               std::optional<int32_t> model_end, const FindToken& find_special);

/// The begin-of-document token: the bos_token that the files name, and none where they say null; then that of the class
/// in transformers, then `model_begin`. Only where there is no tokenizer_config.json, the first special token of <s>,
/// <|begin_of_text|> and <bos>.
std::optional<int32_t> choose_begin_of_document(const Tokenizer& tokenizer, const TokenizerSettings& settings,
                                                std::optional<int32_t> model_begin,
                                                const FindToken& find_special);

}  // namespace te::text
