// Encodes a conversation to tokens and a loss mask. Messages become runs of text and single tokens, each inside or
// outside the loss; adjacent runs of text with the same mask value are encoded together.
#include <algorithm>

#include "core/error.h"
#include "text/chat/chat_template.h"
#include "text/tokenizers/normalizer_step.h"
#include "text/tokenizers/utf8.h"

namespace te::text {
namespace {

/// As in Python's strip() and Jinja's trim.
std::string_view trimmed_text(std::string_view text) {
  return stripped(text, true, true, is_python_space);
}

}  // namespace

class ChatTemplate::Writer {
 public:
  explicit Writer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// A reply is encoded separately from the text around it, also outside the loss: generation starts at its beginning.
  void begin_reply(bool in_loss) {
    flush();
    in_loss_ = in_loss;
    in_reply_ = true;
  }
  void end_reply() {
    if (in_reply_) flush();
    in_loss_ = in_reply_ = false;
  }
  void text(std::string_view text) { text_ += text; }
  void token(int32_t token) {
    flush();
    result_.tokens.push_back(token);
    mark();
  }
  void token(const std::string& name) {
    if (const auto id = tokenizer_.find_token(name)) {
      token(*id);
    } else {
      text(name);
    }
  }
  void begin_of_document() {
    if (const auto id = tokenizer_.begin_of_document()) token(*id);
  }
  void end_of_document() { token(tokenizer_.end_of_document()); }

  Encoded finish() {
    flush();
    result_.end_with_loss();
    return std::move(result_);
  }

 private:
  void flush() {
    if (!text_.empty()) tokenizer_.encode(text_, result_.tokens, SpecialTokens::kAsText);
    text_.clear();
    mark();
  }
  void mark() { result_.mask.resize(result_.tokens.size(), in_loss_ ? 1 : 0); }

  const Tokenizer& tokenizer_;
  Encoded result_;
  std::string text_;
  bool in_loss_ = false, in_reply_ = false;
};

void ChatTemplate::Encoded::end_with_loss() {
  while (!mask.empty() && mask.back() == 0) mask.pop_back();
  tokens.resize(mask.size());
}

const ChatTemplate::Line& ChatTemplate::line_of(const Message& message, const std::string& place) const {
  const auto with_context = lines_.find("user_with_context");
  if (!message.context.empty() && with_context != lines_.end()) return with_context->second;
  const auto line = lines_.find(message.role);
  if (line != lines_.end() && message.role != "begin" && message.role != "user_with_context") {
    return line->second;
  }
  user_error("{}: the chat template {} has no line for the role `{}`; add one to a template of your own",
             place, name_, message.role);
}

void ChatTemplate::write(const Message& message, const Message* system, const std::string& place,
                         Writer& writer) const {
  const auto text = [&](const std::string& raw) { return trim_ ? trimmed_text(raw) : std::string_view(raw); };
  for (const Part& part : line_of(message, place)) {
    switch (part.kind) {
      case Kind::kText:
        writer.text(part.text);
        break;
      case Kind::kContent:
        if (message.role == "assistant") writer.begin_reply(message.in_loss);
        writer.text(text(message.content));
        if (!message.context.empty() && !lines_.contains("user_with_context")) {
          writer.text("\n\n");
          writer.text(text(message.context));
        }
        break;
      case Kind::kContext:
        writer.text(text(message.context));
        break;
      case Kind::kSystem:
        if (system != nullptr) write(*system, nullptr, place, writer);
        break;
      case Kind::kStop:
        writer.end_reply();
        break;
      case Kind::kBegin:
        writer.begin_of_document();
        break;
      case Kind::kEnd:
        writer.end_of_document();
        break;
      case Kind::kToken:
        writer.token(part.text);
        break;
    }
  }
  writer.end_reply();
}

ChatTemplate::Encoded ChatTemplate::encode(const Conversation& conversation, const Tokenizer& tokenizer,
                                           const std::string& place) const {
  Writer writer(tokenizer);
  if (const auto begin = lines_.find("begin"); begin != lines_.end()) {
    for (const Part& part : begin->second) {
      if (part.kind == Kind::kText) writer.text(part.text);
      if (part.kind == Kind::kToken) writer.token(part.text);
      if (part.kind == Kind::kBegin) writer.begin_of_document();
      if (part.kind == Kind::kEnd) writer.end_of_document();
    }
  }
  bool cut = false;
  const Message* system = nullptr;  // a system message that the next user message will contain
  for (const Message& message : conversation) {
    cut = message.role == "assistant" && trimmed_text(message.content).empty();
    if (cut) break;
    const bool deferred = system_inside_user_ && message.role == "system";
    if (system != nullptr && (deferred || message.role != "user")) {
      user_error(
          "{}: a message of the role `{}` follows a system message; the chat template {} writes system "
          "messages inside user messages, so a user message must follow",
          place, message.role, name_);
    }
    if (!deferred) write(message, system, place, writer);
    system = deferred ? &message : nullptr;
  }
  Encoded encoded = writer.finish();
  encoded.cut = cut;
  return encoded;
}

ChatTemplate::End ChatTemplate::end_of_reply(const Tokenizer& tokenizer) const {
  const Line& line = lines_.find("assistant")->second;
  End end;
  for (auto part = std::ranges::find(line, Kind::kContent, &Part::kind) + 1;
       part != line.end() && part->kind != Kind::kStop; ++part) {
    if (part->kind == Kind::kBegin) end.token = tokenizer.begin_of_document();
    if (part->kind == Kind::kEnd) end.token = tokenizer.end_of_document();
    if (part->kind == Kind::kToken) end.token = tokenizer.find_token(part->text);
    if (end.token) return {end.token, ""};
    if (part->kind == Kind::kText || part->kind == Kind::kToken) end.text += part->text;
  }
  if (trimmed_text(end.text).empty()) end.text.clear();
  return end;
}

}  // namespace te::text
