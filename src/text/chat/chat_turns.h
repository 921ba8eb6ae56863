// A model's own chat template (Jinja), converted by scripts/chat_turns.py to chat_turns.json in the tokenizer's folder.
//
//   {"format": "te-train chat turns 1", "template": "crc32:0a1b2c3d", "end": "<|im_end|>",
//    "tokens": ["<|im_end|>", ...],
//    "without_system": {"only": [...], "first": [...], "middle": [...], "last": [...]}, "with_system": {...}}
//
// A prompt consists of one unit per user message: `only`, or `first`, `middle` for each further one, and `last`. The
// units `first` and `middle` contain the reply, too; `only` and `last` end where the reply begins. A unit is a list of
//   {"text": "..."}                         literal text
//   {"message": "user", "trim": "none"}     the message (system, user, assistant); `trim` names the ends (none, left,
//                                           right, both) whose white space is stripped
//   {"message": "assistant", "trim": "none", "reasoning": "drop"}      an earlier reply; see Reasoning
// `with_system` is absent if the template does not support system messages.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat/conversation.h"
#include "text/tokenizer.h"
#include "text/tokenizers/json_reader.h"

namespace te::text {

class ChatTurns {
 public:
  static constexpr const char* kFile = "chat_turns.json";

  /// UserError "FILE: ..." for a file that does not follow the format above.
  static ChatTurns load(const std::string& file);
  static ChatTurns parse(const std::string& text, const std::string& place);

  /// "crc32:" and the CRC-32 of the Jinja template that the file was converted from.
  const std::string& source() const { return source_; }

  /// UserError if the tokenizer does not encode every special token of the template as one token.
  void check(const Tokenizer& tokenizer) const;

  /// The prompt for the next reply. `conversation` alternates between user messages and replies, begins (after an
  /// optional system message) and ends with a user message. UserError for a system message that the template does not
  /// support.
  std::string text(const Conversation& conversation) const;
  /// The tokens of text(), as transformers encodes them, except that the text of messages never becomes a special
  /// token.
  std::vector<int32_t> encode(const Conversation& conversation, const Tokenizer& tokenizer) const;

  /// The token that ends a reply; -1 if only the end-of-document token does. Call check() first.
  int32_t end(const Tokenizer& tokenizer) const;

 private:
  enum class Trim { kNone, kLeft, kRight, kBoth };
  /// How an earlier reply is written. kDrop removes everything up to the last `</think>`; kDropLines also removes the
  /// line breaks after it; kDropAllLines removes leading line breaks even if the reply has no `</think>`.
  enum class Reasoning { kKeep, kDrop, kDropLines, kDropAllLines };
  enum class Unit { kOnly, kFirst, kMiddle, kLast };
  struct Part {
    std::string text;  // the literal text, or the role of the message
    bool is_message = false;
    Trim trim = Trim::kNone;
    Reasoning reasoning = Reasoning::kKeep;
  };
  using Units = std::array<std::vector<Part>, 4>;

  static Part read_part(const JsonReader& json);
  static Units read_units(const JsonReader& json);
  static std::string render(const std::string& message, const Part& part);
  /// The parts of a prompt; `second` tells whether the part is a message.
  std::vector<std::pair<std::string, bool>> parts_of(const Conversation& conversation) const;

  std::string place_, source_;
  std::optional<std::string> end_;
  std::vector<std::string> tokens_;
  Units without_system_;
  std::optional<Units> with_system_;
};

/// The Jinja template of a Hugging Face folder: chat_template.jinja, or the default template of chat_template.json or
/// tokenizer_config.json; nullopt if there is none.
std::optional<std::string> find_jinja_template(const std::filesystem::path& folder);

/// Loads chat_turns.json from a tokenizer's folder; nullopt if the folder has neither this file nor a Jinja template.
/// UserError if the folder has a template but not the file, or if the file was converted from another template.
std::optional<ChatTurns> find_chat_turns(const std::filesystem::path& folder);

}  // namespace te::text
