#include "text/tokenizers/unicode_script.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "core/error.h"
#include "text/tokenizers/code_point_set.h"
#include "text/tokenizers/pattern.h"
#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

struct ScriptChange {
  CodePointRange range;
  std::string_view script;
};
#include "text/tokenizers/unicode_scripts.inc"

constexpr UnicodeScript kNoCharacterScript = 0xFF;
static_assert(std::size(kScripts) < kNoCharacterScript);

UnicodeScript number_of(std::string_view script) {
  if (script == "Hiragana" || script == "Katakana") script = "Han";
  const auto found = std::find(std::begin(kScripts), std::end(kScripts), script);
  return static_cast<UnicodeScript>(found - std::begin(kScripts) + 1);
}

class ScriptTable {
 public:
  ScriptTable() : scripts_(kCodePoints, kAnyScript) {
    CodePointSet any(kNewOrAny);
    std::string text;  // the characters whose script is not yet determined
    for (uint32_t c = 0; c < kAssigned; ++c) {
      if (!any.contains(c) && (c < kSurrogateFirst || c > kSurrogateLast)) append_utf8(c, text);
    }
    for (const std::string_view script : kScripts) text = add_from_library(script, text);
    for (const ScriptChange& change : kChanged) {
      std::fill(scripts_.begin() + change.range.first, scripts_.begin() + change.range.last + 1,
                number_of(change.script));
    }
  }

  UnicodeScript operator[](uint32_t c) const { return c < kCodePoints ? scripts_[c] : kNoCharacterScript; }

 private:
  static constexpr uint32_t kCodePoints = 0x110000, kSurrogateFirst = 0xD800, kSurrogateLast = 0xDFFF;
  static constexpr uint32_t kAssigned = 0xE0200;  // characters from here have no script

  /// Records which characters of `text` are of the script and returns the others.
  std::string add_from_library(std::string_view script, const std::string& text) {
    const Pattern pattern(fmt::format("\\p{{{}}}+", script), "UnicodeScripts");
    PatternWorkspace workspace;
    std::string others;
    pattern.split(workspace, text, true, [&](size_t begin, size_t end, bool is_match) {
      const std::string_view part = std::string_view(text).substr(begin, end - begin);
      if (!is_match) {
        others += part;
        return;
      }
      for_each_character(part, [&](uint32_t c, std::string_view) { scripts_[c] = number_of(script); });
    });
    return others;
  }

  std::vector<UnicodeScript> scripts_;
};

}  // namespace

UnicodeScript unicode_script(uint32_t code_point) {
  static const ScriptTable table;
  return table[code_point];
}

}  // namespace te::text
