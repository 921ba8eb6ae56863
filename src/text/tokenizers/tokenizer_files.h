// Reads the files that describe tokenizers.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "text/tokenizers/pipeline_tokenizer.h"

namespace te::text {

/// Hugging Face's tokenizer.json, given as its text. Its truncation, padding (these two with a warning) and
/// post-processor are left out: no token is added or dropped. UserError "tokenizer NAME: ..." for what is malformed or
/// not supported.
PipelineSpec read_tokenizer_json(const std::string& text, const std::string& name);

/// GPT-2's vocab.json (encoder.json) and merges.txt (vocab.bpe), given as their texts. `<|endoftext|>` is an added
/// token where the vocabulary has it.
PipelineSpec read_gpt2_files(const std::string& vocab, const std::string& merges, const std::string& name);

/// What the files beside a tokenizer (tokenizer_config.json, generation_config.json) say of the tokens at the ends
/// of documents.
struct DocumentTokenNames {
  std::optional<std::string> end, begin;  ///< names
  std::optional<int64_t> end_id;          ///< in generation_config.json, the first of a list
};
DocumentTokenNames read_document_token_names(const std::string& folder, const std::string& name);

/// The end-of-document token: what the files beside say, then `model_end`, then the first of <|endoftext|>, </s>,
/// <|end_of_text|>, <|im_end|>, <eos> that the vocabulary has. UserError when there is none.
int32_t choose_end_of_document(const Tokenizer& tokenizer, const DocumentTokenNames& names,
                               std::optional<int32_t> model_end);

/// The begin-of-document token, chosen alike among <s>, <|begin_of_text|> and <bos>; none when there is none.
std::optional<int32_t> choose_begin_of_document(const Tokenizer& tokenizer, const DocumentTokenNames& names,
                                                std::optional<int32_t> model_begin);

}  // namespace te::text
