// Continues several prompts at a time, each until an end token, a stop string or max_tokens. When one ends, the next
// prompt takes its slot.
#pragma once

#include <csignal>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "generate/decoder.h"
#include "generate/end_tokens.h"
#include "generate/sampler.h"
#include "text/tokenizer.h"

namespace te::generate {

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 128;        ///< per prompt
  std::vector<std::string> stops;  ///< strings that end a continuation
  EndTokens ends;                  ///< tokens that end a continuation
  /// Prompts start with the tokenizer's begin-of-document token, if it has one; begin_token.h reads the default from
  /// the tokenizer's files. An empty prompt always gets that token.
  bool begin_of_document = false;
};

enum class FinishReason : uint8_t { end_token, stop_string, max_tokens, context, interrupted };
TE_NAMES(FinishReason, "end token", "stop string", "max tokens", "context full", "interrupted")
using te::to_string;

struct Completion {
  std::string text;                     ///< valid UTF-8; without a stop string
  std::vector<int32_t> prompt, tokens;  ///< tokens: generated tokens, including the end token
  FinishReason finish_reason = FinishReason::max_tokens;
};

struct Timing {
  int64_t prompt_tokens = 0, tokens = 0;
  double prompt_seconds = 0, seconds = 0;  ///< time of passes with prompt tokens, and of all others
  int64_t passes = 0;                      ///< number of the others

  /// Adds a pass that took `time` seconds.
  void add_pass(int64_t tokens_of_prompts, double time) {
    prompt_tokens += tokens_of_prompts;
    (tokens_of_prompts > 0 ? prompt_seconds : seconds) += time;
    if (tokens_of_prompts == 0) ++passes;
  }
};

class Generator {
 public:
  Generator(Decoder& decoder, const text::Tokenizer& tokenizer, GenerateOptions options)
      : decoder_(decoder), tokenizer_(tokenizer), options_(std::move(options)) {}

  /// The tokens of a prompt. UserError if a token is outside the model's vocabulary, or if the prompt leaves no space
  /// in a context of max_length tokens.
  static std::vector<int32_t> encode(const text::Tokenizer& tokenizer, const std::string& prompt,
                                     const GenerateOptions& options, int64_t vocab_size, int64_t max_length);

  /// Receives the text of a prompt's continuation as soon as it cannot change; `last`: the text is complete.
  using OnText = std::function<void(size_t prompt, const std::string& text, bool last)>;
  /// Receives a prompt's result as soon as it is complete or interrupted.
  using OnDone = std::function<void(size_t prompt, const Completion& result)>;
  /// Continues all prompts, decoder.batch() at a time. A prompt's result depends on its index and the seed, not on
  /// other prompts (except with FP8, see decoder.h). `stop`: set to 1 by a signal handler. Collective among the ranks
  /// of the model; on_text may be empty on some of them.
  std::vector<Completion> run(const Context& context, const std::vector<std::vector<int32_t>>& prompts,
                              const OnText& on_text = {}, const volatile std::sig_atomic_t* stop = nullptr,
                              const OnDone& on_done = {});
  const Timing& timing() const { return timing_; }
  /// The prompt without the token that encode() may prepend to its text.
  static std::span<const int32_t> text_part(const text::Tokenizer& tokenizer,
                                            std::span<const int32_t> prompt);

 private:
  struct Sequence;
  std::span<const float> append(const Context& context,
                                const std::vector<std::unique_ptr<Sequence>>& running);
  int32_t choose(const Sequence& sequence, std::span<const float> logits);
  bool accept(Sequence& sequence, int32_t token, const OnText& on_text) const;
  static void interrupt(Sequence& sequence, const OnText& on_text);

  Decoder& decoder_;
  const text::Tokenizer& tokenizer_;
  GenerateOptions options_;
  Timing timing_;
  std::vector<float> penalized_;  ///< logits of one sequence
};

}  // namespace te::generate
