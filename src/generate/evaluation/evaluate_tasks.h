// Runs tasks on a loaded model.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "generate/evaluation/metrics.h"
#include "parallel/world.h"

namespace te::generate {

/// The requests of a task as tokens, in groups whose requests may share a prefix: the choices of a question, or one
/// window of a text.
struct TokenizedTask {
  std::vector<RequestGroup> groups;
  std::vector<int64_t> documents;  ///< of each group
  int64_t truncated = 0;           ///< number of requests that are truncated to fit the context
};
TokenizedTask tokenize(const Task& task, const RequestEncoder& encoder);

/// A sentence about the requests that are truncated to `max_length` tokens, or empty if there are none.
std::string describe_truncated(const Task& task, const TokenizedTask& tokens, int64_t max_length);

/// Sizes of a decoder for evaluation: large passes on a GPU, which process more rows efficiently; a cache of `batch`
/// sequences of config.model.seq_length tokens, limited to a few GiB.
DecoderSizes evaluation_sizes(bool cuda, const config::Config& config, int64_t batch);

/// The scores of a task's documents from the results of score_groups() on all replicas. Collective; every rank gets all
/// scores.
std::vector<DocumentScores> document_scores(parallel::World& world, const Task& task,
                                            const TokenizedTask& tokens, const ScorerOptions& options,
                                            std::vector<std::vector<RequestScore>> scores);

/// score_groups() and document_scores(). Collective; every rank gets all scores.
std::vector<DocumentScores> score_task(Decoder& decoder, const Context& context, parallel::World& world,
                                       const Task& task, const TokenizedTask& tokens,
                                       const ScorerOptions& options,
                                       const std::function<void(int64_t groups)>& done, int64_t& given);

}  // namespace te::generate
