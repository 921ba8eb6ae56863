// Character properties as Oniguruma knows them, in terms of PCRE2's. The two are of different Unicode versions: the
// `tokenizers` package has 16, PCRE2 10.40 to 10.42 has 14, so what came since is added.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace te::text {

/// A set of characters: those of the bracketed class [content] without those of [lost].
struct CharacterSet {
  std::string content;  ///< the inside of a class, PCRE2's syntax
  std::string lost;     ///< the same; mostly empty
};

/// The set of \p{name}: general categories (short or long names), Alphabetic and the like, scripts (where a
/// character has several, the first). Nothing for a name that is not known. Case, spaces, `_` and `-` do not matter.
/// `in_brackets`: it stands inside of [...], see word_characters().
std::optional<CharacterSet> unicode_property(std::string_view name, bool in_brackets = false);

/// The set of [:name:] inside of brackets; nothing for a name that is not known.
std::optional<CharacterSet> unicode_posix_class(std::string_view name);

/// Contents of classes: \s and \w. Outside of brackets Oniguruma asks a table of its own below U+0100, which has the
/// superscripts and fractions too.
std::string_view space_characters();
std::string word_characters(bool in_brackets);

}  // namespace te::text
