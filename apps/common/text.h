// Text formatting that several executables use.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>

namespace te::apps {

/// ASCII letters in upper case: "BF16" for "bf16".
inline std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

}  // namespace te::apps
