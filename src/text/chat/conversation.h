// Conversations out of JSON objects: lists of messages, or a prompt and a response in fields of their own.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "text/readers/json_records.h"

namespace te::text {

struct Message {
  std::string role;  ///< "system", "user", "assistant", or another that the template knows
  std::string content;
  std::string context;  ///< of a user message: text that it is about, or empty
  bool in_loss = true;  ///< of an assistant's message; false where its `weight` is 0
};

using Conversation = std::vector<Message>;

struct ConversationFields {
  std::string messages = "messages";  ///< a list of {role, content}, or {from, value} with human and gpt
  /// When not empty, each object is one exchange: these fields hold its texts, and `messages` is not looked at.
  std::string prompt, response;
  std::string context;  ///< field with text that the prompt is about; it may be absent from an object
  std::string system;   ///< the text, not a field, of a system message before every conversation without one
};

/// Content is a string or a list of parts {"type": "text", "text": ...}, which are joined. UserError "FILE:LINE: ..."
/// for an object that is no conversation, and for what the templates of chat_template.h have no place for: tools, calls
/// of tools, reasoning_content, images. `ignored` gets the names of fields that are not used, those of messages as
/// `messages[].name`; may be null.
Conversation read_conversation(const JsonRecord& record, const ConversationFields& fields,
                               std::set<std::string>* ignored = nullptr);

}  // namespace te::text
