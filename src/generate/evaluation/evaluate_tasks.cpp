#include "generate/evaluation/evaluate_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace te::generate {
namespace {

constexpr size_t kBlock = 4096;  // documents tokenized at a time, which bounds memory

/// Gathers the scores of all ranks on every rank; a group's scores come from the replica that computed them.
void exchange(parallel::World& world, std::vector<std::vector<RequestScore>>& scores) {
  struct Entry {
    int64_t group;
    RequestScore score;
  };
  std::string mine;
  for (size_t group = 0; group < scores.size(); ++group) {
    for (const RequestScore& score : scores[group]) {
      Entry entry{};
      entry.group = static_cast<int64_t>(group);
      entry.score = score;
      mine.append(reinterpret_cast<const char*>(&entry), sizeof(entry));
    }
  }
  std::vector<bool> had(scores.size());
  for (size_t group = 0; group < scores.size(); ++group) had[group] = !scores[group].empty();
  for (const std::string& part : world.gather_strings(mine)) {
    std::vector<bool> filled = had;
    for (size_t at = 0; at < part.size(); at += sizeof(Entry)) {
      Entry entry{};
      std::memcpy(&entry, part.data() + at, sizeof(entry));
      const auto group = static_cast<size_t>(entry.group);
      if (filled[group]) continue;
      scores[group].push_back(entry.score);
    }
    for (size_t group = 0; group < scores.size(); ++group) had[group] = !scores[group].empty();
  }
}

}  // namespace

TokenizedTask tokenize(const Task& task, const RequestEncoder& encoder) {
  TokenizedTask result;
  const std::span<const Document> all(task.documents);
  for (size_t first = 0; first < all.size(); first += kBlock) {
    const auto block = all.subspan(first, std::min(kBlock, all.size() - first));
    std::vector<std::vector<TokenRequest>> requests = encoder.encode(task, block);
    size_t next = 0;
    for (size_t i = 0; i < block.size(); ++i) {
      const auto document = static_cast<int64_t>(first + i);
      const auto add = [&](RequestGroup group) {
        for (const TokenRequest& request : group) result.truncated += request.truncated ? 1 : 0;
        result.groups.push_back(std::move(group));
        result.documents.push_back(document);
      };
      RequestGroup choices;
      for (size_t r = 0; r < block[i].requests.size(); ++r, ++next) {
        for (TokenRequest& request : requests[next]) {
          if (task.kind == TaskKind::rolling) {
            add({std::move(request)});
          } else {
            choices.push_back(std::move(request));
          }
        }
      }
      if (!choices.empty()) add(std::move(choices));
    }
  }
  return result;
}

std::string describe_truncated(const Task& task, const TokenizedTask& tokens, int64_t max_length) {
  if (tokens.truncated == 0) return "";
  return fmt::format(
      "{}: {} requests are longer than the context of {} and were truncated at their beginning", task.name,
      tokens.truncated, max_length);
}

DecoderSizes evaluation_sizes(bool cuda, const config::Config& config, int64_t batch) {
  const config::ModelConfig& model = config.model;
  const int64_t bytes = config.precision.dtype == config::ComputeDType::fp32 ? 4 : 2;
  const int64_t token =
      2 * model.num_layers * model.num_query_groups / config.parallel.tensor * model.kv_channels * bytes;
  const int64_t budget = cuda ? int64_t{6} << 30 : int64_t{256} << 20;
  const int64_t longest = config.model.seq_length;
  return {.batch = 1,
          .max_rows = cuda ? 8192 : 1024,
          .cache_tokens = std::max(longest, std::min(budget / token, batch * longest)),
          .score_rows = cuda ? 1024 : 256};
}

std::vector<DocumentScores> document_scores(parallel::World& world, const Task& task,
                                            const TokenizedTask& tokens, const ScorerOptions& options,
                                            std::vector<std::vector<RequestScore>> scores) {
  if (options.replicas > 1) exchange(world, scores);
  std::vector<DocumentScores> result(task.documents.size());
  for (size_t group = 0; group < scores.size(); ++group) {
    DocumentScores& document = result[static_cast<size_t>(tokens.documents[group])];
    TE_CHECK(scores[group].size() == tokens.groups[group].size(), "{}: group {} has {} scores", task.name,
             group, scores[group].size());
    if (task.kind != TaskKind::rolling) {
      document = scores[group];
    } else {
      document.resize(1);
      document[0].log_probability += scores[group][0].log_probability;
    }
  }
  for (DocumentScores& document : result)
    document.resize(std::max<size_t>(1, document.size()));  // an empty text has no requests
  return result;
}

std::vector<DocumentScores> score_task(Decoder& decoder, const Context& context, parallel::World& world,
                                       const Task& task, const TokenizedTask& tokens,
                                       const ScorerOptions& options,
                                       const std::function<void(int64_t groups)>& done, int64_t& given) {
  return document_scores(world, task, tokens, options,
                         score_groups(decoder, context, tokens.groups, options, done, given));
}

}  // namespace te::generate
