// Runs tasks on a loaded model.
#pragma once

#include <functional>
#include <vector>

#include "config/config.h"
#include "generate/evaluation/metrics.h"
#include "parallel/world.h"

namespace te::generate {

/// The requests of a task as tokens, in groups that may share a beginning: the choices of a question, a window of a
/// text.
struct TokenizedTask {
  std::vector<RequestGroup> groups;
  std::vector<int64_t> documents;  ///< of each group
  int64_t cut = 0;                 ///< requests whose beginning does not fit the context
};
TokenizedTask tokenize(const Task& task, const RequestEncoder& encoder);

/// Passes and cache of a decoder that judges: large passes on a GPU, where rows are cheap; a cache of as many sequences
/// of config.model.seq_length as `batch`, if that is not too much.
DecoderSizes evaluation_sizes(bool cuda, const config::Config& config, int64_t batch);

/// The scores of a task's documents from those of score_groups(): of each group those of the replica that had it.
/// Collective; every rank gets all.
std::vector<DocumentScores> document_scores(parallel::World& world, const Task& task,
                                            const TokenizedTask& tokens, const ScorerOptions& options,
                                            std::vector<std::vector<RequestScore>> scores);

/// score_groups() and document_scores(). Collective; every rank gets all.
std::vector<DocumentScores> score_task(Decoder& decoder, const Context& context, parallel::World& world,
                                       const Task& task, const TokenizedTask& tokens,
                                       const ScorerOptions& options,
                                       const std::function<void(int64_t groups)>& done, int64_t& given);

}  // namespace te::generate
