#include "bench/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <memory>
#include <vector>

#include "bench/session.h"
#include "core/error.h"
#include "core/memory_plan.h"
#include "kernels/attention/attention.h"

namespace te::bench {
namespace {

using kernels::AttentionShape;

struct AttentionOptions {
  Options common;
  int64_t batch = 1, seq = 8192, heads = 32, groups = 8, head_dim = 128, context_ranks = 1;
  std::vector<int64_t> documents{0, 1024}, windows{0, 1024};
};

/// Splits samples into documents of `length` tokens (the last one may be shorter). Returns the start of each token's
/// document, [batch * seq].
std::vector<int32_t> document_starts(const AttentionShape& shape, int64_t length) {
  std::vector<int32_t> starts(static_cast<size_t>(shape.batch * shape.seq));
  for (size_t row = 0; row < starts.size(); ++row) {
    const int64_t token = static_cast<int64_t>(row) % shape.seq;
    starts[row] = static_cast<int32_t>(token - token % length);
  }
  return starts;
}

/// Number of (query, visible key) pairs of one head.
int64_t visible_pairs(const AttentionShape& shape, int64_t document) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < shape.queries(); ++i) {
    const int64_t query = shape.range.position + i, keys = (document > 0 ? query % document : query) + 1;
    pairs += shape.window > 0 ? std::min(keys, shape.window) : keys;
  }
  return shape.batch * pairs;
}

/// The attention calls of a rank: one, or with context parallelism two, for the first and the last chunk of queries as
/// rank 0 has them. With a causal mask all ranks have the same number of pairs.
std::vector<AttentionShape> calls_of(const AttentionShape& whole, int64_t context_ranks) {
  if (context_ranks == 1) return {whole};
  std::vector<AttentionShape> calls(2, whole);
  const int64_t count = whole.seq / (2 * context_ranks);
  calls[0].range = {.count = count, .position = 0, .rows = 2 * count, .first = 0};
  calls[1].range = {.count = count, .position = whole.seq - count, .rows = 2 * count, .first = count};
  return calls;
}

/// The tensors of both passes, BF16.
class Problem {
 public:
  Problem(const Context& context, const std::vector<AttentionShape>& calls, int64_t document)
      : context_(context), calls_(calls) {
    const AttentionShape& shape = calls_[0];
    const int64_t tokens = shape.batch * shape.seq, rows = shape.batch * shape.rows(),
                  width = shape.num_heads * shape.head_dim,
                  kv_width = 2 * shape.num_query_groups * shape.head_dim;
    const auto add = [&](PlannedTensor& tensor, const char* name, DType dtype, const Shape& dims) {
      plan_.add(tensor, name, MemoryKind::activations, dtype, dims);
    };
    add(qkv_, "qkv", DType::bf16, {rows, width + kv_width});
    add(dqkv_, "dqkv", DType::bf16, {rows, width + kv_width});
    add(o_, "o", DType::bf16, {rows, width});
    add(d_o_, "d_o", DType::bf16, {rows, width});
    if (shape.has_range()) {
      add(kv_, "kv", DType::bf16, {tokens, kv_width});
      add(dkv_, "dkv", DType::bf16, {tokens, kv_width});
    }
    lse_.resize(calls_.size());
    int64_t workspace = 1;
    for (size_t i = 0; i < calls_.size(); ++i) {
      add(lse_[i], "lse", DType::f32, {shape.batch, shape.num_heads, shape.queries()});
      workspace = std::max(workspace, kernels::attention_workspace_bytes(context, calls_[i], DType::bf16));
    }
    add(workspace_, "workspace", DType::u8, {workspace});
    if (document > 0) add(starts_, "document_start", DType::i32, {tokens});
    memory_ = plan_.allocate(context);
    fill_random(context, qkv_), fill_random(context, d_o_);
    if (shape.has_range()) fill_random(context, kv_);
    if (document > 0) {
      const std::vector<int32_t> starts = document_starts(shape, document);
      context.copy_to_device(starts_, starts.data());
      context.synchronize();  // the host vector must outlive the copy
    }
  }
  void forward() {
    for (size_t i = 0; i < calls_.size(); ++i)
      kernels::attention_forward(context_, {.shape = calls_[i],
                                            .qkv = qkv_,
                                            .o = o_,
                                            .lse = lse_[i],
                                            .workspace = workspace_,
                                            .document_start = starts_,
                                            .kv = kv_});
  }
  void backward() {
    for (size_t i = 0; i < calls_.size(); ++i)
      kernels::attention_backward(context_, {.shape = calls_[i],
                                             .qkv = qkv_,
                                             .o = o_,
                                             .lse = lse_[i],
                                             .d_o = d_o_,
                                             .dqkv = dqkv_,
                                             .workspace = workspace_,
                                             .document_start = starts_,
                                             .kv = kv_,
                                             .dkv = dkv_});
  }

 private:
  const Context& context_;
  std::vector<AttentionShape> calls_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
  PlannedTensor qkv_, dqkv_, o_, d_o_, kv_, dkv_, workspace_, starts_;
  std::deque<PlannedTensor> lse_;  // of each call
};

AttentionShape shape_of(const AttentionOptions& options, int64_t document, int64_t window) {
  AttentionShape shape{options.batch,    options.seq,
                       options.heads,    options.groups,
                       options.head_dim, 1.0f / std::sqrt(static_cast<float>(options.head_dim))};
  if (document > 0) shape.max_documents = options.batch * ((options.seq + document - 1) / document);
  shape.window = window;
  return shape;
}

/// The windows, each once. As in a model, a window of the whole sequence is no window.
std::vector<int64_t> distinct_windows(const AttentionOptions& options) {
  std::vector<int64_t> windows;
  for (const int64_t given : options.windows) {
    const int64_t window = given < options.seq ? given : 0;
    if (std::ranges::find(windows, window) == windows.end()) windows.push_back(window);
  }
  return windows;
}

std::string mask_text(int64_t document, int64_t window) {
  if (document == 0 && window == 0) return "causal";
  std::string text;
  if (document > 0) text = fmt::format("documents of {}", document);
  if (window > 0) text += fmt::format("{}window of {}", text.empty() ? "" : ", ", window);
  return text;
}

/// One mask: a row of the table and an entry of the report.
void run_mask(const AttentionOptions& options, int64_t document, int64_t window, const Context& context,
              std::vector<std::vector<std::string>>& table, nlohmann::json& report) {
  const AttentionShape shape = shape_of(options, document, window);
  const char* const broken = kernels::attention_unsupported(
      context.is_cuda() ? DeviceKind::cuda : DeviceKind::cpu, shape, DType::bf16);
  if (*broken != '\0') user_error("attention: {}", broken);
  const std::vector<AttentionShape> calls = calls_of(shape, options.context_ranks);
  Problem problem(context, calls, document);
  problem.forward();
  const int repeats = options.common.repeats;
  const double forward = median_ms(context, repeats, [&] { problem.forward(); });
  const double backward = median_ms(context, repeats, [&] { problem.backward(); });
  // Each pair and head takes two dot products of head_dim elements in the forward pass and five in the backward pass.
  int64_t pairs = 0;
  for (const AttentionShape& call : calls) pairs += visible_pairs(call, document);
  const double flops =
      2.0 * static_cast<double>(pairs) * static_cast<double>(shape.num_heads * shape.head_dim);
  table.push_back({mask_text(document, window), "BF16", fmt::format("{:.3f}", forward),
                   fmt::format("{:.3f}", backward), fmt::format("{:.3g}", 2 * flops / forward / 1e9),
                   fmt::format("{:.3g}", 5 * flops / backward / 1e9)});
  report["attention"].push_back({{"batch", shape.batch},
                                 {"seq", shape.seq},
                                 {"heads", shape.num_heads},
                                 {"groups", shape.num_query_groups},
                                 {"head_dim", shape.head_dim},
                                 {"context_ranks", options.context_ranks},
                                 {"document", document},
                                 {"window", window},
                                 {"forward_ms", forward},
                                 {"backward_ms", backward},
                                 {"forward_flops", 2 * flops},
                                 {"backward_flops", 5 * flops}});
}

void run(const AttentionOptions& options, parallel::World& world) {
  refuse_ranks(world, "attention");
  if (options.heads % options.groups != 0)
    user_error("--groups {}: must divide --heads {}", options.groups, options.heads);
  if (options.context_ranks > 1 && options.seq % (2 * options.context_ranks) != 0)
    user_error("--context-ranks {}: 2 * context ranks must divide --seq {}", options.context_ranks,
               options.seq);
  check_report(options.common);
  const Context context = open_device(options.common.device);
  nlohmann::json report = report_head(context, options.common);
  std::vector<std::vector<std::string>> table{
      {"mask", "dtype", "forward ms", "backward ms", "forward TFLOP/s", "backward TFLOP/s"}};
  for (const int64_t document : options.documents)
    for (const int64_t window : distinct_windows(options))
      run_mask(options, document, window, context, table, report);
  std::printf(
      "%s, %lld x %lld tokens, %lld heads in %lld groups of %lld%s; TFLOP/s count visible pairs only\n",
      context.info().name.c_str(), static_cast<long long>(options.batch), static_cast<long long>(options.seq),
      static_cast<long long>(options.heads), static_cast<long long>(options.groups),
      static_cast<long long>(options.head_dim),
      options.context_ranks > 1
          ? fmt::format(", queries of one of {} context-parallel ranks", options.context_ranks).c_str()
          : "");
  print_table(table);
  write_report(options.common, report);
}

}  // namespace

void add_attention_command(CLI::App& app, parallel::World& world) {
  const auto options = std::make_shared<AttentionOptions>();
  CLI::App* command = app.add_subcommand("attention",
                                         "Attention forward and backward in BF16: whole sequences, "
                                         "documents, windows, one context-parallel rank");
  options->common.add_to(*command);
  const auto add_size = [&](const char* name, int64_t& value, const char* help) {
    command->add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  add_size("--batch", options->batch, "sequences");
  add_size("--seq", options->seq, "tokens of a sequence");
  add_size("--heads", options->heads, "query heads");
  add_size("--groups", options->groups, "key and value heads");
  add_size("--head-dim", options->head_dim, "width of a head");
  add_size("--context-ranks", options->context_ranks,
           "context-parallel ranks; the queries of one rank are timed, with all keys");
  command->add_option("--documents", options->documents, "tokens per document; 0: the whole sequence")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--windows", options->windows, "sliding window in keys per query; 0: all earlier keys")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->callback([options, &world] { run(*options, world); });
}

}  // namespace te::bench
