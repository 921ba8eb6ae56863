// A conversation with a model: turns of the user become prompts by a chat template, and what was said before stays in
// the cache of keys and values.
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

/// The built-in chat template whose special tokens a tokenizer has; UserError when none is.
std::string default_chat_template(const text::Tokenizer& tokenizer);

/// What a model is given to answer, and the token after which the template ends the answer; none where it has none.
struct ChatPrompt {
  std::vector<int32_t> tokens;
  std::optional<int32_t> turn_end;
};

/// The conversation up to where the assistant's next message begins. It ends with a message of the user.
ChatPrompt chat_prompt(const text::Conversation& conversation, const text::ChatTemplate& chat,
                       const text::Tokenizer& tokenizer);

/// The same by the model's own template.
ChatPrompt chat_prompt(const text::Conversation& conversation, const text::ChatTurns& turns,
                       const text::Tokenizer& tokenizer);

/// Makes prompts of conversations by one of the two.
using ChatPrompter = std::function<ChatPrompt(const text::Conversation&)>;

struct ChatOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 1024;  ///< of a reply
  EndTokens ends;             ///< of the model; the template's end of a turn ends a reply, too
  std::string system;         ///< a system message before the conversation; empty: none
};

class Chat {
 public:
  Chat(Decoder& decoder, const text::Tokenizer& tokenizer, ChatPrompter prompter, ChatOptions options);

  /// The reply to the user's next message; on_text is given its parts as they become certain. A reply without text
  /// leaves the conversation as it was. UserError when the conversation is longer than the context. Collective among
  /// tensor ranks.
  std::string reply(const Context& context, const std::string& message,
                    const std::function<void(const std::string&)>& on_text = {},
                    const volatile std::sig_atomic_t* stop = nullptr);
  const text::Conversation& conversation() const { return conversation_; }
  FinishReason finish_reason() const { return finish_reason_; }  ///< of the last reply
  int64_t reused_tokens() const { return reused_; }         ///< of the last prompt, that were in the cache
  int64_t prompt_tokens() const { return prompt_tokens_; }  ///< of the last prompt

 private:
  std::span<const float> begin(const Context& context, const std::vector<int32_t>& prompt);
  int32_t choose(std::span<const float> logits, uint64_t position);

  Decoder& decoder_;
  const text::Tokenizer& tokenizer_;
  ChatPrompter prompter_;
  ChatOptions options_;
  text::Conversation conversation_;
  std::vector<int32_t> cached_;  ///< tokens whose keys and values the decoder has
  std::vector<float> penalized_;
  uint64_t turn_ = 0;
  FinishReason finish_reason_ = FinishReason::end_token;
  int64_t reused_ = 0, prompt_tokens_ = 0;
};

}  // namespace te::generate
