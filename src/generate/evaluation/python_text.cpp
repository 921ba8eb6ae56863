#include "generate/evaluation/python_text.h"

#include <clocale>
#include <cwctype>

#include "text/tokenizers/normalizer_step.h"

namespace te::generate::python {
namespace {

using text::for_each_character;
using text::is_python_space;

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
  for_each_character(text, [&](uint32_t, std::string_view) { ++count; });
  return count;
}

std::string_view lstrip(std::string_view text) {
  return text::stripped(text, true, false, is_python_space);
}

std::string_view rstrip(std::string_view text) {
  return text::stripped(text, false, true, is_python_space);
}

std::string capitalize(std::string_view text) {
  static const Cases cases;
  std::string result;
  bool first = true;
  for_each_character(text, [&](uint32_t c, std::string_view bytes) {
    if (c == text::kNoCharacter) {
      result += bytes;
    } else {
      text::append_utf8(first ? cases.upper(c) : cases.lower(c), result);
    }
    first = false;
  });
  return result;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  text::append_replaced(text, from, to, result);
  return result;
}

int64_t count_words(std::string_view text) {
  int64_t runs = 0;
  bool inside = false;
  for_each_character(text, [&](uint32_t c, std::string_view) {
    const bool space = is_python_space(c);
    runs += space && !inside ? 1 : 0;
    inside = space;
  });
  return runs + 1;
}

}  // namespace te::generate::python
