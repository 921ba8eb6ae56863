#include "generate/text_output.h"

#include <algorithm>
#include <cstdio>

#include "core/printable.h"
#include "core/terminal.h"

namespace te::generate {

std::string text_for_terminal(const std::string& text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of("\n\t", at), text.size());
    result += printable(std::string_view(text).substr(at, end - at));
    if (end < text.size()) result += text[end];
    at = end + 1;
  }
  return result;
}

TextOutput::TextOutput() : terminal_(console_terminal().is_terminal) {}

void TextOutput::write(const std::string& text) const {
  const std::string shown = terminal_ ? text_for_terminal(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

}  // namespace te::generate
