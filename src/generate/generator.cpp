#include "generate/generator.h"

#include <chrono>
#include <memory>

#include "core/error.h"
#include "generate/text_stream.h"

namespace te::generate {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

const char* to_string(Ending ending) {
  switch (ending) {
    case Ending::end_of_document:
      return "end of document";
    case Ending::stop_string:
      return "stop string";
    case Ending::max_tokens:
      return "max tokens";
    case Ending::context:
      return "context full";
    case Ending::interrupted:
      return "interrupted";
  }
  return "";
}

struct Generator::Sequence {
  size_t index = 0;  ///< of the prompt
  int64_t slot = 0;  ///< in the decoder
  Continued* result = nullptr;
  std::unique_ptr<TextStream> text;
  bool done = false;
};

std::vector<int32_t> Generator::encode(const text::Tokenizer& tokenizer, const std::string& prompt,
                                       const GenerateOptions& options, int64_t vocab_size,
                                       int64_t max_length) {
  std::vector<int32_t> tokens;
  if (options.begin_of_document && tokenizer.begin_of_document())
    tokens.push_back(*tokenizer.begin_of_document());
  tokenizer.encode(prompt, tokens);
  // A model without such a token has seen documents begin behind the end of others.
  if (tokens.empty()) tokens.push_back(tokenizer.end_of_document());
  for (const int32_t token : tokens) {
    if (token >= vocab_size)
      user_error(
          "tokenizer {}: token {} of the prompt is beyond the model's vocabulary of {}; --tokenizer must "
          "name "
          "the one the model was trained with",
          tokenizer.name(), token, vocab_size);
  }
  const auto length = static_cast<int64_t>(tokens.size());
  if (length >= max_length)
    user_error(
        "the prompt has {} tokens, and the model's context of {} must hold at least one more; shorten it",
        length, max_length);
  return tokens;
}

// The prompt without the tokens that encode() puts in front of its text.
std::span<const int32_t> Generator::text_part(std::span<const int32_t> prompt) const {
  const bool marked = !prompt.empty() && (prompt[0] == tokenizer_.begin_of_document() ||
                                          prompt[0] == tokenizer_.end_of_document());
  return prompt.subspan(marked ? 1 : 0);
}

// True when the sequence goes on.
bool Generator::accept(Sequence& sequence, int32_t token, const OnText& on_text) const {
  Continued& result = *sequence.result;
  result.tokens.push_back(token);
  const auto end = [&](Ending ending) {
    result.ending = ending;
    sequence.done = true;
  };
  std::string text;
  if (options_.stop_at_end && token == tokenizer_.end_of_document()) {
    end(Ending::end_of_document);
  } else {
    if (token < tokenizer_.vocab_size()) text = sequence.text->add(token);
    if (sequence.text->stopped()) end(Ending::stop_string);
    const auto count = static_cast<int64_t>(result.tokens.size());
    if (!sequence.done && count >= options_.max_tokens) end(Ending::max_tokens);
    if (!sequence.done && static_cast<int64_t>(result.prompt.size()) + count >= decoder_.max_length())
      end(Ending::context);
  }
  if (sequence.done) text += sequence.text->finish();
  result.text += text;
  if (on_text) on_text(sequence.index, text, sequence.done);
  return !sequence.done;
}

void Generator::interrupt(Sequence& sequence, const OnText& on_text) {
  const std::string text = sequence.text->finish();
  sequence.result->ending = Ending::interrupted;
  sequence.result->text += text;
  if (on_text) on_text(sequence.index, text, true);
}

void Generator::run_batch(const Context& context, std::vector<Sequence>& batch, const OnText& on_text,
                          const volatile std::sig_atomic_t* stop) {
  // 1. All prompts at once.
  double start = now_seconds();
  std::vector<Continuation> next;
  for (const Sequence& sequence : batch) {
    decoder_.reset(sequence.slot);
    next.push_back({sequence.slot, sequence.result->prompt});
    timing_.prompt_tokens += static_cast<int64_t>(sequence.result->prompt.size());
  }
  std::span<const float> logits = decoder_.append(context, next);
  timing_.prompt_seconds += now_seconds() - start;
  // 2. One token of each that goes on, again and again.
  start = now_seconds();
  std::vector<Sequence*> alive;
  for (Sequence& sequence : batch) alive.push_back(&sequence);
  const auto vocab = static_cast<size_t>(decoder_.vocab_size());
  for (;;) {
    std::vector<Sequence*> going_on;
    for (size_t i = 0; i < alive.size(); ++i) {
      const std::vector<int32_t>& tokens = alive[i]->result->tokens;
      const int32_t token =
          sample(logits.subspan(i * vocab, vocab), options_.sampling, alive[i]->index, tokens.size());
      ++timing_.tokens;
      if (accept(*alive[i], token, on_text)) going_on.push_back(alive[i]);
    }
    alive = std::move(going_on);
    if (alive.empty()) break;
    if (stop != nullptr && *stop != 0) {
      for (Sequence* sequence : alive) interrupt(*sequence, on_text);
      break;
    }
    next.clear();
    for (const Sequence* sequence : alive)
      next.push_back({sequence->slot, std::span(sequence->result->tokens).last(1)});
    logits = decoder_.append(context, next);
  }
  timing_.seconds += now_seconds() - start;
}

std::vector<Continued> Generator::run(const Context& context,
                                      const std::vector<std::vector<int32_t>>& prompts, const OnText& on_text,
                                      const volatile std::sig_atomic_t* stop) {
  std::vector<Continued> results(prompts.size());
  if (options_.max_tokens == 0) {
    for (size_t i = 0; i < prompts.size(); ++i) results[i].prompt = prompts[i];
    return results;
  }
  const auto size = static_cast<size_t>(decoder_.batch());
  for (size_t first = 0; first < prompts.size(); first += size) {
    std::vector<Sequence> batch;
    for (size_t i = first; i < std::min(first + size, prompts.size()); ++i) {
      results[i].prompt = prompts[i];
      batch.push_back({i, static_cast<int64_t>(i - first), &results[i],
                       std::make_unique<TextStream>(tokenizer_, text_part(prompts[i]), options_.stops),
                       false});
    }
    run_batch(context, batch, on_text, stop);
    if (stop != nullptr && *stop != 0) break;
  }
  return results;
}

}  // namespace te::generate
