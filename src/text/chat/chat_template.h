// Chat templates: a few lines of text that define how a conversation is formatted for a model.
//
//   # comment
//   trim: true
//   begin: {bos}
//   system: {<|im_start|>}system\n{content}{<|im_end|>}\n
//   user: {<|im_start|>}user\n{content}{<|im_end|>}\n
//   assistant: {<|im_start|>}assistant\n{content}{<|im_end|>}{stop}\n
//
// A line is a role and the format of its messages; the format begins after the colon and one space. The escapes are
// \n (line break), \t (tab), \\, \{ and \}. The placeholders are
//   {content}   the message
//   {context}   only in the line `user_with_context`, which replaces `user` for messages with a context. Without such
//               a line, the context follows the message after a blank line
//   {system}    only in the user lines: the preceding system message, formatted by its own line, or nothing. Without
//               this placeholder, a system message is written where it stands in the conversation
//   {stop}      only in the line `assistant`: the loss ends here (without it, at the end of the line). The loss begins
//               at {content}
//   {bos}       the begin-of-document token, if the tokenizer has one
//   {eos}       the end-of-document token
//   {NAME}      any other name: the token of that name, such as {<|im_end|>}. A tokenizer without that token encodes
//               the name as text
// `begin` is written once, before the first message. `trim: true` strips white space from both ends of messages.
// Everything after the last token in the loss is dropped, because it does not contribute to the loss.
//
// Only placeholders become special tokens: the text of templates and messages is encoded as plain text, even where it
// contains the name of a special token. Text between special tokens is encoded in one call, but split where the loss
// begins and ends, because generation starts at the end of the prompt.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/chat/conversation.h"
#include "text/tokenizer.h"

namespace te::text {

class ChatTemplate {
 public:
  /// Names of the built-in templates: chatml, llama2, llama3, alpaca, plain.
  static std::vector<std::string> builtin_names();
  /// spec: the name of a built-in template or the path of a file. UserError for anything else, and "FILE:LINE: ..."
  /// for a file with a syntax error.
  static ChatTemplate load(const std::string& spec);
  static ChatTemplate parse(const std::string& name, const std::string& text);

  const std::string& name() const { return name_; }
  /// The names in braces that denote tokens, such as "<|im_end|>".
  std::vector<std::string> token_names() const;

  struct Encoded {
    std::vector<int32_t> tokens;
    std::vector<int32_t> mask;  ///< 1 for tokens in the loss
    bool cut = false;           ///< at an empty response; see encode()

    /// Drops the tokens after the last one in the loss.
    void end_with_loss();
  };
  /// Encodes the conversation, up to the first empty response (training on it would teach empty replies). The result
  /// is empty if there is no response. UserError "PLACE: ..." for a role that the template lacks, and for a system
  /// message where the template does not allow one. Thread safe.
  Encoded encode(const Conversation& conversation, const Tokenizer& tokenizer,
                 const std::string& place) const;

  struct End {
    std::optional<int32_t> token;
    std::string text;  ///< only without a token
  };
  /// What ends the assistant's message: the first special token in the loss after {content}, else the text in the loss
  /// after it. White space ends nothing, because messages may contain it.
  End end_of_reply(const Tokenizer& tokenizer) const;

 private:
  enum class Kind { kText, kContent, kContext, kSystem, kStop, kBegin, kEnd, kToken };
  struct Part {
    Kind kind;
    std::string text;  // for kText and kToken
  };
  using Line = std::vector<Part>;
  class Writer;

  Line parse_line(const std::string& place, std::string_view role, std::string_view text) const;
  void check(const std::string& place);
  const Line& line_of(const Message& message, const std::string& place) const;
  void write(const Message& message, const Message* system, const std::string& place, Writer& writer) const;

  std::string name_;
  std::map<std::string, Line, std::less<>> lines_;
  bool trim_ = false;
  bool system_inside_user_ = false;
};

}  // namespace te::text
