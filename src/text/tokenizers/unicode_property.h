// Oniguruma's character properties, expressed with PCRE2's. The two have different Unicode versions (16 in the
// `tokenizers` package, 14 in PCRE2 10.40 to 10.42), so the characters that were added in between are listed
// explicitly.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace te::text {

/// A set of characters: the bracketed class [content] without the characters of [lost].
struct CharacterSet {
  std::string content;  ///< the inside of a bracketed class in PCRE2's syntax
  std::string lost;     ///< likewise; mostly empty
};

/// The set of \p{name}: general categories (short or long names), binary properties such as Alphabetic, and scripts
/// (the first one of a character with several); nullopt for an unknown name. Case, spaces, `_` and `-` are ignored.
/// `in_brackets`: the property is inside [...], see word_characters().
std::optional<CharacterSet> unicode_property(std::string_view name, bool in_brackets = false);

/// The set of [:name:] inside brackets; nullopt for an unknown name.
std::optional<CharacterSet> unicode_posix_class(std::string_view name);

/// The characters of \s and \w in PCRE2's syntax. Outside brackets, Oniguruma uses a separate table for characters
/// below U+0100, in which superscripts and fractions are word characters too.
std::string_view space_characters();
std::string word_characters(bool in_brackets);

}  // namespace te::text
