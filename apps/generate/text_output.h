// Generated text on standard output.
#pragma once

#include <string>

namespace te::generate {

/// Escapes control characters other than line breaks and tabs, so that generated text cannot control the terminal.
std::string text_for_terminal(const std::string& text);

/// Writes text unchanged, or as text_for_terminal() if standard output is a terminal.
class TextOutput {
 public:
  TextOutput();
  void write(const std::string& text) const;

 private:
  bool terminal_;
};

}  // namespace te::generate
