// A hash of a tokenizer's behavior, independent of its files. Datasets record it, so that a run can check whether they
// were created with its tokenizer.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace te::text {

/// "xxh3:" and 16 hexadecimal digits: the hash of the text of every id and of the tokens of a fixed test text. It is
/// the same for GPT-2's tokenizer.json and its vocab.json with merges.txt, and does not depend on the formatting of a
/// tokenizer.json. It excludes the begin- and end-of-document tokens, because the models of one family can differ in
/// these alone.
std::string tokenizer_hash(const Tokenizer& tokenizer);

}  // namespace te::text
