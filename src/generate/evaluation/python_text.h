// Python's string operations, which the rules of the evaluation tasks use: strings are sequences of Unicode characters,
// given as UTF-8. Each byte that is not valid UTF-8 counts as one character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace te::generate::python {

int64_t length(std::string_view text);  ///< len(text): characters

std::string_view rstrip(std::string_view text);
std::string_view lstrip(std::string_view text);
inline std::string_view strip(std::string_view text) {
  return rstrip(lstrip(text));
}

/// The first character in upper case, the others in lower case; characters whose mapping has several characters are not
/// changed.
std::string capitalize(std::string_view text);
std::string replace(std::string_view text, std::string_view from, std::string_view to);
/// len(re.split(r"\s+", text)): number of runs of white space, plus one.
int64_t count_words(std::string_view text);

}  // namespace te::generate::python
