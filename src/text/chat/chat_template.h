// How a conversation is written down for a model: a template in a few lines of text, no programming language.
//
//   # comment
//   trim: true
//   begin: {bos}
//   system: {<|im_start|>}system\n{content}{<|im_end|>}\n
//   user: {<|im_start|>}user\n{content}{<|im_end|>}\n
//   assistant: {<|im_start|>}assistant\n{content}{<|im_end|>}{stop}\n
//
// A line is a role and what a message of that role becomes; the text begins after the colon and one space.
// \n, \t, \\, \{ and \} are a line break, a tab and the characters themselves. In braces stand
//   {content}   the message
//   {context}   of the line `user_with_context`, which replaces `user` for messages with a context. Without such a
//               line the context follows the message after a blank line
//   {system}    of the line `user`: the system message before it as its own line has it, or nothing. Then
//               system messages stand nowhere else
//   {stop}      of the line `assistant`: the loss ends here (without it, at the end of the line). It begins at
//               {content}
//   {bos}       the token that begins a document, where the tokenizer has one
//   {eos}       the token that ends a document
//   {NAME}      anything else is the token of that name, such as {<|im_end|>}. A tokenizer without it encodes
//               the name as text
// `begin` comes once, before the first message. `trim: true` takes white space off both ends of messages.
// What comes after the last token in the loss is left out: there is nothing to learn from it.
//
// Special tokens stand in braces only: text of templates and messages never becomes one, whatever it says. Text
// between special tokens is encoded in one piece, apart from where the loss begins and ends, because that is
// where generation takes over from the prompt.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "text/chat/conversation.h"
#include "text/tokenizer.h"

namespace te::text {

class ChatTemplate {
 public:
  /// The templates that need no file: chatml, llama2, llama3, alpaca, plain.
  static std::vector<std::string> builtin_names();
  /// spec: the name of a built-in template, or the path of a file. UserError for anything else, and "FILE:LINE:
  /// ..." for a file that breaks the rules above.
  static ChatTemplate load(const std::string& spec);
  static ChatTemplate parse(const std::string& name, const std::string& text);

  const std::string& name() const { return name_; }
  /// Names in braces that are tokens, such as "<|im_end|>".
  std::vector<std::string> token_names() const;

  struct Encoded {
    std::vector<int32_t> tokens;
    std::vector<int32_t> mask;  ///< 1 for tokens in the loss

    /// Leaves out what follows the last token in the loss.
    void end_with_loss();
  };
  /// The conversation as tokens, up to an empty response if there is one: that teaches to say nothing. No
  /// tokens when there is no response. `place` is named by errors: UserError for a role that the template does
  /// not know, and for a system message where the template has no room for it. Thread safe.
  Encoded encode(const Conversation& conversation, const Tokenizer& tokenizer,
                 const std::string& place) const;

 private:
  enum class Kind { kText, kContent, kContext, kSystem, kStop, kBegin, kEnd, kToken };
  struct Part {
    Kind kind;
    std::string text;  // of kText and kToken
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
