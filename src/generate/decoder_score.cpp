// Scores of given tokens. Logits are computed for some rows at a time and reduced on the device to four numbers per
// row, which are copied to the host.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "generate/decoder.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "parallel/watchdog.h"

namespace te::generate {
namespace {

constexpr int32_t kNoTarget = -1;
constexpr int64_t kNumbers = 4;  // of a row: CrossEntropyStatistics::statistics and preceded

/// A row's score from the numbers [ranks, kNumbers, rows] of the ranks' shards of the vocabulary.
TokenScore combine(const float* statistics, int64_t ranks, int64_t rows, int64_t row) {
  double largest = -std::numeric_limits<double>::infinity(),
         target = std::numeric_limits<double>::quiet_NaN();
  const auto value = [&](int64_t rank, int64_t which) {
    return static_cast<double>(statistics[(kNumbers * rank + which) * rows + row]);
  };
  for (int64_t rank = 0; rank < ranks; ++rank) {
    largest = std::max(largest, value(rank, 0));
    if (!std::isnan(value(rank, 2))) target = value(rank, 2);
  }
  double sum = 0.0;
  for (int64_t rank = 0; rank < ranks; ++rank) sum += value(rank, 1) * std::exp(value(rank, 0) - largest);
  // Of equal logits, argmax returns the first one: that of the first rank that has it.
  int64_t first = 0;
  while (first + 1 < ranks && value(first, 0) != largest) ++first;
  return {target - largest - std::log(sum), value(first, 2) == largest && value(first, 3) == 0.0};
}

}  // namespace

void Decoder::plan_scores(MemoryPlan& plan, const Context& context) {
  const int64_t rows = sizes_.max_rows, numbers = tensor_.size() * kNumbers * rows;
  plan.add(targets_, "targets", MemoryKind::scratch, DType::i32, {rows});
  plan.add(statistics_of_rows_, "score_statistics", MemoryKind::scratch, DType::f32, {numbers});
  host_targets_ = HostBuffer(context, static_cast<size_t>(rows) * sizeof(int32_t));
  host_statistics_ = HostBuffer(context, static_cast<size_t>(numbers) * sizeof(float));
}

std::vector<TokenScore> Decoder::score(const Context& context,
                                       std::span<const ScoredContinuation> continuations) {
  TE_CHECK(sizes_.score_rows > 0, "decoder: score() needs score_rows");
  std::vector<Row> rows;
  std::vector<int32_t> targets;
  for (const ScoredContinuation& next : continuations) {
    TE_CHECK(next.targets.size() <= next.tokens.size(), "decoder: {} targets for {} tokens",
             next.targets.size(), next.tokens.size());
    append_rows({next.sequence, next.tokens}, rows);
    targets.resize(rows.size() - next.targets.size(), kNoTarget);
    targets.insert(targets.end(), next.targets.begin(), next.targets.end());
  }
  std::vector<TokenScore> scores;
  const auto max_rows = static_cast<size_t>(sizes_.max_rows);
  for (size_t first = 0; first < rows.size(); first += max_rows) {
    const size_t count = std::min(max_rows, rows.size() - first);
    const int64_t padded = padded_rows(context, static_cast<int64_t>(count), true);
    const parallel::Watchdog::Guard guard(context, "evaluation");
    const Tensor states = pass(context, std::span<const Row>(rows).subspan(first, count), padded);
    const auto part = std::span<const int32_t>(targets).subspan(first, count);
    if (stack_.output_layer) score_pass(context, states, part);
    const Tensor statistics{statistics_of_rows_.data, DType::f32, {padded * kNumbers * tensor_.size()}};
    broadcast_from_last_stage(context, statistics);
    context.copy_to_host(host_statistics_.as<float>(), statistics);
    context.synchronize();  // before the host buffers are read and reused
    read_scores(padded, part, scores);
  }
  return scores;
}

// Chunks without targets are skipped.
void Decoder::score_pass(const Context& context, const Tensor& states, std::span<const int32_t> targets) {
  const int64_t padded = states.rows(), ranks = tensor_.size();
  auto* host = host_targets_.as<int32_t>();
  std::fill(std::copy(targets.begin(), targets.end(), host), host + padded, kNoTarget);
  context.copy_to_device({targets_.data, DType::i32, {padded}}, host);
  auto* statistics = statistics_of_rows_.as<float>();
  for (int64_t begin = 0; begin < padded; begin += sizes_.score_rows) {
    const int64_t rows = scored_chunk(begin, padded);
    if (std::all_of(host + begin, host + begin + rows, [](int32_t t) { return t == kNoTarget; })) continue;
    const Tensor logits = logits_.slice_rows(0, rows);
    stack_.output_layer->logits(context, states.slice_rows(begin, rows), logits);
    const Tensor all{statistics + begin * kNumbers * ranks, DType::f32, {ranks, kNumbers * rows}};
    const Tensor own = all.slice_rows(tensor_.rank(), 1).view({kNumbers, rows});
    kernels::cross_entropy_statistics(context,
                                      {.logits = logits,
                                       .targets = {targets_.as<int32_t>() + begin, DType::i32, {rows}},
                                       .first = dims_.vocab * tensor_.rank(),
                                       .vocab = vocab_size(),
                                       .statistics = own.slice_rows(0, 3),
                                       .preceded = own.slice_rows(3, 1).view({rows})});
    if (ranks > 1) tensor_.group().all_gather(context, own, all);
  }
}

void Decoder::read_scores(int64_t padded, std::span<const int32_t> targets,
                          std::vector<TokenScore>& scores) const {
  const int64_t ranks = tensor_.size();
  const auto* statistics = host_statistics_.as<float>();
  for (int64_t row = 0; row < static_cast<int64_t>(targets.size()); ++row) {
    if (targets[static_cast<size_t>(row)] == kNoTarget) continue;
    const int64_t begin = row / sizes_.score_rows * sizes_.score_rows;
    scores.push_back(
        combine(statistics + begin * kNumbers * ranks, ranks, scored_chunk(begin, padded), row - begin));
    if (!std::isfinite(scores.back().log_probability))
      user_error(
          "the model's logits are not finite; its weights are damaged, or --fp8 or --dtype is unsuitable");
  }
}

}  // namespace te::generate
