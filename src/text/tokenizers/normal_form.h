// Unicode's normal forms as in Hugging Face tokenizers, computed with utf8proc. Characters that are newer than the
// package's tables are kept, and do not compose with their neighbors.
#pragma once

#include <string>
#include <string_view>

namespace te::text {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// Appends the normal form of `text`, which can contain any bytes, to `result`. Invalid UTF-8 bytes are kept; the texts
/// before and after them are normalized separately.
void append_normal_form(NormalForm form, std::string_view text, std::string& result);

}  // namespace te::text
