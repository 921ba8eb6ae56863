// Determines whether a tokenizer prepends its begin-of-document token to a text, as Hugging Face's encode() does with
// the same files. A tokenizer may have such a token without prepending it: GPT-2's bos_token is <|endoftext|>.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace te::generate {

/// The first of these rules that applies:
///   add_bos_token               in the tokenizer_config.json next to the tokenizer, if its class is Llama's,
///                               CodeLlama's, Gemma's, Cohere's (default true), GPT-NeoX's (default false) or unknown,
///                               or without a tokenizer.json; warns if the next line differs
///   post_processor              in tokenizer.json: true if its template starts with a special token
///   tokenizer.model             of SentencePiece: true, as for LlamaTokenizer
/// Otherwise false, also if the tokenizer has no begin-of-document token. UserError if a file is not valid JSON, or if
/// the template starts with another token.
bool adds_begin_of_document(const text::Tokenizer& tokenizer);

}  // namespace te::generate
