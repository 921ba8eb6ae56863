#include "generate/evaluation/python_text.h"

#include <clocale>
#include <cwctype>

#include "text/tokenizers/utf8.h"

namespace te::generate::python {
namespace {

size_t character_bytes(std::string_view text) {
  const size_t bytes = text::utf8_sequence_length(text);
  return bytes == 0 ? 1 : bytes;
}

/// str.isspace: the property White_Space, and ASCII's four separators 0x1c to 0x1f.
bool is_space(std::string_view character) {
  if (character.size() == 1) {
    const auto byte = static_cast<unsigned char>(character[0]);
    return byte < 0x80 && (text::is_white_space(byte) || (byte >= 0x1C && byte <= 0x1F));
  }
  return text::is_white_space(text::utf8_code_point(character));
}

template <class OnCharacter>
void for_each_character(std::string_view text, OnCharacter on_character) {
  while (!text.empty()) {
    const size_t bytes = character_bytes(text);
    on_character(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
}

/// Unicode's simple case mappings, independent of the process's locale.
class Cases {
 public:
  Cases() : locale_(::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr)) {}
  uint32_t upper(uint32_t c) const {
    return locale_ ? ::towupper_l(static_cast<wint_t>(c), locale_) : ascii(c, 'a', 'z');
  }
  uint32_t lower(uint32_t c) const {
    return locale_ ? ::towlower_l(static_cast<wint_t>(c), locale_) : ascii(c, 'A', 'Z');
  }

 private:
  static uint32_t ascii(uint32_t c, char first, char last) {
    return c >= static_cast<uint32_t>(first) && c <= static_cast<uint32_t>(last) ? c ^ 0x20U : c;
  }
  locale_t locale_;
};

}  // namespace

int64_t length(std::string_view text) {
  int64_t count = 0;
  for_each_character(text, [&](std::string_view) { ++count; });
  return count;
}

std::string_view lstrip(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = character_bytes(text);
    if (!is_space(text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  return text;
}

std::string_view rstrip(std::string_view text) {
  size_t end = 0, at = 0;
  for_each_character(text, [&](std::string_view character) {
    at += character.size();
    if (!is_space(character)) end = at;
  });
  return text.substr(0, end);
}

std::string capitalize(std::string_view text) {
  static const Cases cases;
  std::string result;
  bool first = true;
  for_each_character(text, [&](std::string_view character) {
    if (text::utf8_sequence_length(character) == 0) {
      result += character;
    } else {
      const uint32_t c = text::utf8_code_point(character);
      text::append_utf8(first ? cases.upper(c) : cases.lower(c), result);
    }
    first = false;
  });
  return result;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (;;) {
    const size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    result += text.substr(0, at);
    result += to;
    text.remove_prefix(at + from.size());
  }
  return result += text;
}

int64_t count_words(std::string_view text) {
  int64_t runs = 0;
  bool inside = false;
  for_each_character(text, [&](std::string_view character) {
    const bool space = is_space(character);
    runs += space && !inside ? 1 : 0;
    inside = space;
  });
  return runs + 1;
}

}  // namespace te::generate::python
