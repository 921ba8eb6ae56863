#include "generate/generator.h"

#include <memory>

#include "core/clock.h"
#include "core/error.h"
#include "generate/text_stream.h"

namespace te::generate {

struct Generator::Sequence {
  size_t index = 0;  ///< of the prompt
  int64_t slot = 0;  ///< in the decoder
  Completion* result = nullptr;
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
  // Without a begin-of-document token, documents in training start after the end-of-document token of the previous one.
  if (tokens.empty()) tokens.push_back(tokenizer.begin_of_document().value_or(tokenizer.end_of_document()));
  for (const int32_t token : tokens) {
    if (token >= vocab_size)
      user_error(
          "tokenizer {}: token {} of the prompt is outside the model's vocabulary of {}; give the tokenizer "
          "of the model with --tokenizer",
          tokenizer.name(), token, vocab_size);
  }
  const auto length = static_cast<int64_t>(tokens.size());
  if (length >= max_length)
    user_error(
        "the prompt has {} tokens, but the model's context of {} must have space for at least one more; "
        "shorten the prompt",
        length, max_length);
  return tokens;
}

std::span<const int32_t> Generator::text_part(const text::Tokenizer& tokenizer,
                                              std::span<const int32_t> prompt) {
  const bool marked = !prompt.empty() && (prompt[0] == tokenizer.begin_of_document() ||
                                          prompt[0] == tokenizer.end_of_document());
  return prompt.subspan(marked ? 1 : 0);
}

int32_t Generator::choose(const Sequence& sequence, std::span<const float> logits) {
  const Completion& result = *sequence.result;
  if (options_.sampling.repetition_penalty != 1.0) {
    penalized_.assign(logits.begin(), logits.end());
    penalize_repetitions(penalized_, options_.sampling.repetition_penalty, {result.prompt, result.tokens});
    logits = penalized_;
  }
  return sample(logits, options_.sampling, sequence.index, result.tokens.size());
}

// Adds a token; returns false if the sequence has ended.
bool Generator::accept(Sequence& sequence, int32_t token, const OnText& on_text) const {
  Completion& result = *sequence.result;
  result.tokens.push_back(token);
  const auto end = [&](FinishReason finish_reason) {
    result.finish_reason = finish_reason;
    sequence.done = true;
  };
  std::string text;
  if (options_.ends.contains(token)) {
    end(FinishReason::end_token);
  } else {
    if (token < tokenizer_.vocab_size()) text = sequence.text->add(token);
    if (sequence.text->stopped()) end(FinishReason::stop_string);
    const auto count = static_cast<int64_t>(result.tokens.size());
    if (!sequence.done && count >= options_.max_tokens) end(FinishReason::max_tokens);
    if (!sequence.done && static_cast<int64_t>(result.prompt.size()) + count >= decoder_.max_length())
      end(FinishReason::context);
  }
  if (sequence.done) text += sequence.text->finish();
  result.text += text;
  if (on_text) on_text(sequence.index, text, sequence.done);
  return !sequence.done;
}

void Generator::interrupt(Sequence& sequence, const OnText& on_text) {
  const std::string text = sequence.text->finish();
  sequence.result->finish_reason = FinishReason::interrupted;
  sequence.result->text += text;
  if (on_text) on_text(sequence.index, text, true);
}

// Runs the next pass: the prompts of new sequences, the last tokens of the others.
std::span<const float> Generator::append(const Context& context,
                                         const std::vector<std::unique_ptr<Sequence>>& running) {
  const double start = now_seconds();
  std::vector<Continuation> next;
  int64_t prompt_tokens = 0;
  for (const auto& sequence : running) {
    const Completion& result = *sequence->result;
    if (result.tokens.empty()) {
      decoder_.reset(sequence->slot);
      prompt_tokens += static_cast<int64_t>(result.prompt.size());
      next.push_back({sequence->slot, result.prompt});
    } else {
      next.push_back({sequence->slot, std::span(result.tokens).last(1)});
    }
  }
  const std::span<const float> logits = decoder_.append(context, next);
  timing_.add_pass(prompt_tokens, now_seconds() - start);
  return logits;
}

std::vector<Completion> Generator::run(const Context& context,
                                       const std::vector<std::vector<int32_t>>& prompts,
                                       const OnText& on_text, const volatile std::sig_atomic_t* stop,
                                       const OnDone& on_done) {
  std::vector<Completion> results(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) results[i].prompt = prompts[i];
  if (options_.max_tokens == 0) return results;
  std::vector<std::unique_ptr<Sequence>> running;
  std::vector<int64_t> free;
  for (int64_t slot = decoder_.batch(); slot-- > 0;) free.push_back(slot);
  size_t waiting = 0;
  const auto vocab = static_cast<size_t>(decoder_.vocab_size());
  for (;;) {
    for (; waiting < prompts.size() && !free.empty(); ++waiting, free.pop_back()) {
      running.push_back(std::make_unique<Sequence>(Sequence{
          waiting, free.back(), &results[waiting],
          std::make_unique<TextStream>(tokenizer_, text_part(tokenizer_, prompts[waiting]), options_.stops),
          false}));
    }
    if (running.empty()) break;
    const std::span<const float> logits = append(context, running);
    const double start = now_seconds();
    std::vector<std::unique_ptr<Sequence>> unfinished;
    for (size_t i = 0; i < running.size(); ++i) {
      Sequence& sequence = *running[i];
      const int32_t token = choose(sequence, logits.subspan(i * vocab, vocab));
      ++timing_.tokens;
      if (accept(sequence, token, on_text)) {
        unfinished.push_back(std::move(running[i]));
      } else {
        free.push_back(sequence.slot);
        if (on_done) on_done(sequence.index, *sequence.result);
      }
    }
    running = std::move(unfinished);
    timing_.seconds += now_seconds() - start;
    if (stop == nullptr || *stop == 0) continue;
    for (const auto& sequence : running) {
      interrupt(*sequence, on_text);
      if (on_done) on_done(sequence->index, *sequence->result);
    }
    break;
  }
  return results;
}

}  // namespace te::generate
