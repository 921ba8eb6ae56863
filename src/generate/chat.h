// A conversation with a model: a chat template converts the user's turns to prompts, and earlier turns stay in the KV
// cache.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "generate/decoder.h"
#include "generate/generator.h"
#include "generate/sampler.h"
#include "text/chat/chat_template.h"
#include "text/chat/chat_turns.h"
#include "text/tokenizer.h"

namespace te::generate {

/// The built-in chat template whose special tokens are in the tokenizer. UserError if there is none.
std::string default_chat_template(const text::Tokenizer& tokenizer);

/// The prompt for a reply, and the token or text with which the template ends the reply, if any.
struct ChatPrompt {
  std::vector<int32_t> tokens;
  std::optional<int32_t> turn_end;
  std::string turn_end_text = {};  ///< empty: none
};

/// The tokens of the conversation up to the start of the assistant's next message. The conversation must end with a
/// user message.
ChatPrompt chat_prompt(const text::Conversation& conversation, const text::ChatTemplate& chat,
                       const text::Tokenizer& tokenizer);

/// The same with the model's chat template.
ChatPrompt chat_prompt(const text::Conversation& conversation, const text::ChatTurns& turns,
                       const text::Tokenizer& tokenizer);

/// Converts conversations to prompts by one of the two functions.
using ChatPrompter = std::function<ChatPrompt(const text::Conversation&)>;

struct ChatOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 1024;  ///< maximum length of a reply
  EndTokens ends;             ///< of the model; the template's end of turn also ends a reply
  std::string system;         ///< system message; empty: none
};

class Chat {
 public:
  Chat(Decoder& decoder, const text::Tokenizer& tokenizer, ChatPrompter prompter, ChatOptions options);

  /// The reply to the user's next message; streams its text to `on_text`. After an empty reply, the conversation does
  /// not include the message. UserError if the conversation is longer than the context. Collective among the ranks of
  /// the model.
  std::string reply(const Context& context, const std::string& message,
                    const std::function<void(const std::string&)>& on_text = {},
                    const volatile std::sig_atomic_t* stop = nullptr);
  const text::Conversation& conversation() const { return conversation_; }
  FinishReason finish_reason() const { return finish_reason_; }  ///< of the last reply
  int64_t reused_tokens() const { return reused_; }  ///< tokens of the last prompt that were in the cache
  int64_t prompt_tokens() const { return prompt_tokens_; }  ///< tokens of the last prompt

 private:
  std::span<const float> begin(const Context& context, const std::vector<int32_t>& prompt);
  int32_t choose(std::span<const float> logits, uint64_t position);

  Decoder& decoder_;
  const text::Tokenizer& tokenizer_;
  ChatPrompter prompter_;
  ChatOptions options_;
  text::Conversation conversation_;
  std::vector<int32_t> cached_;  ///< tokens whose keys and values are in the decoder's cache
  std::vector<float> penalized_;
  uint64_t turn_ = 0;
  FinishReason finish_reason_ = FinishReason::end_token;
  int64_t reused_ = 0, prompt_tokens_ = 0;
};

}  // namespace te::generate
