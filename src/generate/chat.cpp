#include "generate/chat.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "generate/text_stream.h"

namespace te::generate {
namespace {

constexpr const char* kPlace = "the conversation";

bool blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string::npos;
}

}  // namespace

std::string default_chat_template(const text::Tokenizer& tokenizer) {
  for (const std::string& name : text::ChatTemplate::builtin_names()) {
    const std::vector<std::string> tokens = text::ChatTemplate::load(name).token_names();
    if (!tokens.empty() && std::ranges::all_of(tokens, [&](const std::string& token) {
          return tokenizer.find_token(token).has_value();
        }))
      return name;
  }
  user_error(
      "--template: tokenizer {} does not have the special tokens of any built-in chat template; give the "
      "template that the model was trained with",
      tokenizer.name());
}

// The loss mask of a template marks where a message of the assistant starts.
ChatPrompt chat_prompt(const text::Conversation& conversation, const text::ChatTemplate& chat,
                       const text::Tokenizer& tokenizer) {
  text::Conversation answered = conversation;
  answered.push_back({"assistant", "x", ""});
  const text::ChatTemplate::Encoded all = chat.encode(answered, tokenizer, kPlace);
  size_t begin = all.mask.size();
  while (begin > 0 && all.mask[begin - 1] == 1) --begin;
  TE_CHECK(begin > 0 && begin < all.tokens.size(), "chat template {}: cannot find the start of a reply",
           chat.name());
  const auto [token, text] = chat.end_of_reply(tokenizer);
  return {{all.tokens.begin(), all.tokens.begin() + static_cast<std::ptrdiff_t>(begin)}, token, text};
}

ChatPrompt chat_prompt(const text::Conversation& conversation, const text::ChatTurns& turns,
                       const text::Tokenizer& tokenizer) {
  ChatPrompt prompt{turns.encode(conversation, tokenizer), {}};
  if (const int32_t end = turns.end(tokenizer); end >= 0) prompt.turn_end = end;
  return prompt;
}

Chat::Chat(Decoder& decoder, const text::Tokenizer& tokenizer, ChatPrompter prompter, ChatOptions options)
    : decoder_(decoder), tokenizer_(tokenizer), prompter_(std::move(prompter)), options_(std::move(options)) {
  if (!options_.system.empty()) conversation_.push_back({"system", options_.system, ""});
}

// Runs the tokens of the prompt that are not in the cache.
std::span<const float> Chat::begin(const Context& context, const std::vector<int32_t>& prompt) {
  prompt_tokens_ = static_cast<int64_t>(prompt.size());
  if (prompt_tokens_ >= decoder_.max_length())
    user_error(
        "the conversation has {} tokens, but the context of {} must have space for at least one more; start "
        "another conversation, or give a longer --context",
        prompt_tokens_, decoder_.max_length());
  for (const int32_t token : prompt)
    if (token >= decoder_.vocab_size())
      user_error("tokenizer {}: token {} is outside the model's vocabulary of {}", tokenizer_.name(), token,
                 decoder_.vocab_size());
  const auto [same, ignored] = std::ranges::mismatch(cached_, prompt);
  reused_ = std::min<int64_t>(same - cached_.begin(), prompt_tokens_ - 1);
  decoder_.truncate(0, reused_);
  cached_ = prompt;
  const std::vector<Continuation> next = {{0, std::span(prompt).subspan(static_cast<size_t>(reused_))}};
  return decoder_.append(context, next);
}

int32_t Chat::choose(std::span<const float> logits, uint64_t position) {
  penalized_.assign(logits.begin(), logits.end());
  penalize_repetitions(penalized_, options_.sampling.repetition_penalty, {cached_});
  return sample(penalized_, options_.sampling, turn_, position);
}

std::string Chat::reply(const Context& context, const std::string& message,
                        const std::function<void(const std::string&)>& on_text,
                        const volatile std::sig_atomic_t* stop) {
  conversation_.push_back({"user", message, ""});
  const ChatPrompt prompt = prompter_(conversation_);
  std::span<const float> logits = begin(context, prompt.tokens);
  std::vector<std::string> stops;
  if (!prompt.turn_end_text.empty()) stops.push_back(prompt.turn_end_text);
  TextStream stream(tokenizer_, prompt.tokens, stops);
  std::string text;
  const auto add = [&](const std::string& part) {
    text += part;
    if (on_text && !part.empty()) on_text(part);
  };
  for (int64_t count = 0;; ++count) {
    if (count >= options_.max_tokens || static_cast<int64_t>(cached_.size()) >= decoder_.max_length()) {
      finish_reason_ = count >= options_.max_tokens ? FinishReason::max_tokens : FinishReason::context;
      break;
    }
    const int32_t token = choose(logits, static_cast<uint64_t>(count));
    finish_reason_ = stop != nullptr && *stop != 0 ? FinishReason::interrupted : FinishReason::end_token;
    if (token == prompt.turn_end || options_.ends.contains(token) ||
        finish_reason_ == FinishReason::interrupted)
      break;
    if (token < tokenizer_.vocab_size()) add(stream.add(token));
    if (stream.stopped()) break;  // at the end of the turn
    cached_.push_back(token);
    const std::vector<Continuation> next = {{0, std::span(cached_).last(1)}};
    logits = decoder_.append(context, next);
  }
  add(stream.finish());
  ++turn_;
  if (blank(text))
    conversation_.pop_back();
  else
    conversation_.push_back({"assistant", text, ""});
  return text;
}

}  // namespace te::generate
