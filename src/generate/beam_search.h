// Beam search by the rules of transformers' generate(num_beams): candidates, scores and stopping rules are the same, so
// the same logits give the same tokens.
//
// For each token, the search selects the max(2, 1 + number of end tokens) * num_beams best continuations of the
// num_beams running beams, so that at least num_beams of them do not end. Continuations among the first num_beams that
// end (with an end token, or at max_tokens) become hypotheses with the score
//
//   sum of the tokens' log probabilities / (number of generated tokens, including the end token) ^ length_penalty.
//
// The num_beams best hypotheses are kept; the num_beams best continuations that do not end become the running beams. A
// search stops at max_tokens or by early_stopping.
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

/// When a search with num_beams complete hypotheses stops.
enum class EarlyStopping : uint8_t {
  off,  ///< if the best running beam would not be among the hypotheses if it ended now (transformers' False)
  on,   ///< immediately (True)
  never,  ///< if no running beam can become one of the hypotheses, whatever its length ("never")
};

struct BeamOptions {
  int64_t num_beams = 1;
  double length_penalty = 1.0;  ///< above 0 favors long texts, below 0 short ones
  EarlyStopping early_stopping = EarlyStopping::off;
};

/// Number of best continuations that a step selects.
inline int64_t num_candidates(const BeamOptions& options, const EndTokens& ends) {
  return std::max<int64_t>(2, 1 + static_cast<int64_t>(ends.size())) * options.num_beams;
}

/// A sequence of a search, without its prompt.
struct Beam {
  std::vector<int32_t> tokens;
  double score = 0.0;  ///< running beam: sum of log probabilities; hypothesis: the score above
};

/// The search for one prompt, independent of the model.
class Beams {
 public:
  /// `max_tokens`: maximum number of generated tokens, at least 1. `ends`: tokens that end a sequence.
  /// `repetition_penalty` changes the log probability of each token that is in the prompt or the beam (sampler.h).
  Beams(const BeamOptions& options, std::vector<int32_t> prompt, int64_t max_tokens, EndTokens ends,
        double repetition_penalty);

  /// The running beams: initially one without tokens, then num_beams.
  const std::vector<Beam>& running() const { return running_; }
  /// For each running beam after advance(): index of the earlier beam that it extends.
  const std::vector<size_t>& parents() const { return parents_; }
  /// Selects the next tokens from the logits [running, vocab] of the running beams; vocab must be at least
  /// num_candidates(). Returns false if the search has ended. UserError if a logit is NaN.
  bool advance(std::span<const float> logits);
  /// The best hypothesis, or the best running beam if there is none.
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
  bool last_ = false;  ///< the next token is the last one by max_tokens
};

/// Continues prompts by beam search, decoder.batch() / num_beams prompts at a time. The result is the best hypothesis.
/// Of options.sampling, only the repetition penalty is used; options.stops must be empty. Collective among the ranks of
/// the model.
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
