#include "text/vocabulary_check.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/printable.h"

namespace te::text {

std::string vocabulary_warning(const Tokenizer& tokenizer, const std::string& title, int64_t vocab_size) {
  const int64_t tokens = tokenizer.vocab_size();
  if (std::abs(tokens - vocab_size) <= vocab_size / 10) return "";
  return fmt::format(
      "tokenizer {} has {} tokens, but the model of {} has {}: is it the one that the model was trained "
      "with?",
      printable(tokenizer.name()), tokens, printable(title), vocab_size);
}

}  // namespace te::text
