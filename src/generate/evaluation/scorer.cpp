#include "generate/evaluation/scorer.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace te::generate {
namespace {

constexpr int64_t kWorthCopying = 16;  // tokens; a prefix needs two copies per layer and sequence

/// Length of the prefix that all requests of a group share. It excludes scored tokens and the token before the first
/// one: the output at that token scores the first token, so each request runs it.
int64_t shared_tokens(const RequestGroup& group) {
  if (group.size() < 2) return 0;
  int64_t shared = group[0].inputs() - group[0].scored;
  for (const TokenRequest& request : group) {
    shared = std::min(shared, request.inputs() - request.scored);
    const auto first = group[0].tokens.begin();
    shared = std::min<int64_t>(
        shared,
        std::mismatch(first, first + shared, request.tokens.begin(), request.tokens.begin() + shared).first -
            first);
  }
  return shared;
}

/// Length of the prefix that the shared prefixes of all groups have in common: the few-shot examples of a subject.
int64_t common_tokens(const std::vector<RequestGroup>& groups, std::span<const size_t> members,
                      const std::vector<int64_t>& shared) {
  const std::vector<int32_t>& first = groups[members[0]][0].tokens;
  int64_t common = shared[0];
  for (size_t i = 1; i < members.size() && common > 0; ++i) {
    const auto end = first.begin() + std::min(common, shared[i]);
    common = std::mismatch(first.begin(), end, groups[members[i]][0].tokens.begin()).first - first.begin();
  }
  return common;
}

int64_t longest(const RequestGroup& group) {
  int64_t result = 0;
  for (const TokenRequest& request : group) result = std::max(result, request.inputs());
  return result;
}

/// Groups that run as one batch, each in its own sequence of the cache.
class Batch {
 public:
  Batch(Decoder& decoder, const Context& context, const std::vector<RequestGroup>& groups,
        std::span<const size_t> members, std::vector<std::vector<RequestScore>>& scores)
      : decoder_(decoder), context_(context), groups_(groups), members_(members), scores_(scores) {}

  /// Returns the number of tokens that went through the model.
  int64_t run() {
    size_t max_size = 0;
    for (const size_t member : members_) {
      const RequestGroup& group = groups_[member];
      shared_.push_back(shared_tokens(group));
      scores_[member].resize(group.size());
      max_size = std::max(max_size, group.size());
    }
    // 1. Run the prefix of each group once for its requests, and a long common prefix once for all groups.
    int64_t common = common_tokens(groups_, members_, shared_);
    if (members_.size() < 2 || common < kWorthCopying) common = 0;
    if (common > 0) share(common);
    std::vector<ScoredContinuation> next;
    for (size_t i = 0; i < members_.size(); ++i) {
      const std::span<const int32_t> tokens(groups_[members_[i]][0].tokens);
      if (shared_[i] > common)
        next.push_back({static_cast<int64_t>(i),
                        tokens.subspan(static_cast<size_t>(common), static_cast<size_t>(shared_[i] - common)),
                        {}});
    }
    append(next);
    // 2. Run the rest of the requests: one request of every group per pass.
    for (size_t which = 0; which < max_size; ++which) step(which);
    return given_;
  }

 private:
  std::vector<TokenScore> append(const std::vector<ScoredContinuation>& next) {
    for (const ScoredContinuation& part : next) given_ += static_cast<int64_t>(part.tokens.size());
    return next.empty() ? std::vector<TokenScore>{} : decoder_.score(context_, next);
  }
  void share(int64_t common) {
    append({{0, std::span(groups_[members_[0]][0].tokens).first(static_cast<size_t>(common)), {}}});
    std::vector<int64_t> others(members_.size() - 1);
    std::iota(others.begin(), others.end(), int64_t{1});
    decoder_.copy_prefix(context_, 0, others, common);
  }
  void step(size_t which) {
    std::vector<ScoredContinuation> next;
    for (size_t i = 0; i < members_.size(); ++i) {
      const RequestGroup& group = groups_[members_[i]];
      if (which >= group.size()) continue;
      const TokenRequest& request = group[which];
      std::vector<RequestScore>& scores = scores_[members_[i]];
      // Equal choices tie: another pass could round their score differently.
      const auto equal = std::find_if(group.begin(), group.end(), [&](const TokenRequest& other) {
        return other.scored == request.scored && other.tokens == request.tokens;
      });
      if (const auto first = static_cast<size_t>(equal - group.begin()); first < which) {
        scores[which] = scores[first];
        continue;
      }
      const std::span<const int32_t> tokens(request.tokens);
      decoder_.truncate(static_cast<int64_t>(i), shared_[i]);
      next.push_back({static_cast<int64_t>(i),
                      tokens.subspan(static_cast<size_t>(shared_[i]),
                                     static_cast<size_t>(request.inputs() - shared_[i])),
                      tokens.last(static_cast<size_t>(request.scored))});
    }
    const std::vector<TokenScore> tokens = append(next);
    size_t at = 0;
    for (const ScoredContinuation& part : next) {
      RequestScore& score = scores_[members_[static_cast<size_t>(part.sequence)]][which];
      for (size_t t = 0; t < part.targets.size(); ++t, ++at) {
        score.log_probability += tokens[at].log_probability;
        score.is_argmax = score.is_argmax && tokens[at].is_argmax;
      }
    }
  }

  Decoder& decoder_;
  const Context& context_;
  const std::vector<RequestGroup>& groups_;
  std::span<const size_t> members_;
  std::vector<std::vector<RequestScore>>& scores_;
  std::vector<int64_t> shared_;
  int64_t given_ = 0;
};

}  // namespace

int64_t longest_inputs(const std::vector<RequestGroup>& groups) {
  int64_t result = 0;
  for (const RequestGroup& group : groups) result = std::max(result, longest(group));
  return result;
}

std::vector<std::vector<RequestScore>> score_groups(Decoder& decoder, const Context& context,
                                                    const std::vector<RequestGroup>& groups,
                                                    const ScorerOptions& options,
                                                    const std::function<void(int64_t done)>& done,
                                                    int64_t& given) {
  // Longest first, so that a cache that is too small fails immediately and progress is not overestimated.
  std::vector<size_t> order(groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order,
                           [&](size_t a, size_t b) { return longest(groups[a]) > longest(groups[b]); });
  std::vector<std::vector<RequestScore>> scores(groups.size());
  int64_t number = 0;
  for (size_t first = 0; first < order.size(); ++number) {
    const int64_t length = std::max<int64_t>(1, longest(groups[order[first]]));
    const int64_t fitting = std::min(options.batch, options.cache_tokens / length);
    TE_CHECK(fitting > 0, "a request has {} tokens, the cache has space for {}", length,
             options.cache_tokens);
    const size_t count = std::min(static_cast<size_t>(fitting), order.size() - first);
    if (number % options.replicas == options.replica) {
      decoder.resize_cache(static_cast<int64_t>(count), length);
      given += Batch(decoder, context, groups, std::span(order).subspan(first, count), scores).run();
    }
    first += count;
    if (done) done(static_cast<int64_t>(first));
  }
  return scores;
}

}  // namespace te::generate
