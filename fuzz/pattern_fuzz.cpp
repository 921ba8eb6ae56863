// Interprets arbitrary bytes as a tokenizer's regular expression (the first line) and a text (the rest); every failure
// must be a UserError, and the concatenated pieces must equal the text.
#include "text/tokenizers/pattern.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(input.find('\n'), input.size());
  const std::string_view text = input.substr(std::min(line + 1, input.size()));
  static te::text::PatternWorkspace workspace;
  try {
    const te::text::Pattern pattern(std::string(input.substr(0, line)), "input");
    size_t done = 0;
    pattern.split(workspace, text, te::text::valid_utf8_prefix(text) == text.size(),
                  [&](size_t begin, size_t end, bool is_match) {
                    TE_CHECK(begin == done && end <= text.size() && (begin < end || is_match),
                             "piece {} to {} after {}", begin, end, done);
                    done = end;
                  });
    TE_CHECK(done == text.size(), "{} of {} bytes", done, text.size());
  } catch (const te::UserError&) {
  }
  return 0;
}
