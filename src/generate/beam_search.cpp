#include "generate/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/clock.h"
#include "core/error.h"
#include "generate/sampler.h"
#include "generate/text_stream.h"

namespace te::generate {
namespace {

/// Log probabilities, in place; rounded to FP32, as in transformers.
void log_softmax(std::span<float> scores) {
  const float largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (const float score : scores) sum += std::exp(static_cast<double>(score) - largest);
  const double log_sum = std::log(sum);
  for (float& score : scores) score = static_cast<float>(static_cast<double>(score) - largest - log_sum);
}

}  // namespace

// --- one search --------------------------------------------------------------------------------------------

Beams::Beams(const BeamOptions& options, std::vector<int32_t> prompt, int64_t max_tokens, EndTokens ends,
             double repetition_penalty)
    : options_(options),
      prompt_(std::move(prompt)),
      max_tokens_(max_tokens),
      ends_(std::move(ends)),
      repetition_penalty_(repetition_penalty),
      running_(1),
      last_(max_tokens == 1) {
  TE_CHECK(options.num_beams > 0 && max_tokens > 0, "beam search: {} beams of {} tokens", options.num_beams,
           max_tokens);
}

double Beams::normalized(double score, int64_t length) const {
  return score / std::pow(static_cast<double>(length), options_.length_penalty);
}

Beam Beams::extended(const Continuation& next) const {
  Beam beam = running_[next.parent];
  beam.tokens.push_back(next.token);
  beam.score = next.score;
  return beam;
}

// The num_candidates() best continuations, best first; ties are ordered by beam, then by token.
std::vector<Beams::Continuation> Beams::continuations(std::span<const float> logits) const {
  const size_t vocab = logits.size() / running_.size();
  const auto wanted = static_cast<size_t>(num_candidates(options_, ends_));
  TE_CHECK(vocab >= wanted, "beam search: {} beams need a vocabulary of at least {} tokens, not {}",
           options_.num_beams, wanted, vocab);
  std::vector<Continuation> all;
  all.reserve(logits.size());
  for (size_t b = 0; b < running_.size(); ++b) {
    const auto row = logits.subspan(b * vocab, vocab);
    check_logits(row);
    std::vector<float> scores(row.begin(), row.end());
    log_softmax(scores);
    penalize_repetitions(scores, repetition_penalty_, {prompt_, running_[b].tokens});
    for (size_t token = 0; token < vocab; ++token)
      all.push_back({b, static_cast<int32_t>(token), running_[b].score + scores[token]});
  }
  const auto better = [](const Continuation& a, const Continuation& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
  };
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(wanted), all.end(), better);
  all.resize(wanted);
  return all;
}

void Beams::keep_hypotheses(std::span<const Continuation> continuations) {
  for (const Continuation& next : continuations.first(static_cast<size_t>(options_.num_beams))) {
    if (!ends(next)) continue;
    Beam beam = extended(next);
    beam.score = normalized(beam.score, static_cast<int64_t>(beam.tokens.size()));
    const auto place = std::upper_bound(hypotheses_.begin(), hypotheses_.end(), beam,
                                        [](const Beam& a, const Beam& b) { return a.score > b.score; });
    hypotheses_.insert(place, std::move(beam));
  }
  if (hypotheses_.size() > static_cast<size_t>(options_.num_beams))
    hypotheses_.resize(static_cast<size_t>(options_.num_beams));
}

// True if a running beam may still become one of the hypotheses. Longer texts have a lower log probability, but a
// length_penalty above 0 may compensate for that, so `never` assumes the maximum length.
bool Beams::can_improve() const {
  if (!full()) return true;
  const bool longest = options_.early_stopping == EarlyStopping::never && options_.length_penalty > 0.0;
  const auto length = longest ? max_tokens_ : static_cast<int64_t>(running_.front().tokens.size());
  return normalized(running_.front().score, length) > hypotheses_.back().score;
}

bool Beams::advance(std::span<const float> logits) {
  const std::vector<Continuation> all = continuations(logits);
  keep_hypotheses(all);
  if (last_) return false;
  std::vector<Beam> next;
  parents_.clear();
  for (const Continuation& continuation : all) {
    if (ends(continuation) || next.size() == static_cast<size_t>(options_.num_beams)) continue;
    next.push_back(extended(continuation));
    parents_.push_back(continuation.parent);
  }
  running_ = std::move(next);
  last_ = static_cast<int64_t>(running_.front().tokens.size()) + 1 >= max_tokens_;
  return can_improve() && !(options_.early_stopping == EarlyStopping::on && full());
}

// --- several searches --------------------------------------------------------------------------------------

struct BeamGenerator::Search {
  size_t index;                ///< of the prompt
  std::vector<int64_t> slots;  ///< sequences in the decoder: of the running beams, then free ones
  std::vector<int32_t> prompt;
  Beams beams;
};

BeamGenerator::BeamGenerator(Decoder& decoder, const text::Tokenizer& tokenizer, GenerateOptions options,
                             BeamOptions beams)
    : decoder_(decoder), tokenizer_(tokenizer), options_(std::move(options)), beams_(beams) {
  TE_CHECK(options_.stops.empty(), "beam search does not support stop strings");
  TE_CHECK(decoder.batch() >= beams.num_beams, "beam search: {} beams in a decoder of {} sequences",
           beams.num_beams, decoder.batch());
}

std::span<const float> BeamGenerator::append(const Context& context, const std::vector<Search>& searches) {
  const double start = now_seconds();
  std::vector<Continuation> next;
  int64_t prompt_tokens = 0;
  for (const Search& search : searches) {
    const std::vector<Beam>& running = search.beams.running();
    for (size_t i = 0; i < running.size(); ++i) {
      if (!running[i].tokens.empty()) {
        next.push_back({search.slots[i], std::span(running[i].tokens).last(1)});
        continue;
      }
      decoder_.reset(search.slots[i]);
      next.push_back({search.slots[i], search.prompt});
      prompt_tokens += static_cast<int64_t>(search.prompt.size());
    }
  }
  const std::span<const float> logits = decoder_.append(context, next);
  timing_.add_pass(prompt_tokens, now_seconds() - start);
  return logits;
}

// Each beam gets its parent's slot, or a copy of it in a free slot.
void BeamGenerator::move_cache(const Context& context, Search& search) {
  const std::vector<size_t>& parents = search.beams.parents();
  std::vector<int64_t> slots(parents.size(), -1);
  std::vector<bool> used(search.slots.size(), false);
  for (size_t i = 0; i < parents.size(); ++i) {
    if (used[parents[i]]) continue;
    slots[i] = search.slots[parents[i]];
    used[parents[i]] = true;
  }
  size_t free = 0;
  for (size_t i = 0; i < parents.size(); ++i) {
    if (slots[i] >= 0) continue;
    while (used[free]) ++free;
    used[free] = true;
    slots[i] = search.slots[free];
    const int64_t from = search.slots[parents[i]];
    decoder_.reset(slots[i]);
    decoder_.copy_prefix(context, from, std::span(&slots[i], 1), decoder_.length(from));
  }
  search.slots = std::move(slots);
}

Completion BeamGenerator::finish(const Search& search, bool interrupted) const {
  const Beam& best = search.beams.best();
  Completion result{.text = {}, .prompt = search.prompt, .tokens = best.tokens, .score = best.score};
  const bool ended = !best.tokens.empty() && options_.ends.contains(best.tokens.back());
  const auto length = static_cast<int64_t>(best.tokens.size());
  result.finish_reason = ended                           ? FinishReason::end_token
                         : length >= options_.max_tokens ? FinishReason::max_tokens
                         : interrupted                   ? FinishReason::interrupted
                                                         : FinishReason::context;
  TextStream text(tokenizer_, Generator::text_part(tokenizer_, search.prompt), {});
  for (const int32_t token : std::span(best.tokens).first(best.tokens.size() - (ended ? 1 : 0)))
    if (token < tokenizer_.vocab_size()) result.text += text.add(token);
  result.text += text.finish();
  return result;
}

std::vector<Completion> BeamGenerator::run(const Context& context,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const volatile std::sig_atomic_t* stop,
                                           const Generator::OnDone& on_done) {
  std::vector<Completion> results(prompts.size());
  const auto width = static_cast<size_t>(beams_.num_beams),
             vocab = static_cast<size_t>(decoder_.vocab_size());
  std::vector<std::vector<int64_t>> free(static_cast<size_t>(decoder_.batch()) / width);
  for (size_t i = 0; i < free.size(); ++i)
    for (size_t beam = 0; beam < width; ++beam) free[i].push_back(static_cast<int64_t>(i * width + beam));
  std::vector<Search> searches;
  size_t waiting = 0;
  const auto end_search = [&](const Search& search, bool interrupted) {
    results[search.index] = finish(search, interrupted);
    if (on_done) on_done(search.index, results[search.index]);
  };
  for (;;) {
    for (; waiting < prompts.size() && !free.empty(); ++waiting, free.pop_back()) {
      const auto room = decoder_.max_length() - static_cast<int64_t>(prompts[waiting].size());
      searches.push_back({waiting, free.back(), prompts[waiting],
                          Beams(beams_, prompts[waiting], std::min(options_.max_tokens, room), options_.ends,
                                options_.sampling.repetition_penalty)});
    }
    if (searches.empty()) break;
    std::span<const float> logits = append(context, searches);
    const double start = now_seconds();
    std::vector<Search> unfinished;
    for (Search& search : searches) {
      const size_t rows = search.beams.running().size();
      const bool first = search.beams.running().front().tokens.empty();
      const bool more = search.beams.advance(logits.first(rows * vocab));
      logits = logits.subspan(rows * vocab);
      timing_.tokens += static_cast<int64_t>(first ? width : rows);
      if (more) {
        move_cache(context, search);
        unfinished.push_back(std::move(search));
      } else {
        free.push_back(search.slots);
        end_search(search, false);
      }
    }
    searches = std::move(unfinished);
    timing_.seconds += now_seconds() - start;
    if (stop == nullptr || *stop == 0) continue;
    for (const Search& search : searches) end_search(search, true);
    break;
  }
  return results;
}

}  // namespace te::generate
