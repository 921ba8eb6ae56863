// Reads conversations from JSON objects: lists of messages, or a prompt and a response in separate fields.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "text/readers/json_records.h"

namespace te::text {

struct Message {
  std::string role;  ///< "system", "user", "assistant", or another role of the template
  std::string content;
  std::string context;  ///< user messages: text that the message refers to, or empty
  bool in_loss = true;  ///< assistant messages: false if the `weight` is 0
};

using Conversation = std::vector<Message>;

struct ConversationFields {
  std::string messages = "messages";  ///< a list of {role, content}, or {from, value} with human and gpt
  /// If not empty, each object is one exchange: these fields contain its texts, and `messages` is ignored.
  std::string prompt, response;
  std::string context;  ///< field with text that the prompt refers to; objects may lack it
  std::string system;   ///< text (not a field) of the system message for conversations without one
};

/// `content` is a string or a list of parts {"type": "text", "text": ...}, which are concatenated. UserError
/// "FILE:LINE: ..." for an object that is not a conversation, and for fields that the templates of chat_template.h do
/// not support: tools, tool calls, reasoning_content, images. Adds the names of unused fields to `ignored` (those of
/// messages as `messages[].name`); it may be null.
Conversation read_conversation(const JsonRecord& record, const ConversationFields& fields,
                               std::set<std::string>* ignored = nullptr);

}  // namespace te::text
