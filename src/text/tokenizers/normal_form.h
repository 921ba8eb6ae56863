// Unicode's normal forms as Hugging Face tokenizers have them. utf8proc does the work; characters that are newer than
// the package's tables are left alone, and part what surrounds them.
#pragma once

#include <string>
#include <string_view>

namespace te::text {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// Appends the normal form of `text`, any bytes, to `result`. Bytes that are no UTF-8 stay and part what surrounds
/// them.
void append_normal_form(NormalForm form, std::string_view text, std::string& result);

}  // namespace te::text
