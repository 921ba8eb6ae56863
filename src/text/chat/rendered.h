// Conversations that scripts/render_chat.py has rendered with a model's own (Jinja) chat template: the text as
// segments, each inside or outside the loss.
//
//   {"segments": [{"text": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "loss": 0},
//                 {"text": "Hello!<|im_end|>", "loss": 1}, {"text": "\n", "loss": 0}]}
#pragma once

#include "text/chat/chat_template.h"
#include "text/readers/json_records.h"
#include "text/tokenizer.h"

namespace te::text {

/// The tokens of the whole text, special tokens included, as transformers' apply_chat_template gives them; the mask is
/// 1 for the tokens of segments in the loss. A segment whose first characters would merge with the end of the preceding
/// one in one token is encoded separately, because generation starts at the end of the prompt. Tokens after the last
/// one in the loss are dropped; the result is empty if no token is in the loss. UserError "FILE:LINE: ..." for a record
/// without segments, and if the tokenizer adds text to a segment that is encoded separately. Thread safe.
ChatTemplate::Encoded encode_rendered(const JsonRecord& record, const Tokenizer& tokenizer);

}  // namespace te::text
