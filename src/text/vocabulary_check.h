// Whether a tokenizer that the user names may be that of a model.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace te::text {

/// The text of a warning if the vocabulary sizes of tokenizer and model differ by more than 10%, else empty. Smaller
/// differences occur in both directions, and token ids are checked when a text is encoded. `title`: the model's.
std::string vocabulary_warning(const Tokenizer& tokenizer, const std::string& title, int64_t vocab_size);

}  // namespace te::text
