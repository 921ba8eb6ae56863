// Beam search, by the rules of transformers' generate(num_beams): the same candidates, scores and ends, so that the
// same logits give the same tokens.
//
// At each token the num_beams best running beams have max(2, 1 + end tokens) * num_beams best continuations together:
// enough that num_beams of them do not end. Those among the first num_beams that end (an end token, or the last allowed
// token) become hypotheses, with the score
//
//   sum of the tokens' log-probabilities / (number of generated tokens, the end included) ^ length_penalty,
//
// of which the num_beams best are kept; the num_beams best that do not end run on. A search stops when its last token
// was allowed, or by early_stopping.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "generate/decoder.h"
#include "generate/generator.h"

namespace te::generate {

/// When a search whose num_beams hypotheses are complete stops.
enum class EarlyStopping : uint8_t {
  off,    ///< when the best running beam, ended now, would not come among them (transformers' False)
  on,     ///< at once (True)
  never,  ///< when no running beam can come among them, however long it becomes ("never")
};

struct BeamOptions {
  int64_t num_beams = 1;
  double length_penalty = 1.0;  ///< above 0 favours long texts, below 0 short ones
  EarlyStopping early_stopping = EarlyStopping::off;
};

/// The best continuations of a step that are looked at.
inline int64_t num_candidates(const BeamOptions& options, const EndTokens& ends) {
  return std::max<int64_t>(2, 1 + static_cast<int64_t>(ends.size())) * options.num_beams;
}

/// A sequence of a search, without its prompt.
struct Beam {
  std::vector<int32_t> tokens;
  double score = 0.0;  ///< running: the sum of log-probabilities; a hypothesis: the score above
};

/// The search of one prompt, apart from the model.
class Beams {
 public:
  /// `max_tokens`: to be generated, at least 1. `ends`: the tokens that end a sequence. Each token that is in the
  /// prompt or a beam has its log-probability changed by `repetition_penalty` (sampler.h).
  Beams(const BeamOptions& options, std::vector<int32_t> prompt, int64_t max_tokens, EndTokens ends,
        double repetition_penalty);

  /// The beams that run: one, without a token, at first; then num_beams.
  const std::vector<Beam>& running() const { return running_; }
  /// Of each running beam after advance(): which of the beams before it goes on.
  const std::vector<size_t>& parents() const { return parents_; }
  /// Takes the next token, from logits [running, vocab] of the running beams; vocab is at least
  /// num_candidates(). False when the search is over. UserError when a logit is not a number.
  bool advance(std::span<const float> logits);
  /// The best hypothesis, or the best running beam while there is none.
  const Beam& best() const { return hypotheses_.empty() ? running_.front() : hypotheses_.front(); }

 private:
  struct Continuation {
    size_t parent;
    int32_t token;
    double score;
  };
  std::vector<Continuation> continuations(std::span<const float> logits) const;
  void keep_hypotheses(std::span<const Continuation> continuations);
  bool can_improve() const;
  double normalized(double score, int64_t length) const;
  bool full() const { return hypotheses_.size() == static_cast<size_t>(options_.num_beams); }
  Beam extended(const Continuation& next) const;
  bool ends(const Continuation& next) const { return last_ || ends_.contains(next.token); }

  BeamOptions options_;
  std::vector<int32_t> prompt_;
  int64_t max_tokens_;
  EndTokens ends_;
  double repetition_penalty_;
  std::vector<Beam> running_, hypotheses_;  ///< best first
  std::vector<size_t> parents_;
  bool last_ = false;  ///< the next token is the last that is allowed
};

/// Continues prompts by beam search: decoder.batch() / num_beams of them at a time. The text is that of the best
/// hypothesis. options.sampling is read for its repetition penalty alone, options.stops must be empty. Tensor ranks
/// call this alike.
class BeamGenerator {
 public:
  BeamGenerator(Decoder& decoder, const text::Tokenizer& tokenizer, GenerateOptions options,
                BeamOptions beams);

  std::vector<Completion> run(const Context& context, const std::vector<std::vector<int32_t>>& prompts,
                              const volatile std::sig_atomic_t* stop = nullptr,
                              const Generator::OnDone& on_done = {});
  const Timing& timing() const { return timing_; }

 private:
  struct Search;
  std::span<const float> append(const Context& context, const std::vector<Search>& searches);
  void move_cache(const Context& context, Search& search);
  Completion finish(const Search& search, bool interrupted) const;

  Decoder& decoder_;
  const text::Tokenizer& tokenizer_;
  GenerateOptions options_;
  BeamOptions beams_;
  Timing timing_;
};

}  // namespace te::generate
