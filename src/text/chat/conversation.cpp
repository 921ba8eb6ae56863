#include "text/chat/conversation.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"

namespace te::text {
namespace {

using nlohmann::json;

constexpr const char* kRender = "use scripts/render_chat.py, which follows the chat template of the model";

const json* find(const json& message, const char* name, const char* other_name) {
  auto value = message.find(name);
  if (value == message.end()) value = message.find(other_name);
  return value == message.end() || value->is_null() ? nullptr : &*value;
}

std::string role_of(const json& message, const std::string& place) {
  const json* role = find(message, "role", "from");
  if (role == nullptr || !role->is_string())
    user_error("{} {}; every message needs a string as `role`", place,
               role == nullptr ? "has no `role`" : "has a `role` that is not a string");
  if (*role == "human") return "user";
  if (*role == "gpt") return "assistant";
  return role->get<std::string>();
}

std::string content_of(const json& message, const std::string& place) {
  const json* content = find(message, "content", "value");
  if (content == nullptr) user_error("{} has no `content`; every message needs one", place);
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    user_error("{} has a `content` of type {}; it must be a string or a list of parts", place,
               content->type_name());
  }
  std::string text;
  for (const json& part : *content) {
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (!part.is_object() || type == part.end() || !type->is_string())
      user_error("{} has a part without `type` in its `content`; leave it out", place);
    const auto value = part.find("text");
    if (*type != "text" || value == part.end() || !value->is_string()) {
      user_error("{} has a part of type `{}`; te-train trains on text only, leave the conversation out",
                 place, type->get_ref<const std::string&>());
    }
    text += value->get_ref<const std::string&>();
  }
  return text;
}

bool is_empty(const json& value) {
  return value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         ((value.is_array() || value.is_object()) && value.empty());
}

/// OpenAI's files give weight 0 to messages that are context only and not in the loss.
bool has_weight(const json& message, const std::string& place) {
  const auto weight = message.find("weight");
  if (weight == message.end() || weight->is_null()) return true;
  if (!weight->is_number() || (*weight != 0 && *weight != 1))
    user_error("{} has weight {}; it must be 0 or 1", place, weight->dump());
  return *weight == 1;
}

/// Refuses fields that a template of chat_template.h cannot express and that change the training text if dropped.
void refuse_fields(const json& object, const std::string& place, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto field = object.find(name);
    if (field != object.end() && !is_empty(*field))
      user_error("{} has `{}`, which --template does not support; {}", place, name, kRender);
  }
}

void note_ignored(const json& object, const std::string& prefix, std::initializer_list<std::string_view> used,
                  std::set<std::string>* ignored) {
  if (ignored == nullptr) return;
  for (const auto& item : object.items()) {
    const bool is_used = std::ranges::any_of(used, [&](std::string_view name) {
      return name == item.key() || name.substr(0, name.find('.')) == item.key();
    });
    if (!is_used && !is_empty(item.value())) ignored->insert(prefix + item.key());
  }
}

Conversation from_messages(const JsonRecord& record, const ConversationFields& fields,
                           std::set<std::string>* ignored) {
  const json* list = find_field(record.object, fields.messages);
  if (list != nullptr && !list->is_array()) {
    user_error("{}: field `{}` is a {}, not a list of messages; name another field with --messages-field",
               record.place, fields.messages, list->type_name());
  }
  if (list == nullptr) {
    std::string names;
    for (const auto& item : record.object.items()) names += (names.empty() ? "" : ", ") + item.key();
    user_error(
        "{}: no list of messages in the field `{}`; name it with --messages-field, or give --prompt-field "
        "and --response-field; the object has: {}",
        record.place, fields.messages, names.empty() ? "no field" : names);
  }
  refuse_fields(record.object, record.place + ": the conversation", {"tools", "functions"});
  Conversation conversation;
  for (const json& message : *list) {
    const std::string place = fmt::format("{}: message {}", record.place, conversation.size());
    if (!message.is_object()) user_error("{} is not an object", place);
    refuse_fields(message, place,
                  {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"});
    std::string role = role_of(message, place);
    std::string content = content_of(message, place);
    conversation.push_back({std::move(role), std::move(content), "", has_weight(message, place)});
    note_ignored(message, fields.messages + "[].", {"role", "from", "content", "value", "weight"}, ignored);
  }
  return conversation;
}

Conversation from_fields(const JsonRecord& record, const ConversationFields& fields) {
  Message user = {"user", string_field(record, fields.prompt, "--prompt-field"), "", true};
  const bool has_context = !fields.context.empty() && find_field(record.object, fields.context) != nullptr;
  if (has_context) user.context = string_field(record, fields.context, "--context-field");
  return {std::move(user),
          {"assistant", string_field(record, fields.response, "--response-field"), "", true}};
}

}  // namespace

Conversation read_conversation(const JsonRecord& record, const ConversationFields& fields,
                               std::set<std::string>* ignored) {
  Conversation conversation =
      fields.prompt.empty() ? from_messages(record, fields, ignored) : from_fields(record, fields);
  if (fields.prompt.empty()) {
    note_ignored(record.object, "", {fields.messages}, ignored);
  } else {
    note_ignored(record.object, "", {fields.prompt, fields.response, fields.context}, ignored);
  }
  const bool has_system = !conversation.empty() && conversation.front().role == "system";
  if (!fields.system.empty() && !has_system) {
    conversation.insert(conversation.begin(), {"system", fields.system, "", true});
  }
  return conversation;
}

}  // namespace te::text
