// CPU references of the router and the permutation against definitions in double precision and finite differences.
#include <cmath>
#include <map>
#include <set>

#include "kernels/gemm/gemm.h"
#include "moe_cases.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

// --- router ------------------------------------------------------------------------------------------------

std::vector<double> scores_of(const float* logits, int64_t experts, RouterScore score) {
  std::vector<double> scores(static_cast<size_t>(experts));
  double sum = 0.0;
  for (int64_t e = 0; e < experts; ++e) sum += std::exp(static_cast<double>(logits[e]));
  for (int64_t e = 0; e < experts; ++e) {
    const double exponential = std::exp(static_cast<double>(logits[e]));
    scores[static_cast<size_t>(e)] =
        score == RouterScore::softmax ? exponential / sum : exponential / (1.0 + exponential);
  }
  return scores;
}

/// Experts with the largest keys, by definition.
std::vector<int32_t> best_experts(const RouterRule& rule, const std::vector<double>& key) {
  const int64_t experts = static_cast<int64_t>(key.size()), size = experts / rule.groups;
  std::vector<std::pair<double, int64_t>> groups;
  for (int64_t g = 0; g < rule.groups; ++g) {
    std::vector<double> of_group(key.begin() + g * size, key.begin() + (g + 1) * size);
    std::sort(of_group.rbegin(), of_group.rend());
    groups.emplace_back(
        -std::accumulate(of_group.begin(), of_group.begin() + rule.topk / rule.group_topk, 0.0), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, int32_t>> order;
  for (int64_t n = 0; n < rule.group_topk; ++n)
    for (int64_t i = 0; i < size; ++i) {
      const int64_t e = groups[static_cast<size_t>(n)].second * size + i;
      order.emplace_back(-key[static_cast<size_t>(e)], static_cast<int32_t>(e));
    }
  std::sort(order.begin(), order.end());
  std::vector<int32_t> best;
  for (int64_t i = 0; i < rule.topk; ++i) best.push_back(order[static_cast<size_t>(i)].second);
  return best;
}

TEST(Moe, RouterSelectsTheBestExperts) {
  for (const RouterCase& c : kRouterCases) {
    const RouterTensors r(cpu(), c);
    r.forward(cpu(), c, BalanceScope::microbatch);
    const std::vector<float> logits = r.logits.floats(), bias = r.bias.floats(), probs = r.probs.floats();
    const std::vector<int32_t> experts = ints_of(r.experts);
    for (int64_t t = 0; t < c.tokens; ++t) {
      if (RouterTensors::is_padding(c, t)) {
        for (int64_t i = t * c.rule.topk; i < (t + 1) * c.rule.topk; ++i) {
          EXPECT_EQ(experts[i], -1);
          EXPECT_EQ(probs[i], 0.0f);
        }
        continue;
      }
      const std::vector<double> scores = scores_of(&logits[t * c.experts], c.experts, c.rule.score);
      std::vector<double> key = scores;
      if (c.bias)
        for (size_t e = 0; e < key.size(); ++e) key[e] += static_cast<double>(bias[e]);
      std::vector<int32_t> best = best_experts(c.rule, key);
      for (size_t i = 0; c.rule.in_turn && i < best.size(); ++i)
        best[i] = static_cast<int32_t>((t + static_cast<int64_t>(i) * (c.experts / c.rule.topk)) % c.experts);
      double sum = 0.0;
      for (const int32_t e : best) sum += scores[static_cast<size_t>(e)];
      for (int64_t i = 0; i < c.rule.topk; ++i) {
        EXPECT_EQ(experts[t * c.rule.topk + i], best[static_cast<size_t>(i)]) << c.experts << " " << t;
        const double prob = scores[static_cast<size_t>(best[static_cast<size_t>(i)])] *
                            static_cast<double>(c.rule.scaling) / (c.rule.normalize ? sum : 1.0);
        EXPECT_NEAR(probs[t * c.rule.topk + i], prob, 1e-5 * std::abs(prob) + 1e-9);
      }
    }
  }
}

TEST(Moe, EqualScoresSelectTheFirstExperts) {
  TestTensor logits(cpu(), DType::f32, {2, 6}), experts(cpu(), DType::i32, {2, 3}),
      probs(cpu(), DType::f32, {2, 3});
  logits.fill({1, 1, 1, 1, 1, 1, 0, 2, 0, 2, 0, 0});
  router_forward(cpu(), {.rule = {.topk = 3}, .logits = logits, .experts = experts, .probs = probs});
  EXPECT_EQ(ints_of(experts), (std::vector<int32_t>{0, 1, 2, 1, 3, 0}));
}

TEST(Moe, NanLogitsGiveDifferentExpertsAndNanProbabilities) {
  TestTensor logits(cpu(), DType::f32, {1, 4}), experts(cpu(), DType::i32, {1, 2}),
      probs(cpu(), DType::f32, {1, 2});
  logits.fill_value(NAN);
  router_forward(cpu(), {.rule = {.topk = 2}, .logits = logits, .experts = experts, .probs = probs});
  EXPECT_EQ(ints_of(experts), (std::vector<int32_t>{0, 1}));
  for (const float prob : probs.floats()) EXPECT_TRUE(std::isnan(prob));
}

TEST(Moe, UnderflowOfAllSigmoidsIsNotNan) {
  TestTensor logits(cpu(), DType::f32, {1, 4}), experts(cpu(), DType::i32, {1, 2}),
      probs(cpu(), DType::f32, {1, 2});
  logits.fill_value(-200.0f);
  const RouterRule rule{.score = RouterScore::sigmoid, .topk = 2};
  router_forward(cpu(), {.rule = rule, .logits = logits, .experts = experts, .probs = probs});
  for (const float prob : probs.floats()) EXPECT_TRUE(std::isfinite(prob));
}

/// The loss whose gradient router_backward() computes: d_probs . probs + balance and z-loss, with fixed selection and
/// fixed shares of the selections.
double router_loss(const RouterCase& c, const std::vector<float>& logits, const std::vector<int32_t>& experts,
                   const std::vector<float>& d_probs, const std::vector<float>& score_grad, double balance,
                   double z) {
  double loss = 0.0;
  const int64_t length = c.tokens / c.sequences;
  for (int64_t t = 0; t < c.tokens; ++t) {
    if (experts[t * c.rule.topk] < 0) continue;
    const std::vector<double> scores = scores_of(&logits[t * c.experts], c.experts, c.rule.score);
    double sum = 0.0, total = 0.0, exponentials = 0.0;
    for (int64_t i = 0; i < c.rule.topk; ++i)
      sum += scores[static_cast<size_t>(experts[t * c.rule.topk + i])];
    for (int64_t i = 0; i < c.rule.topk; ++i)
      loss += static_cast<double>(d_probs[t * c.rule.topk + i]) *
              scores[static_cast<size_t>(experts[t * c.rule.topk + i])] *
              static_cast<double>(c.rule.scaling) / (c.rule.normalize ? sum : 1.0);
    for (const double score : scores) total += score;
    for (int64_t e = 0; e < c.experts; ++e) {
      exponentials += std::exp(static_cast<double>(logits[t * c.experts + e]));
      loss += balance * static_cast<double>(score_grad[t / length * c.experts + e]) *
              scores[static_cast<size_t>(e)] / total;
    }
    loss += z * std::pow(std::log(exponentials), 2.0);
  }
  return loss;
}

TEST(Moe, RouterGradientMatchesFiniteDifferences) {
  for (const RouterCase& c : kRouterCases) {
    if (c.experts > 200) continue;
    const RouterTensors r(cpu(), c);
    r.forward(cpu(), c, BalanceScope::sequence);
    constexpr float kBalance = 3.0f, kZ = 0.2f;
    r.backward(cpu(), c, kBalance, kZ);
    std::vector<float> logits = r.logits.floats();
    const std::vector<float> grad = r.d_logits.floats();
    const auto loss = [&] {
      return router_loss(c, logits, ints_of(r.experts), r.d_probs.floats(), r.score_grad.floats(), kBalance,
                         kZ);
    };
    for (size_t i = 0; i < logits.size(); i += 1 + logits.size() / 40) {
      const float value = logits[i], step = 1.0f / 256;
      logits[i] = value + step;
      const double above = loss();
      logits[i] = value - step;
      const double below = loss();
      logits[i] = value;
      EXPECT_NEAR(grad[i], (above - below) / (2.0 * static_cast<double>(step)), 2e-3)
          << c.experts << " " << i;
    }
  }
}

TEST(Moe, StatisticsAndBalanceFollowTheirDefinitions) {
  for (const RouterCase& c : kRouterCases) {
    for (const BalanceScope scope :
         {BalanceScope::microbatch, BalanceScope::sequence, BalanceScope::global}) {
      const RouterTensors r(cpu(), c);
      r.forward(cpu(), c, scope);
      const std::vector<float> logits = r.logits.floats();
      const std::vector<int32_t> experts = ints_of(r.experts), counts = ints_of(r.counts);
      const int64_t length = c.tokens / c.sequences;
      double loss = 0.0, squares = 0.0, entropy = 0.0, tokens = 0.0;
      std::vector<double> all(static_cast<size_t>(c.experts)), own, scores_of_sequence;
      for (const int32_t e : experts)
        if (e >= 0) all[static_cast<size_t>(e)] += 1.0;
      const double selections = std::accumulate(all.begin(), all.end(), 0.0);
      for (int64_t s = 0; s < c.sequences; ++s) {
        own.assign(all.size(), 0.0), scores_of_sequence.assign(all.size(), 0.0);
        double tokens_of_sequence = 0.0;
        for (int64_t t = s * length; t < (s + 1) * length; ++t) {
          if (RouterTensors::is_padding(c, t)) continue;
          tokens_of_sequence += 1.0;
          const std::vector<double> scores = scores_of(&logits[t * c.experts], c.experts, c.rule.score);
          const double total = std::accumulate(scores.begin(), scores.end(), 0.0);
          double exponentials = 0.0;
          for (int64_t e = 0; e < c.experts; ++e) {
            const double share = scores[static_cast<size_t>(e)] / total;
            scores_of_sequence[static_cast<size_t>(e)] += share;
            entropy -= share * std::log(share);
            exponentials += std::exp(static_cast<double>(logits[t * c.experts + e]));
          }
          squares += std::pow(std::log(exponentials), 2.0);
          for (int64_t i = 0; i < c.rule.topk; ++i)
            own[static_cast<size_t>(experts[t * c.rule.topk + i])] += 1.0;
        }
        for (size_t e = 0; e < all.size(); ++e) {
          EXPECT_EQ(counts[static_cast<size_t>(s) * all.size() + e], static_cast<int32_t>(own[e]));
          if (tokens_of_sequence == 0.0) continue;
          // step_counts starts at 3 for each expert, after two microbatches.
          const double share = scope == BalanceScope::sequence
                                   ? own[e] / (tokens_of_sequence * static_cast<double>(c.rule.topk))
                               : scope == BalanceScope::global
                                   ? (all[e] + 3.0) / (selections + 3.0 * static_cast<double>(c.experts))
                                   : all[e] / selections;
          loss += static_cast<double>(c.experts) * share * scores_of_sequence[e];
        }
        tokens += tokens_of_sequence;
      }
      const std::vector<float> sums = r.step_sums.floats();
      EXPECT_NEAR(sums[0] - 0.5, loss, 1e-4 * loss) << c.experts;
      EXPECT_NEAR(sums[1] - 0.25, squares, 1e-4 * squares);
      EXPECT_NEAR(sums[2] - 0.125, entropy, 1e-4 * entropy + 1e-6);
      EXPECT_EQ(sums[3], 3.0f);
      EXPECT_EQ(sums[4], 8.0f + static_cast<float>(tokens));
      const std::vector<int32_t> step_counts = ints_of(r.step_counts);
      for (size_t e = 0; e < all.size(); ++e) EXPECT_EQ(step_counts[e], static_cast<int32_t>(all[e]) + 3);
    }
  }
}

TEST(Moe, BalancedRoutingHasBalanceLossOne) {
  const RouterCase c{16, 4, {.topk = 2}};
  const RouterTensors r(cpu(), c);
  std::vector<float> logits;
  for (int t = 0; t < 16; ++t)
    for (int e = 0; e < 4; ++e) logits.push_back((e + t) % 4 < 2 ? 1.0f : 0.0f);
  TestTensor filled(cpu(), DType::f32, {16, 4});
  filled.fill(logits);
  router_forward(cpu(), {.rule = c.rule, .logits = filled, .experts = r.experts, .probs = r.probs});
  router_statistics(cpu(), {.logits = filled,
                            .experts = r.experts,
                            .counts = r.counts,
                            .score_sums = r.score_sums,
                            .token_sums = r.token_sums,
                            .scratch = r.scratch});
  router_balance(cpu(), {.topk = 2,
                         .counts = r.counts,
                         .score_sums = r.score_sums,
                         .token_sums = r.token_sums,
                         .score_grad = r.score_grad,
                         .step_counts = r.step_counts,
                         .step_sums = r.step_sums});
  EXPECT_NEAR((r.step_sums.floats()[0] - 0.5f) / 16.0f, 1.0f, 1e-5f);
}

TEST(Moe, BiasMovesTowardsBalance) {
  TestTensor bias(cpu(), DType::f32, {4}), counts(cpu(), DType::i32, {4}), skip(cpu(), DType::i32, {1});
  bias.fill({0.0f, 0.5f, -0.5f, 0.25f});
  counts.fill_ints({4, 8, 0, 4});
  skip.fill_ints({1});
  router_bias_update(
      cpu(), {.bias = bias, .counts = counts, .rate = 0.125f, .skip = skip.get().as<const int32_t>()});
  EXPECT_EQ(bias.floats(), (std::vector<float>{0.0f, 0.5f, -0.5f, 0.25f}));
  router_bias_update(cpu(), {.bias = bias, .counts = counts, .rate = 0.125f});
  EXPECT_EQ(bias.floats(), (std::vector<float>{0.0f, 0.375f, -0.375f, 0.25f}));
  // A part of the bias, of another rank.
  TestTensor part(cpu(), DType::f32, {2});
  part.fill({0.5f, -0.5f});
  router_bias_update(cpu(), {.bias = part, .first = 1, .counts = counts, .rate = 0.125f});
  EXPECT_EQ(part.floats(), (std::vector<float>{0.375f, -0.375f}));
}

TEST(Moe, RouterGemmMatchesGemm) {
  const int64_t m = 70, n = 9, k = 33;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TestTensor x(cpu(), dtype, {m, k}), w(cpu(), dtype, {n, k}), y(cpu(), DType::f32, {m, n}),
        expected(cpu(), DType::f32, {m, n}), scratch(cpu(), DType::u8, {router_gemm_scratch(m, n, k)});
    x.fill_normal(1), w.fill_normal(2);
    router_gemm(cpu(), {.x = x, .weight = w, .logits = y});
    gemm(cpu(), {.a = x, .b = w, .out = expected, .trans_b = true});
    EXPECT_LT(testing::relative_error(y.floats(), expected.floats()), 1e-6);
    // dx and dw mix FP32 gradients with operands of the model's dtype.
    TestTensor dx(cpu(), dtype, {m, k}), dw(cpu(), DType::f32, {n, k}), wide(cpu(), DType::f32, {m, k});
    dx.fill_value(1.0f), dw.fill_value(2.0f);
    RouterGemmBackward backward{
        .d_logits = y, .x = x, .weight = w, .dx = dx, .d_weight = dw, .accumulate = true, .scratch = scratch};
    router_gemm_backward(cpu(), backward);
    wide.fill(x.floats());
    TestTensor dw_expected(cpu(), DType::f32, {n, k});
    dw_expected.fill_value(2.0f);
    gemm(cpu(), {.a = y, .b = wide, .out = dw_expected, .trans_a = true, .accumulate = true});
    EXPECT_LT(testing::relative_error(dw.floats(), dw_expected.floats()), 1e-6);
    const std::vector<float> ys = y.floats(), ws = w.floats(), dxs = dx.floats(), dws = dw.floats();
    for (int64_t i = 0; i < m * k; i += 17) {
      double sum = 1.0;
      for (int64_t e = 0; e < n; ++e)
        sum += static_cast<double>(ys[i / k * n + e]) * static_cast<double>(ws[e * k + i % k]);
      EXPECT_NEAR(dxs[i], sum, (dtype == DType::f32 ? 1e-5 : 0.005) * (std::abs(sum) + 1.0));
    }
    backward.d_weight = {};  // not trained
    router_gemm_backward(cpu(), backward);
    EXPECT_EQ(dw.floats(), dws);
    EXPECT_NE(dx.floats(), dxs);
  }
}

// The parts of the sum of d_weight on a GPU have at least 256 tokens, and at most some megabytes.
TEST(Moe, PartsOfTheRoutersGradient) {
  EXPECT_EQ(router_gemm_parts(32768, 128, 2048), 8);
  EXPECT_EQ(router_gemm_parts(32768, 256, 7168), 2);
  EXPECT_EQ(router_gemm_parts(300, 128, 2048), 1);
  EXPECT_EQ(router_gemm_parts(1, 1, 16), 1);
}

// --- permutation -------------------------------------------------------------------------------------------

TEST(Moe, RowsOfAnExpertAreContiguousAlignedAndInTheOrderOfTokens) {
  for (const MoeCase& c : kMoeCases) {
    const MoeOrder order(cpu(), c);
    const std::vector<int32_t> experts = ints_of(order.experts), offsets = ints_of(order.offsets),
                               row_of = ints_of(order.row_of), source = ints_of(order.source);
    EXPECT_EQ(offsets.front(), 0);
    EXPECT_LE(offsets.back(), order.rows());
    std::set<int32_t> used;
    for (size_t i = 0; i < experts.size(); ++i) {
      EXPECT_EQ(source[static_cast<size_t>(row_of[i])], static_cast<int32_t>(i));
      EXPECT_TRUE(used.insert(row_of[i]).second);
      EXPECT_GE(row_of[i], offsets[static_cast<size_t>(experts[i])]);
      EXPECT_LT(row_of[i], offsets[static_cast<size_t>(experts[i]) + 1]);
    }
    for (int64_t e = 0; e < c.experts; ++e) {
      const int64_t count = std::count(experts.begin(), experts.end(), static_cast<int32_t>(e));
      const int64_t first = offsets[static_cast<size_t>(e)], end = offsets[static_cast<size_t>(e) + 1];
      EXPECT_EQ(end - first, (count + c.alignment - 1) / c.alignment * c.alignment);
      for (int64_t r = first + 1; r < first + count; ++r)
        EXPECT_LT(source[static_cast<size_t>(r - 1)], source[static_cast<size_t>(r)]);
    }
    EXPECT_EQ(std::count(source.begin(), source.end(), -1), order.rows() - c.tokens * c.topk);
  }
}

TEST(Moe, WorstRoutingNeedsNoMoreThanTheMaximum) {
  // One token per expert but the first, which gets all others: each range ends with nearly a whole tile of padding.
  EXPECT_EQ(max_expert_rows(10, 1, 4, 8), 32);
  EXPECT_EQ(max_expert_rows(2, 1, 100, 8), 16);
  EXPECT_EQ(max_expert_rows(3, 2, 8, 1), 6);
}

// Each received row has one place; rows of an expert are in the order of ranks and tokens, also over the rounds.
TEST(Moe, DispatchOrdersReceivedRowsByExperts) {
  for (const DispatchCase& c : kDispatchCases) {
    std::map<int64_t, std::vector<std::pair<size_t, int32_t>>> order;  // of each expert: rank, number
    const DispatchOrder all(cpu(), c);
    for (int round = 0; round < all.rounds; ++round) {
      const auto ints = [&](int tensor) {
        const std::vector<uint8_t>& raw = all.results[static_cast<size_t>(3 * round + tensor)];
        std::vector<int32_t> values(raw.size() / sizeof(int32_t));
        std::copy_n(raw.data(), raw.size(), reinterpret_cast<uint8_t*>(values.data()));
        return values;
      };
      const std::vector<int32_t> offsets = ints(0), source = ints(1), row_of = ints(2);
      // 1. What the round transfers: the next `capacity` rows by expert, rank and token; received by rank.
      int64_t position = 0;
      std::vector<std::vector<std::pair<int64_t, int32_t>>> received(c.counts.size());  // expert, number
      for (int64_t e = 0; e < c.experts; ++e)
        for (size_t rank = 0; rank < c.counts.size(); ++rank)
          for (int32_t i = 0; i < c.counts[rank][static_cast<size_t>(c.first_expert + e)]; ++i, ++position)
            if (position / c.capacity == round) received[rank].emplace_back(e, i);
      std::vector<std::tuple<int64_t, size_t, int32_t>> rows;
      for (size_t rank = 0; rank < received.size(); ++rank)
        for (const auto& [e, i] : received[rank]) rows.emplace_back(e, rank, i);
      // 2. Their places.
      int64_t used = 0;
      for (int64_t e = 0; e < c.experts; ++e) {
        const int32_t first = offsets[static_cast<size_t>(e)], end = offsets[static_cast<size_t>(e) + 1];
        EXPECT_EQ(first % c.alignment, 0);
        for (int32_t row = first; row < end; ++row) {
          const int32_t from = source[static_cast<size_t>(row)];
          if (from < 0) continue;
          ++used;
          EXPECT_EQ(row_of[static_cast<size_t>(from)], row);
          const auto& [expert, rank, i] = rows.at(static_cast<size_t>(from));
          EXPECT_EQ(expert, e);
          order[e].emplace_back(rank, i);
        }
      }
      EXPECT_EQ(used, static_cast<int64_t>(rows.size()));
      EXPECT_EQ(std::count(row_of.begin(), row_of.end(), -1), c.capacity - used);
    }
    for (int64_t e = 0; e < c.experts; ++e) {
      EXPECT_TRUE(std::is_sorted(order[e].begin(), order[e].end()));
      int64_t count = 0;
      for (const std::vector<int32_t>& rank : c.counts)
        count += rank[static_cast<size_t>(c.first_expert + e)];
      EXPECT_EQ(static_cast<int64_t>(order[e].size()), count);
    }
  }
}

TEST(Moe, GatherOfValues) {
  TestTensor x(cpu(), DType::f32, {4}), index(cpu(), DType::i32, {5}), out(cpu(), DType::f32, {5});
  x.fill({1, 2, 3, 4}), index.fill_ints({3, -1, 0, 0, 2});
  gather_values(cpu(), {.x = x, .index = index, .out = out});
  EXPECT_EQ(out.floats(), (std::vector<float>{4, 0, 1, 1, 3}));
}

TEST(Moe, UnpermuteAddsTheRowsOfPermute) {
  for (const MoeCase& c : kMoeCases) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const MoeOrder order(cpu(), c);
      const int64_t cols = 11;
      TestTensor x(cpu(), dtype, {c.tokens, cols}), rows(cpu(), dtype, {order.rows(), cols}),
          y(cpu(), dtype, {c.tokens, cols});
      x.fill_normal(1);
      permute(cpu(), {.x = x, .source = order.source, .topk = c.topk, .rows = rows});
      unpermute(cpu(), {.rows = rows, .row_of = order.row_of, .addend = x, .y = y});
      const std::vector<float> in = x.floats(), out = y.floats(), permuted = rows.floats();
      const std::vector<int32_t> source = ints_of(order.source);
      for (size_t i = 0; i < in.size(); ++i) {
        float sum = in[i];
        for (int64_t n = 0; n < c.topk; ++n) sum += in[i];
        EXPECT_EQ(out[i], dtype == DType::bf16 ? to_float(to_bf16(sum)) : sum);
      }
      for (size_t r = 0; r < source.size(); ++r)
        if (source[r] < 0) {
          EXPECT_EQ(permuted[r * cols], 0.0f);
        }
    }
  }
}

TEST(Moe, GateOfTheAddendHasTheRightGradient) {
  const MoeCase c{5, 3, 2, 4};
  const MoeOrder order(cpu(), c);
  const int64_t cols = 6;
  TestTensor rows(cpu(), DType::f32, {order.rows(), cols}), addend(cpu(), DType::f32, {5, cols}),
      gate(cpu(), DType::f32, {5, 1}), y(cpu(), DType::f32, {5, cols}), dy(cpu(), DType::f32, {5, cols}),
      d_addend(cpu(), DType::f32, {5, cols}), d_gate(cpu(), DType::f32, {5, 1});
  rows.fill_normal(1), addend.fill_normal(2), gate.fill_normal(3), dy.fill_normal(4);
  expert_gate_backward(cpu(),
                       {.addend = addend, .gate = gate, .dy = dy, .d_addend = d_addend, .d_gate = d_gate});
  const auto forward = [&] {
    unpermute(cpu(), {.rows = rows, .row_of = order.row_of, .addend = addend, .gate = gate, .y = y});
  };
  check_gradient(forward, gate, d_gate, y, dy, 0.01f);
  check_gradient(forward, addend, d_addend, y, dy, 0.01f);
}

TEST(Moe, RefusesImpossibleRules) {
  TestTensor logits(cpu(), DType::f32, {2, 8}), experts(cpu(), DType::i32, {2, 4}),
      probs(cpu(), DType::f32, {2, 4});
  const auto route = [&](const RouterRule& rule) {
    router_forward(cpu(), {.rule = rule, .logits = logits, .experts = experts, .probs = probs});
  };
  EXPECT_THROW(route({.topk = 9}), InternalError);
  EXPECT_THROW(route({.topk = 4, .groups = 3, .group_topk = 1}), InternalError);
  EXPECT_THROW(route({.topk = 4, .groups = 4, .group_topk = 1}), InternalError);
  EXPECT_THROW(route({.topk = 4, .groups = 4, .group_topk = 3}), InternalError);
}

}  // namespace
}  // namespace te::kernels
