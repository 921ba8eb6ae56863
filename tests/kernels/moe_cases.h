// Problems of the mixture-of-experts ops that the CPU and GPU tests share: ragged sizes, experts without tokens, all
// tokens at one expert, all experts for each token.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "core/random.h"
#include "kernels/moe/capacity.h"
#include "kernels/moe/dispatch.h"
#include "kernels/moe/expert_activation.h"
#include "kernels/moe/grouped_gemm.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/router.h"
#include "kernels/moe/router_gemm.h"
#include "testing/testing.h"

namespace te::kernels {

struct MoeCase {
  int64_t tokens, experts, topk, alignment;
  bool one_expert = false;  ///< topk 1: all tokens select expert 1
  bool padded = false;      ///< the first of three positions selects none (-1)
};
inline const MoeCase kMoeCases[] = {
    {1, 4, 1, 1},     {1, 4, 4, 16},    {7, 3, 2, 1},         {33, 8, 2, 16},    {64, 8, 8, 16},
    {129, 64, 8, 16}, {50, 130, 3, 32}, {40, 6, 1, 16, true}, {257, 16, 4, 128}, {12, 1, 1, 8}};

/// Different experts for each token, pseudo-random; -1 for padding.
inline std::vector<int32_t> expert_choices(const MoeCase& c) {
  std::vector<int32_t> choices;
  for (int64_t t = 0; t < c.tokens; ++t) {
    std::vector<int32_t> order(static_cast<size_t>(c.experts));
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = 0; i < c.topk; ++i) {
      const uint64_t random = philox(5, 6, static_cast<uint64_t>(t * c.topk + i)).word[0];
      std::swap(order[static_cast<size_t>(i)],
                order[static_cast<size_t>(i) + random % static_cast<uint64_t>(c.experts - i)]);
    }
    for (int64_t i = 0; i < c.topk; ++i)
      choices.push_back(c.padded && t % 3 == 0 ? -1 : c.one_expert ? 1 : order[static_cast<size_t>(i)]);
  }
  return choices;
}

/// The order of rows for a case.
struct MoeOrder {
  testing::TestTensor experts, offsets, row_of, source;
  MoeOrder(const Context& context, const MoeCase& c)
      : experts(context, DType::i32, {c.tokens, c.topk}),
        offsets(context, DType::i32, {c.experts + 1}),
        row_of(context, DType::i32, {c.tokens, c.topk}),
        source(context, DType::i32, {max_expert_rows(c.tokens, c.topk, c.experts, c.alignment)}) {
    experts.fill_ints(expert_choices(c));
    expert_rows(context, {.experts = experts,
                          .alignment = c.alignment,
                          .offsets = offsets,
                          .row_of = row_of,
                          .source = source});
  }
  int64_t rows() const { return source.get().numel(); }
};

inline std::vector<int32_t> ints_of(const testing::TestTensor& tensor) {
  const std::vector<uint8_t> raw = tensor.raw();
  std::vector<int32_t> values(raw.size() / sizeof(int32_t));
  std::copy_n(raw.data(), raw.size(), reinterpret_cast<uint8_t*>(values.data()));
  return values;
}

/// What is kept of a case's selections with `capacity`, and its rows; probabilities have few values, with equal ones.
struct LimitedOrder {
  testing::TestTensor probs, kept, dropped, offsets, row_of, source;
  LimitedOrder(const Context& context, const MoeCase& c, int64_t capacity, double factor = 0.0)
      : probs(context, DType::f32, {c.tokens, c.topk}),
        kept(context, DType::i32, {c.tokens, c.topk}),
        dropped(context, DType::f32, {2}),
        offsets(context, DType::i32, {c.experts + 1}),
        row_of(context, DType::i32, {c.tokens, c.topk}),
        source(context, DType::i32, {max_expert_rows(c.tokens, c.topk, c.experts, c.alignment, capacity)}) {
    std::vector<float> values;
    for (int64_t i = 0; i < c.tokens * c.topk; ++i)
      values.push_back(static_cast<float>(philox(7, 8, static_cast<uint64_t>(i)).word[0] % 13) * 0.0625f);
    probs.fill(values), dropped.fill({5.0f, 6.0f});
    MoeCase all = c;
    all.alignment = 1;
    const MoeOrder order(context, all);
    limit_experts(context, {.probs = probs,
                            .offsets = order.offsets,
                            .source = order.source,
                            .capacity = capacity,
                            .factor = factor,
                            .kept = kept,
                            .dropped = dropped.get().as<float>()});
    expert_rows(context, {.experts = kept,
                          .alignment = c.alignment,
                          .capacity = capacity,
                          .offsets = offsets,
                          .row_of = row_of,
                          .source = source});
  }
};

/// Rows that ranks send to the experts of a rank: the numbers of selections of each expert by each of them.
struct DispatchCase {
  std::vector<std::vector<int32_t>> counts;  ///< [ranks][experts]
  int64_t first_expert, experts, capacity, alignment;
};
const std::vector<DispatchCase> kDispatchCases = {
    {{{3, 0, 2, 5}, {1, 4, 0, 0}}, 0, 2, 8, 1},
    {{{3, 0, 2, 5}, {1, 4, 0, 0}}, 2, 2, 3, 16},
    {{{0, 0, 0, 7}, {0, 0, 0, 9}, {0, 0, 0, 1}, {0, 0, 0, 4}}, 3, 1, 5, 16},
    {{{0, 0, 0, 7}, {0, 0, 0, 9}, {0, 0, 0, 1}, {0, 0, 0, 4}}, 1, 1, 5, 4},
    {{{300, 1, 77, 20, 0, 3}, {5, 900, 77, 0, 2, 1}}, 0, 3, 640, 128},
};

/// The order of received rows in all rounds of a case.
struct DispatchOrder {
  testing::TestTensor counts, offsets, segments, source, row_of;
  std::vector<std::vector<uint8_t>> results;
  int rounds = 0;
  DispatchOrder(const Context& context, const DispatchCase& c)
      : counts(context, DType::i32,
               {static_cast<int64_t>(c.counts.size()), static_cast<int64_t>(c.counts[0].size()) + 1}),
        offsets(context, DType::i32, {c.experts + 1}),
        segments(context, DType::i32, {c.experts * static_cast<int64_t>(c.counts.size()), 3}),
        source(context, DType::i32, {dispatch_rows_capacity(c.capacity, c.experts, c.alignment)}),
        row_of(context, DType::i32, {c.capacity}) {
    std::vector<int32_t> first;
    int64_t received = 0;
    for (const std::vector<int32_t>& rank : c.counts) {
      first.push_back(0);
      for (const int32_t count : rank) first.push_back(first.back() + count);
      received =
          std::accumulate(rank.begin() + c.first_expert, rank.begin() + c.first_expert + c.experts, received);
    }
    counts.fill_ints(first);
    for (int64_t done = 0; done == 0 || done < received; done += c.capacity, ++rounds) {
      dispatch_rows(context, {.counts = counts,
                              .first_expert = c.first_expert,
                              .round = rounds,
                              .alignment = c.alignment,
                              .offsets = offsets,
                              .segments = segments,
                              .source = source,
                              .row_of = row_of});
      for (const testing::TestTensor* tensor : {&offsets, &source, &row_of}) results.push_back(tensor->raw());
    }
  }
};

/// Checks the gradient of sum(y * dy), which `forward` computes as y, with respect to `input`.
template <class Forward>
void check_gradient(const Forward& forward, testing::TestTensor& input, const testing::TestTensor& grad,
                    const testing::TestTensor& y, const testing::TestTensor& dy, float step) {
  const auto loss = [&] {
    forward();
    const std::vector<float> out = y.floats(), weights = dy.floats();
    return std::inner_product(out.begin(), out.end(), weights.begin(), 0.0, std::plus<>(),
                              [](double a, double b) { return a * b; });
  };
  std::vector<float> values = input.floats();
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = values[i];
    values[i] = value + step, input.fill(values);
    const double above = loss();
    values[i] = value - step, input.fill(values);
    const double below = loss();
    values[i] = value, input.fill(values);
    EXPECT_NEAR(grad.floats()[i], (above - below) / (2.0 * static_cast<double>(step)), 2e-3) << i;
  }
}

struct RouterCase {
  int64_t tokens, experts;
  RouterRule rule;
  int64_t sequences = 1;
  bool bias = false;
  int64_t period = 0, from = 0;  ///< positions t with t % period >= from are padding
};
inline const RouterCase kRouterCases[] = {
    {9, 4, {.topk = 1}},
    {6, 8, {.topk = 8}},
    {30, 8, {.topk = 2, .normalize = false}, 3},
    {64, 60, {.topk = 4, .normalize = false}, 2},
    {40, 64, {.score = RouterScore::sigmoid, .topk = 6, .scaling = 2.5f}, 4, true},
    {24, 16, {.score = RouterScore::sigmoid, .topk = 4, .groups = 4, .group_topk = 2}, 1, true},
    {21, 160, {.topk = 6, .normalize = false, .scaling = 16.0f, .groups = 8, .group_topk = 3}, 7},
    {16, 1024, {.topk = 8}, 2},
    {1000, 12, {.topk = 3}},  // parts of a sequence
    {30, 16, {.score = RouterScore::sigmoid, .topk = 3, .groups = 2, .in_turn = true}, 2, true},
    {60, 8, {.topk = 2}, 3, false, 5, 3},
    {700, 40, {.score = RouterScore::sigmoid, .topk = 4, .in_turn = true}, 1, true, 5, 3},
    {40, 16, {.topk = 4, .groups = 4, .group_topk = 2}, 2, true, 40, 20},  // a sequence of padding
    {12, 8, {.topk = 2}, 1, false, 1, 0},                                  // nothing but padding
};

/// All tensors of the router for a case, with inputs filled.
struct RouterTensors {
  using T = testing::TestTensor;
  T logits, bias, targets, experts, probs, counts, score_sums, token_sums, scratch, score_grad, step_counts,
      step_sums, d_probs, d_logits;
  RouterTensors(const Context& x, const RouterCase& c)
      : logits(x, DType::f32, {c.tokens, c.experts}),
        bias(x, DType::f32, {c.experts}),
        targets(x, DType::i32, {c.tokens}),
        experts(x, DType::i32, {c.tokens, c.rule.topk}),
        probs(x, DType::f32, {c.tokens, c.rule.topk}),
        counts(x, DType::i32, {c.sequences, c.experts}),
        score_sums(x, DType::f32, {c.sequences, c.experts}),
        token_sums(x, DType::f32, {c.sequences, kTokenSums}),
        scratch(x, DType::f32, {router_statistics_scratch(c.tokens, c.sequences, c.experts)}),
        score_grad(x, DType::f32, {c.sequences, c.experts}),
        step_counts(x, DType::i32, {c.experts}),
        step_sums(x, DType::f32, {kRouterSums}),
        d_probs(x, DType::f32, {c.tokens, c.rule.topk}),
        d_logits(x, DType::f32, {c.tokens, c.experts}) {
    logits.fill_normal(1, 1.5f);
    bias.fill_normal(2, 0.1f);
    d_probs.fill_normal(3);
    std::vector<int32_t> all_targets(static_cast<size_t>(c.tokens), 1);
    for (int64_t t = 0; t < c.tokens; ++t)
      if (is_padding(c, t)) all_targets[static_cast<size_t>(t)] = kPaddingTarget;
    targets.fill_ints(all_targets);
    step_counts.fill_ints(std::vector<int32_t>(static_cast<size_t>(c.experts), 3));
    step_sums.fill({0.5f, 0.25f, 0.125f, 2.0f, 8.0f, 0.0f, 0.0f});
  }
  static bool is_padding(const RouterCase& c, int64_t t) { return c.period > 0 && t % c.period >= c.from; }
  void forward(const Context& x, const RouterCase& c, BalanceScope scope) const {
    router_forward(x, {.rule = c.rule,
                       .logits = logits,
                       .bias = c.bias ? bias.get() : Tensor{},
                       .targets = c.period > 0 ? targets.get() : Tensor{},
                       .experts = experts,
                       .probs = probs});
    router_statistics(x, {.score = c.rule.score,
                          .logits = logits,
                          .experts = experts,
                          .counts = counts,
                          .score_sums = score_sums,
                          .token_sums = token_sums,
                          .scratch = scratch});
    router_balance(x, {.scope = scope,
                       .topk = c.rule.topk,
                       .counts = counts,
                       .score_sums = score_sums,
                       .token_sums = token_sums,
                       .score_grad = score_grad,
                       .step_counts = step_counts,
                       .step_sums = step_sums});
  }
  void backward(const Context& x, const RouterCase& c, float balance_weight, float z_weight) const {
    router_backward(x, {.rule = c.rule,
                        .logits = logits,
                        .experts = experts,
                        .d_probs = d_probs,
                        .score_grad = score_grad,
                        .balance_weight = balance_weight,
                        .z_weight = z_weight,
                        .d_logits = d_logits});
  }
};

}  // namespace te::kernels
