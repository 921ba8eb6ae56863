// The script of a character as Hugging Face's pre-tokenizer UnicodeScripts has it: PCRE2's, but as the package's
// tables, of Unicode 9, have it where the two differ. Hiragana and Katakana count as Han.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/tokenizers/normalizer_step.h"

namespace te::text {

/// A number for each script; kAnyScript for characters that go with every script: the space, and those that the
/// package does not know.
using UnicodeScript = uint8_t;
constexpr UnicodeScript kAnyScript = 0;
UnicodeScript unicode_script(uint32_t code_point);

/// Calls on_piece(begin, end, false) for the parts of `text`, any bytes, that are of one script, in order. Characters
/// of any script belong to the part before them, and to none at the beginning. Bytes that are no UTF-8 are of a script
/// of their own.
template <class OnPiece>
void cut_scripts(std::string_view text, OnPiece on_piece) {
  UnicodeScript last = kAnyScript;
  size_t begin = 0, at = 0;
  for_each_character(text, [&](uint32_t c, std::string_view bytes) {
    const UnicodeScript script = unicode_script(c);
    if (script != kAnyScript && script != last) {
      if (last != kAnyScript) on_piece(begin, at, false);
      begin = at;
      last = script;
    }
    at += bytes.size();
  });
  if (last != kAnyScript) on_piece(begin, at, false);
}

}  // namespace te::text
