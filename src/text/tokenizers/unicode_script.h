// The script of a character as in Hugging Face's pre-tokenizer UnicodeScripts: PCRE2's script, corrected where it
// differs from the package's tables (Unicode 9). Hiragana and Katakana count as Han.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/tokenizers/normalizer_step.h"

namespace te::text {

/// A number for each script; kAnyScript for characters that continue any script: the space, and characters that the
/// package does not know.
using UnicodeScript = uint8_t;
constexpr UnicodeScript kAnyScript = 0;
UnicodeScript unicode_script(uint32_t code_point);

/// Calls on_span(begin, end, false) for the runs of one script in `text`, which can contain any bytes, in order.
/// Characters with kAnyScript belong to the preceding run; at the beginning of the text they are dropped. Invalid UTF-8
/// bytes form a script of their own.
template <class OnSpan>
void split_scripts(std::string_view text, OnSpan on_span) {
  UnicodeScript last = kAnyScript;
  size_t begin = 0, at = 0;
  for_each_character(text, [&](uint32_t c, std::string_view bytes) {
    const UnicodeScript script = unicode_script(c);
    if (script != kAnyScript && script != last) {
      if (last != kAnyScript) on_span(begin, at, false);
      begin = at;
      last = script;
    }
    at += bytes.size();
  });
  if (last != kAnyScript) on_span(begin, at, false);
}

}  // namespace te::text
