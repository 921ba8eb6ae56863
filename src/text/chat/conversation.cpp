#include "text/chat/conversation.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace te::text {
namespace {

using nlohmann::json;

const std::string& text_of(const json& message, const JsonRecord& record, size_t index, const char* name,
                           const char* other_name) {
  const auto named = message.find(name), other = message.find(other_name);
  const json* value = named != message.end() ? &*named : other != message.end() ? &*other : nullptr;
  if (value == nullptr || !value->is_string()) {
    user_error("{}: message {} has {} `{}`; every message needs a role and a content, both strings",
               record.place, index, value == nullptr ? "no" : "something else than a string as", name);
  }
  return value->get_ref<const std::string&>();
}

Conversation from_messages(const JsonRecord& record, const ConversationFields& fields) {
  const json* list = find_field(record.object, fields.messages);
  if (list == nullptr || !list->is_array()) {
    std::string names;
    for (const auto& item : record.object.items()) names += (names.empty() ? "" : ", ") + item.key();
    user_error(
        "{}: has no list of messages in `{}`; name it with --messages-field, or give --prompt-field and "
        "--response-field; this object has: {}",
        record.place, fields.messages, names.empty() ? "no field" : names);
  }
  Conversation conversation;
  for (const json& message : *list) {
    const size_t index = conversation.size();
    if (!message.is_object()) user_error("{}: message {} is no object", record.place, index);
    std::string role = text_of(message, record, index, "role", "from");
    if (role == "human") role = "user";
    if (role == "gpt") role = "assistant";
    conversation.push_back({std::move(role), text_of(message, record, index, "content", "value"), ""});
  }
  return conversation;
}

Conversation from_fields(const JsonRecord& record, const ConversationFields& fields) {
  Message user = {"user", string_field(record, fields.prompt, "--prompt-field"), ""};
  const bool has_context = !fields.context.empty() && find_field(record.object, fields.context) != nullptr;
  if (has_context) user.context = string_field(record, fields.context, "--context-field");
  return {std::move(user), {"assistant", string_field(record, fields.response, "--response-field"), ""}};
}

}  // namespace

Conversation read_conversation(const JsonRecord& record, const ConversationFields& fields) {
  Conversation conversation =
      fields.prompt.empty() ? from_messages(record, fields) : from_fields(record, fields);
  const bool has_system = !conversation.empty() && conversation.front().role == "system";
  if (!fields.system.empty() && !has_system) {
    conversation.insert(conversation.begin(), {"system", fields.system, ""});
  }
  return conversation;
}

}  // namespace te::text
