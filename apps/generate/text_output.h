// Generated text on standard output.
#pragma once

#include <string>

namespace te::generate {

/// The text as a terminal may show it: control characters other than line breaks and tabs are escaped, so that what a
/// model or a prompt says does not command the terminal.
std::string text_for_terminal(const std::string& text);

/// Writes text as it is, or, where standard output is a terminal, text_for_terminal().
class TextOutput {
 public:
  TextOutput();
  void write(const std::string& text) const;

 private:
  bool terminal_;
};

}  // namespace te::generate
