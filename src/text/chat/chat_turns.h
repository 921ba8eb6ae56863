// What a model's own chat template (Jinja) makes of conversations, as scripts/chat_turns.py has written it down beside
// the tokenizer: chat_turns.json.
//
//   {"format": "te-train chat turns 1", "template": "crc32:0a1b2c3d", "end": "<|im_end|>",
//    "tokens": ["<|im_end|>", ...],
//    "without_system": {"only": [...], "first": [...], "middle": [...], "last": [...]}, "with_system": {...}}
//
// A prompt is a unit for each message of the user: the only one, or the first, those in the middle, and the last. Units
// that are not the last hold the reply, too; the last ends where the reply begins. A unit is a list of
//   {"text": "..."}                         as it is
//   {"message": "user", "trim": "none"}     the message (system, user, assistant); white space is taken off none, left,
//                                           right, or both of its ends
//   {"message": "assistant", "trim": "none", "reasoning": "drop"}      an earlier reply; see Reasoning
// `with_system` is absent where the template has no place for a system message.
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

  /// UserError "FILE: ..." for what breaks the rules above.
  static ChatTurns load(const std::string& file);
  static ChatTurns parse(const std::string& text, const std::string& place);

  /// "crc32:" and the CRC-32 of the Jinja template that it was made of.
  const std::string& source() const { return source_; }

  /// UserError where the tokenizer does not make the tokens of a text that the template means.
  void check(const Tokenizer& tokenizer) const;

  /// The prompt for the reply: `conversation` is messages of the user and replies by turns, from and to one of the
  /// user, with or without a system message before. UserError for a system message that has no place.
  std::string text(const Conversation& conversation) const;
  /// Its tokens: of the whole text at once, as transformers has them, but that no message makes a special token.
  std::vector<int32_t> encode(const Conversation& conversation, const Tokenizer& tokenizer) const;

  /// The token that ends a reply; -1 for none but the end of the document. After check().
  int32_t end(const Tokenizer& tokenizer) const;

 private:
  enum class Trim { kNone, kLeft, kRight, kBoth };
  /// An earlier reply without what stands before `</think>`: without line breaks behind it; without line breaks at its
  /// beginning whether it has one or not.
  enum class Reasoning { kKeep, kDrop, kDropLines, kDropAllLines };
  enum class Unit { kOnly, kFirst, kMiddle, kLast };
  struct Part {
    std::string text;  // of a text, or the role
    bool is_message = false;
    Trim trim = Trim::kNone;
    Reasoning reasoning = Reasoning::kKeep;
  };
  using Units = std::array<std::vector<Part>, 4>;

  static Part read_part(const JsonReader& json);
  static Units read_units(const JsonReader& json);
  static std::string render(const std::string& message, const Part& part);
  /// The parts of a prompt and whether each is a message.
  std::vector<std::pair<std::string, bool>> parts_of(const Conversation& conversation) const;

  std::string place_, source_;
  std::optional<std::string> end_;
  std::vector<std::string> tokens_;
  Units without_system_;
  std::optional<Units> with_system_;
};

/// The Jinja template of a Hugging Face folder: chat_template.jinja, or the default one of chat_template.json or
/// tokenizer_config.json. Nothing where it has none.
std::optional<std::string> find_jinja_template(const std::filesystem::path& folder);

/// The turns that lie in a tokenizer's folder. Nothing where there is neither that file nor a Jinja template; UserError
/// where there is a template without the file, or with one that was made of another.
std::optional<ChatTurns> find_chat_turns(const std::filesystem::path& folder);

}  // namespace te::text
