// Converts SentencePiece models that use byte pair encoding only, such as Llama-2's, to a PipelineTokenizer. It gives
// the same tokens as libsentencepiece and is much faster.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "text/tokenizers/pipeline_tokenizer.h"

namespace te::text {

/// The parts of a model (`bytes`: SentencePiece's serialized ModelProto), or nullopt unless all of these hold: the
/// model is BPE without a normalization table; white space is escaped, kept and not a suffix; every byte has a token
/// (byte_fallback); there are no user-defined and no unused pieces; every character of a normal piece is itself a
/// piece; all pieces differ. The tokenizer accepts UTF-8 only. `legacy`: as in SentencePiece, a space is prepended to
/// every text, also after an added token; otherwise only at the beginning of a document that does not begin with a
/// space.
std::optional<PipelineSpec> read_sentencepiece_bpe(const std::string& bytes, bool legacy = true);

}  // namespace te::text
