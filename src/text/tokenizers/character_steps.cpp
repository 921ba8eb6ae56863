// Normalizers that process one character at a time: Lowercase, StripAccents, Nmt, ByteLevel and BertNormalizer.
// Definitions: Hugging Face tokenizers, normalizers.
#include "text/tokenizers/byte_level.h"
#include "text/tokenizers/code_point_set.h"
#include "text/tokenizers/normalizer_step.h"

namespace te::text {

namespace {

void append_small(uint32_t c, std::string_view bytes, std::string& result) {
  if (c < 0x80) {
    result += static_cast<char>(small_letter(c));
  } else if (c == 0x130) {  // the only letter that becomes two characters
    result += "i\u0307";
  } else if (const uint32_t small = c == kNoCharacter ? c : small_letter(c); small != c) {
    append_utf8(small, result);
  } else {
    result += bytes;
  }
}

bool is_dropped_by_nmt(uint32_t c) {
  return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F ||
         c == 0x9F;
}
bool is_space_to_nmt(uint32_t c) {
  return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

bool never(std::string_view) {
  return false;
}

class BertStep {
 public:
  explicit BertStep(const JsonReader& json)
      : clean_(json.at("clean_text").boolean()),
        chinese_(json.at("handle_chinese_chars").boolean()),
        lowercase_(json.at("lowercase").boolean()),
        strip_accents_(json.boolean_or("strip_accents", lowercase_)) {}

  void operator()(std::string_view text, BoundedText& out, PatternWorkspace& /*workspace*/) const {
    std::string& result = out.text();
    if (!strip_accents_) {
      const auto finish = [&](uint32_t c, std::string_view bytes) { put(c, bytes, result); };
      return clean(text, finish);
    }
    std::string cleaned, decomposed;
    clean(text, [&](uint32_t, std::string_view bytes) { cleaned += bytes; });
    append_normal_form(NormalForm::kNfd, cleaned, decomposed);
    const CodePointSet& marks = nonspacing_marks();
    for_each_character(decomposed, [&](uint32_t c, std::string_view bytes) {
      if (!marks.contains(c)) put(c, bytes, result);
    });
  }

 private:
  /// Calls on_character(code_point, bytes) for the characters after clean_text and handle_chinese_chars.
  template <class OnCharacter>
  void clean(std::string_view text, OnCharacter on_character) const {
    const CodePointSet& controls = control_characters();
    for_each_character(text, [&](uint32_t c, std::string_view bytes) {
      if (clean_ && controls.contains(c)) return;
      if (clean_ && is_white_space(c)) return on_character(' ', " ");
      const bool isolate = chinese_ && is_chinese(c);
      if (isolate) on_character(' ', " ");
      on_character(c, bytes);
      if (isolate) on_character(' ', " ");
    });
  }
  void put(uint32_t c, std::string_view bytes, std::string& result) const {
    if (lowercase_) {
      append_small(c, bytes, result);
    } else {
      result += bytes;
    }
  }
  static bool is_chinese(uint32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x2F800 && c <= 0x2FA1F);
  }

  bool clean_, chinese_, lowercase_, strip_accents_;
};

}  // namespace

NormalizerStep make_lowercase() {
  return {[](std::string_view text, BoundedText& out, PatternWorkspace&) {
    std::string& result = out.text();
    for_each_character(text, [&](uint32_t c, std::string_view bytes) { append_small(c, bytes, result); });
  }};
}

NormalizerStep make_strip_accents() {
  const auto apply = [](std::string_view text, BoundedText& out, PatternWorkspace&) {
    const CodePointSet& marks = combining_marks();
    for_each_character(text, [&](uint32_t c, std::string_view bytes) {
      if (!marks.contains(c)) out.text() += bytes;
    });
  };
  return {apply, never};
}

NormalizerStep make_nmt() {
  const auto apply = [](std::string_view text, BoundedText& out, PatternWorkspace&) {
    for_each_character(text, [&](uint32_t c, std::string_view bytes) {
      if (!is_dropped_by_nmt(c)) out.text() += is_space_to_nmt(c) ? " " : bytes;
    });
  };
  return {apply, never};
}

NormalizerStep make_byte_level() {
  return {[](std::string_view text, BoundedText& out, PatternWorkspace&) {
    for (const char c : text) append_utf8(byte_level_character(static_cast<uint8_t>(c)), out.text());
  }};
}

NormalizerStep make_bert(const JsonReader& json) {
  return {BertStep(json), never};
}

}  // namespace te::text
