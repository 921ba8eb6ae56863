// Whether a tokenizer puts its begin-of-document token in front of a text, as Hugging Face's encode() of the same files
// does. Having such a token is not enough: GPT-2 names <|endoftext|> as its bos_token and never writes it.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace te::generate {

/// The first of these that says something:
///   add_bos_token               of tokenizer_config.json beside the tokenizer
///   post_processor              of tokenizer.json: whether its template begins with a special token
///   tokenizer.model             of SentencePiece: yes, as LlamaTokenizer does
/// False for all else, and where the tokenizer has no begin-of-document token. UserError for a file that is no JSON.
bool adds_begin_of_document(const text::Tokenizer& tokenizer);

}  // namespace te::generate
