// Conversations that scripts/render_chat.py has written down with a model's own (Jinja) chat template: the text in
// segments, each in the loss or not.
//
//   {"segments": [{"text": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "loss": 0},
//                 {"text": "Hello!<|im_end|>", "loss": 1}, {"text": "\n", "loss": 0}]}
#pragma once

#include "text/chat/chat_template.h"
#include "text/readers/json_records.h"
#include "text/tokenizer.h"

namespace te::text {

/// The tokens of the whole text, special tokens included, as transformers' apply_chat_template has them; the mask is 1
/// for those of segments in the loss. A segment whose first characters would join the end of the one before it in one
/// token is encoded apart, since that is where generation takes over from the prompt. What comes after the last token
/// in the loss is left out; no tokens when there is none. UserError "FILE:LINE: ..." for a record without segments, and
/// where a tokenizer adds something of its own to a text that is encoded apart. Thread safe.
ChatTemplate::Encoded encode_rendered(const JsonRecord& record, const Tokenizer& tokenizer);

}  // namespace te::text
