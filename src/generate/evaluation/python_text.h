// The operations on text that the rules of the evaluation tasks are written in, as Python has them: strings are
// sequences of Unicode characters, given as UTF-8. Bytes that are no UTF-8 count as one character each.
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

/// The first character in upper case, the others in lower case; characters whose other case is several characters stay.
std::string capitalize(std::string_view text);
std::string replace(std::string_view text, std::string_view from, std::string_view to);
/// len(re.split(r"\s+", text)): runs of white space, and one.
int64_t count_words(std::string_view text);

}  // namespace te::generate::python
