// SentencePiece models whose encoding is byte pair encoding and nothing else, such as Llama-2's: their pieces as a
// PipelineTokenizer, which gives the tokens of libsentencepiece many times faster.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "text/tokenizers/pipeline_tokenizer.h"

namespace te::text {

/// The parts of a model (`bytes`: SentencePiece's ModelProto, serialized) if all of these hold, else nothing: BPE; no
/// table of normalization; white space is escaped, kept and not a suffix; a token for every byte (byte_fallback); no
/// user-defined and no unused pieces; every piece of text is made of pieces of one character, and no two pieces are
/// alike. The tokenizer takes UTF-8 only. `legacy`: a text begins with a space after an added token, too, as
/// SentencePiece would encode it; otherwise only at the beginning of a document, and no second one before a space.
std::optional<PipelineSpec> read_sentencepiece_bpe(const std::string& bytes, bool legacy = true);

}  // namespace te::text
