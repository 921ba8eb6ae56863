// Runs token requests through a decoder: groups of requests that share a beginning (the choices of a question) are
// given it once, and so are groups that share one (the examples before the questions of a subject); groups of like
// length go together.
#pragma once

#include <functional>
#include <vector>

#include "generate/decoder.h"
#include "generate/evaluation/requests.h"

namespace te::generate {

struct RequestScore {
  double log_probability = 0.0;  ///< sum over the judged tokens
  bool is_argmax = true;         ///< every judged token is the most probable one
};

/// Requests of one document.
using RequestGroup = std::vector<TokenRequest>;

struct ScorerOptions {
  int64_t batch = 1024;               ///< groups at a time, as far as the cache holds them
  int64_t cache_tokens = 0;           ///< of the decoder
  int64_t replica = 0, replicas = 1;  ///< this rank takes every replicas-th batch
};

/// The tokens the decoder's sequences must be able to hold.
int64_t longest_inputs(const std::vector<RequestGroup>& groups);

/// The score of every request of every group; those of batches that other replicas take stay empty. `done` is called
/// with the groups done so far, of all replicas if they are equally fast. `given`: the tokens that went through the
/// model are added to it.
std::vector<std::vector<RequestScore>> score_groups(Decoder& decoder, const Context& context,
                                                    const std::vector<RequestGroup>& groups,
                                                    const ScorerOptions& options,
                                                    const std::function<void(int64_t done)>& done,
                                                    int64_t& given);

}  // namespace te::generate
