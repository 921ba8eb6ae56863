// Text for people, as several executables print it.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>

namespace te::apps {

/// ASCII letters as capitals, "bf16" as "BF16".
inline std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

}  // namespace te::apps
