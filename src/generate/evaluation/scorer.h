// Runs token requests through a decoder. Requests of a group share a prefix (the question of several choices), which
// runs once, as does a prefix that several groups share (the few-shot examples of a subject). Groups of similar length
// form a batch. Equal requests of a group run once and have the same score.
#pragma once

#include <functional>
#include <vector>

#include "generate/decoder.h"
#include "generate/evaluation/requests.h"

namespace te::generate {

struct RequestScore {
  double log_probability = 0.0;  ///< sum over the scored tokens
  bool is_argmax = true;         ///< every scored token is the most probable one
};

/// Requests of one document.
using RequestGroup = std::vector<TokenRequest>;

struct ScorerOptions {
  int64_t batch = 1024;               ///< maximum number of groups per batch; the cache may limit it further
  int64_t cache_tokens = 0;           ///< capacity of the decoder's cache
  int64_t replica = 0, replicas = 1;  ///< this rank runs batches with number % replicas == replica
};

/// Number of tokens that the decoder's sequences must support.
int64_t longest_inputs(const std::vector<RequestGroup>& groups);

/// The score of every request of every group; entries of groups that other replicas run are empty. Calls `done` with
/// the number of groups done so far by all replicas, assuming equal speed. Adds the number of tokens that went through
/// the model to `given`.
std::vector<std::vector<RequestScore>> score_groups(Decoder& decoder, const Context& context,
                                                    const std::vector<RequestGroup>& groups,
                                                    const ScorerOptions& options,
                                                    const std::function<void(int64_t done)>& done,
                                                    int64_t& given);

}  // namespace te::generate
