// The interface of normalizers, and functions that create them. Each normalizer rewrites a whole text.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizers/bounded_text.h"
#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/normal_form.h"
#include "text/tokenizers/pattern.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;

  /// Appends the normalized `text`, which can contain any bytes, to `result`, which does not overlap it.
  virtual void apply(std::string_view text, BoundedText& result, PatternWorkspace& workspace) const = 0;

  /// Whether the first character of the result always comes from the first character of the text, or is a space. For
  /// Metaspace, which writes spaces as `space`.
  virtual bool keeps_start(std::string_view /*space*/) const { return true; }
};

using NormalizerStepPtr = std::shared_ptr<const NormalizerStep>;

// text_steps.cpp, character_steps.cpp, precompiled.cpp
NormalizerStepPtr make_normal_form(NormalForm form);
NormalizerStepPtr make_prepend(const JsonReader& json);
NormalizerStepPtr make_replace(const JsonReader& json);
NormalizerStepPtr make_strip(const JsonReader& json);
NormalizerStepPtr make_lowercase();
NormalizerStepPtr make_strip_accents();
NormalizerStepPtr make_nmt();
NormalizerStepPtr make_byte_level();
NormalizerStepPtr make_bert(const JsonReader& json);
NormalizerStepPtr make_precompiled(const JsonReader& json);

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

}  // namespace te::text
