// Normalizers and functions that create them. Each normalizer rewrites a whole text.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>

#include "text/tokenizers/bounded_text.h"
#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/normal_form.h"
#include "text/tokenizers/pattern.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

struct NormalizerStep {
  /// Appends the normalized `text`, which can contain any bytes, to `result`, which does not overlap it.
  std::function<void(std::string_view text, BoundedText& result, PatternWorkspace& workspace)> apply;
  /// Whether the first character of the result always comes from the first character of the text, or is a space. For
  /// Metaspace, which writes spaces as `space`.
  std::function<bool(std::string_view space)> keeps_start = [](std::string_view) { return true; };
};

// text_steps.cpp, character_steps.cpp, precompiled.cpp
NormalizerStep make_normal_form(NormalForm form);
NormalizerStep make_prepend(const JsonReader& json);
NormalizerStep make_replace(const JsonReader& json);
NormalizerStep make_strip(const JsonReader& json);
NormalizerStep make_lowercase();
NormalizerStep make_strip_accents();
NormalizerStep make_nmt();
NormalizerStep make_byte_level();
NormalizerStep make_bert(const JsonReader& json);
NormalizerStep make_precompiled(const JsonReader& json);

/// Calls on_character(code_point, bytes) for the characters of `text`; invalid UTF-8 bytes are passed one by one with
/// the code point kNoCharacter.
constexpr uint32_t kNoCharacter = 0xFFFFFFFF;
template <class OnCharacter>
void for_each_character(std::string_view text, OnCharacter on_character) {
  while (!text.empty()) {
    const auto first = static_cast<uint8_t>(text[0]);
    if (first < 0x80) {
      on_character(uint32_t{first}, text.substr(0, 1));
      text.remove_prefix(1);
      continue;
    }
    const size_t length = utf8_sequence_length(text);
    const std::string_view bytes = text.substr(0, length == 0 ? 1 : length);
    on_character(length == 0 ? kNoCharacter : utf8_code_point(bytes), bytes);
    text.remove_prefix(bytes.size());
  }
}

/// `text` without the characters at its left and right ends for which is_space(code_point) is true.
template <class IsSpace>
std::string_view stripped(std::string_view text, bool left, bool right, IsSpace is_space) {
  size_t begin = text.size(), end = 0, at = 0;  // [begin, end) is the text without white space at its ends
  for_each_character(text, [&](uint32_t c, std::string_view bytes) {
    if (!is_space(c)) {
      begin = std::min(begin, at);
      end = at + bytes.size();
    }
    at += bytes.size();
  });
  if (!right) end = text.size();
  if (!left) begin = 0;
  return text.substr(begin, end > begin ? end - begin : 0);
}

}  // namespace te::text
