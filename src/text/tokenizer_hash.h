// A hash of what a tokenizer does, whatever files it comes from: datasets record it, so that a run can tell whether its
// tokenizer made them.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace te::text {

/// "xxh3:" and 16 hexadecimal digits, of the text of every id and of the tokens of a text that shows how it is split.
/// The same for GPT-2's tokenizer.json and its vocab.json with merges.txt, and for a tokenizer.json that was formatted
/// anew. Not in it are the tokens that begin and end documents: families of models differ in these alone. Takes 50 ms
/// for a vocabulary of 128,000.
std::string tokenizer_hash(const Tokenizer& tokenizer);

}  // namespace te::text
