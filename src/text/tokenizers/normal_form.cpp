// Most characters are stable: they are their own normal form in any context. Only runs of other characters go to
// utf8proc, together with the character before them, with which they can compose.
#include "text/tokenizers/normal_form.h"

#include <utf8proc.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <optional>

#include "core/error.h"
#include "text/tokenizers/code_point_set.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

utf8proc_option_t options(NormalForm form) {
  constexpr std::array<int, 4> kOptions = {UTF8PROC_COMPOSE, UTF8PROC_DECOMPOSE,
                                           UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                                           UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
  return static_cast<utf8proc_option_t>(kOptions[static_cast<size_t>(form)] | UTF8PROC_STABLE);
}

void append_from_library(NormalForm form, std::string_view text, std::string& result) {
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &bytes, options(form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(bytes, &std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  TE_CHECK(size >= 0, "utf8proc: {}", utf8proc_errmsg(size));
  result.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

constexpr uint32_t kHangulFirst = 0xAC00, kHangulLast = 0xD7A3, kSurrogateFirst = 0xD800,
                   kSurrogateLast = 0xDFFF;

/// The code points that are not stable.
CodePointSet make_unstable(NormalForm form) {
  CodePointSet result({});
  const CodePointSet& inert = inert_characters();
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  std::string character, normal;
  std::array<utf8proc_int32_t, 64> parts{};
  for (uint32_t c = 0x80; c < 0x110000; ++c) {
    if (inert.contains(c) || (c >= kSurrogateFirst && c <= kSurrogateLast)) continue;
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    const bool hangul = c >= kHangulFirst && c <= kHangulLast;
    if (property->category == UTF8PROC_CATEGORY_CN) continue;
    if (property->combining_class != 0) result.insert(c);
    if (property->decomp_seqindex == UINT16_MAX && !hangul) continue;
    character.clear();
    normal.clear();
    append_utf8(c, character);
    append_from_library(form, character, normal);
    if (normal != character) result.insert(c);
    if (!composes) continue;
    // The second and further parts of a decomposition can compose with a preceding character.
    int last_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(),
                                                           parts.size(), UTF8PROC_DECOMPOSE, &last_class);
    for (utf8proc_ssize_t i = 1; i < count && i < static_cast<utf8proc_ssize_t>(parts.size()); ++i) {
      const auto part = static_cast<uint32_t>(parts[static_cast<size_t>(i)]);
      if (!inert.contains(part)) result.insert(part);
    }
  }
  return result;
}

const CodePointSet& unstable(NormalForm form) {
  static std::array<std::once_flag, 4> made;
  static std::array<std::optional<CodePointSet>, 4> sets;
  const auto index = static_cast<size_t>(form);
  std::call_once(made[index], [&] { sets[index] = make_unstable(form); });
  return *sets[index];
}

}  // namespace

void append_normal_form(NormalForm form, std::string_view text, std::string& result) {
  const CodePointSet& unstable_characters = unstable(form);
  size_t copied = 0;    // text[0, copied) is in `result`
  size_t previous = 0;  // start of the character before `at`, if joins
  bool joins = false;   // whether the character before `at` can compose with the next one
  size_t at = 0;
  const auto next = [&](uint32_t& code_point) {
    const size_t length = utf8_sequence_length(text.substr(at));
    code_point = length == 0 ? 0 : utf8_code_point(text.substr(at, length));
    return length;
  };
  while (at < text.size()) {
    uint32_t c = static_cast<uint8_t>(text[at]);
    size_t length = 1;
    if (c >= 0x80) length = next(c);
    if (length > 0 && !unstable_characters.contains(c)) {
      previous = at;
      joins = c < 0x80 || !inert_characters().contains(c);
      at += length;
      continue;
    }
    if (length == 0) {  // an invalid byte
      joins = false;
      ++at;
      continue;
    }
    const size_t begin = joins ? previous : at;
    while (at < text.size() && (length = next(c)) > 0 && unstable_characters.contains(c)) at += length;
    result += text.substr(copied, begin - copied);
    append_from_library(form, text.substr(begin, at - begin), result);
    copied = at;
    joins = false;  // the next unstable character is not adjacent to this run
  }
  result += text.substr(copied);
}

}  // namespace te::text
