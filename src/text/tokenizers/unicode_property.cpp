#include "text/tokenizers/unicode_property.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <spdlog/fmt/fmt.h>

#include <array>
#include <cctype>
#include <utility>

namespace te::text {

namespace {

struct UnicodeAddition {
  std::string_view property, characters;
};
#include "text/tokenizers/unicode_additions.inc"

/// Oniguruma's names (in lowercase, without spaces, `_` and `-`) and PCRE2's names.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"l", "L"},
    {"letter", "L"},
    {"lu", "Lu"},
    {"uppercaseletter", "Lu"},
    {"ll", "Ll"},
    {"lowercaseletter", "Ll"},
    {"lt", "Lt"},
    {"titlecaseletter", "Lt"},
    {"lm", "Lm"},
    {"modifierletter", "Lm"},
    {"lo", "Lo"},
    {"otherletter", "Lo"},
    {"m", "M"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"mn", "Mn"},
    {"nonspacingmark", "Mn"},
    {"mc", "Mc"},
    {"spacingmark", "Mc"},
    {"me", "Me"},
    {"enclosingmark", "Me"},
    {"n", "N"},
    {"number", "N"},
    {"nd", "Nd"},
    {"decimalnumber", "Nd"},
    {"digit", "Nd"},
    {"nl", "Nl"},
    {"letternumber", "Nl"},
    {"no", "No"},
    {"othernumber", "No"},
    {"p", "P"},
    {"punctuation", "P"},
    {"pc", "Pc"},
    {"connectorpunctuation", "Pc"},
    {"pd", "Pd"},
    {"dashpunctuation", "Pd"},
    {"ps", "Ps"},
    {"openpunctuation", "Ps"},
    {"pe", "Pe"},
    {"closepunctuation", "Pe"},
    {"pi", "Pi"},
    {"initialpunctuation", "Pi"},
    {"pf", "Pf"},
    {"finalpunctuation", "Pf"},
    {"po", "Po"},
    {"otherpunctuation", "Po"},
    {"s", "S"},
    {"symbol", "S"},
    {"sm", "Sm"},
    {"mathsymbol", "Sm"},
    {"sc", "Sc"},
    {"currencysymbol", "Sc"},
    {"sk", "Sk"},
    {"modifiersymbol", "Sk"},
    {"so", "So"},
    {"othersymbol", "So"},
    {"z", "Z"},
    {"separator", "Z"},
    {"zs", "Zs"},
    {"spaceseparator", "Zs"},
    {"zl", "Zl"},
    {"lineseparator", "Zl"},
    {"zp", "Zp"},
    {"paragraphseparator", "Zp"},
    {"c", "C"},
    {"other", "C"},
    {"cc", "Cc"},
    {"control", "Cc"},
    {"cf", "Cf"},
    {"format", "Cf"},
    {"co", "Co"},
    {"privateuse", "Co"},
    {"cn", "Cn"},
    {"unassigned", "Cn"},
    {"alphabetic", "Alphabetic"},
    {"alpha", "Alphabetic"},
    {"lowercase", "Lowercase"},
    {"lower", "Lowercase"},
    {"uppercase", "Uppercase"},
    {"upper", "Uppercase"},
    {"any", "Any"},
};

std::string normalized(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') {
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return result;
}

/// Whether PCRE2 supports the expression.
bool compiles(const std::string& regex) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

/// The characters that a property has gained; a general category of one letter includes its subcategories.
std::string gained(std::string_view property) {
  std::string result;
  for (const UnicodeAddition& addition : kGained) {
    const bool part =
        property.size() == 1 && addition.property.size() == 2 && addition.property.starts_with(property);
    if (part || normalized(addition.property) == normalized(property)) result += addition.characters;
  }
  return result;
}

/// The categories that binary properties contain, next to the characters in kOther. PCRE2 knows these properties from
/// 10.40 on.
constexpr std::pair<std::string_view, std::string_view> kParts[] = {
    {"Alphabetic", "L"}, {"Alphabetic", "Nl"}, {"Lowercase", "Ll"}, {"Uppercase", "Lu"}};

std::string binary_property(std::string_view property) {
  std::string content;
  for (const auto& [of, category] : kParts)
    if (of == property) content += gained(category) + fmt::format("\\p{{{}}}", category);
  for (const UnicodeAddition& other : kOther)
    if (other.property == property) content += other.characters;
  return content;
}

CharacterSet known(std::string_view property) {
  if (std::string content = binary_property(property); !content.empty()) return {std::move(content), ""};
  CharacterSet set{gained(property) + fmt::format("\\p{{{}}}", property), ""};
  for (const UnicodeAddition& loss : kLost) {
    if (loss.property == property) set.lost = loss.characters;
  }
  if (property != "C" && property != "Cn") return set;
  // Remove the code points that have been assigned since.
  for (const UnicodeAddition& addition : kGained) {
    const bool stays = property == "C" && addition.property == "Cf";
    if (addition.property.size() == 2 && !stays) set.lost += addition.characters;
  }
  return set;
}

}  // namespace

std::string_view space_characters() {
  // PCRE2's \s also contains U+180E.
  return R"(\x{09}-\x{0d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
}

std::string word_characters(bool in_brackets) {
  // PCRE2's \w lacks marks and most connectors.
  static const std::string characters =
      known("Alphabetic").content + known("M").content + known("Nd").content + known("Pc").content;
  return (in_brackets ? "" : R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})") + characters;
}

std::optional<CharacterSet> unicode_posix_class(std::string_view name) {
  const auto all_of = [](std::initializer_list<std::string_view> properties) {
    std::string content;
    for (const std::string_view property : properties) content += known(property).content;
    return content;
  };
  if (name == "alpha") return known("Alphabetic");
  if (name == "digit") return known("Nd");
  if (name == "lower") return known("Lowercase");
  if (name == "upper") return known("Uppercase");
  if (name == "cntrl") return known("Cc");
  if (name == "alnum") return CharacterSet{all_of({"Alphabetic", "Nd"}), ""};
  if (name == "space") return CharacterSet{std::string(space_characters()), ""};
  if (name == "word") return CharacterSet{word_characters(true), ""};
  if (name == "punct") return CharacterSet{all_of({"P", "S"}), ""};
  if (name == "blank") return CharacterSet{"\\x{09}" + known("Zs").content, ""};
  if (name == "xdigit") return CharacterSet{"0-9A-Fa-f", ""};
  if (name == "ascii") return CharacterSet{"\\x{00}-\\x{7f}", ""};
  if (name == "graph") return CharacterSet{all_of({"L", "M", "N", "P", "S", "Cf", "Co"}), ""};
  if (name == "print") return CharacterSet{all_of({"L", "M", "N", "P", "S", "Cf", "Co", "Zs"}), ""};
  return {};
}

std::optional<CharacterSet> unicode_property(std::string_view name, bool in_brackets) {
  const std::string wanted = normalized(name);
  for (const auto& [theirs, ours] : kNames) {
    if (theirs == wanted) return known(ours);
  }
  if (wanted == "space" || wanted == "whitespace") return CharacterSet{std::string(space_characters()), ""};
  if (wanted == "word") return CharacterSet{word_characters(in_brackets), ""};
  if (wanted.empty() ||
      wanted.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") != std::string::npos) {
    return {};
  }
  // A script. From 10.40 on, PCRE2 interprets a bare script name as script extensions, hence the prefix, which older
  // versions do not know.
  static const bool has_prefix = compiles("\\p{sc:Han}");
  if (!has_prefix && wanted.starts_with('x'))
    return {};  // PCRE2's own properties, such as Xan; no script has such a name
  const std::string property =
      has_prefix ? fmt::format("\\p{{sc:{}}}", wanted) : fmt::format("\\p{{{}}}", name);
  if (!compiles(property)) return {};
  return CharacterSet{gained(wanted) + property, ""};
}

}  // namespace te::text
