// CPU reference of the capacity of experts, and ops on rows of which some selections have none.
#include <algorithm>
#include <cmath>

#include "moe_cases.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

TEST(MoeCapacity, IsAShareOfTheBalancedLoad) {
  EXPECT_EQ(expert_capacity(32, 4, 1.0), 8);
  EXPECT_EQ(expert_capacity(32, 4, 1.1), 9);
  EXPECT_EQ(expert_capacity(3, 64, 0.1), 1);
  EXPECT_EQ(expert_capacity(0, 64, 0.1), 1);
  EXPECT_EQ(max_expert_rows(100, 2, 4, 8, 10), 64);
  EXPECT_EQ(max_expert_rows(10, 1, 4, 8, 10), 32);
}

// Expert 1 keeps the two most probable of its tokens, and of equal ones the first.
TEST(MoeCapacity, KeepsTheMostProbableSelections) {
  TestTensor experts(cpu(), DType::i32, {4, 2}), probs(cpu(), DType::f32, {4, 2}),
      kept(cpu(), DType::i32, {4, 2}), offsets(cpu(), DType::i32, {3}), row_of(cpu(), DType::i32, {4, 2}),
      source(cpu(), DType::i32, {8});
  experts.fill_ints({0, 1, 1, 0, 1, 0, 0, 1});
  probs.fill({0.5f, 0.25f, 0.75f, 0.125f, 0.25f, 0.75f, 0.625f, 0.125f});
  expert_rows(cpu(), {.experts = experts, .offsets = offsets, .row_of = row_of, .source = source});
  limit_experts(cpu(), {.probs = probs, .offsets = offsets, .source = source, .capacity = 2, .kept = kept});
  EXPECT_EQ(ints_of(kept), (std::vector<int32_t>{-1, 1, 1, -1, -1, 0, 0, -1}));
}

// Padding selects no expert, so the memory that positions need may be above the load of the tokens.
TEST(MoeCapacity, FactorIsOfTheSelections) {
  const MoeCase c{33, 8, 2, 16};
  const LimitedOrder limited(cpu(), c, 9), by_factor(cpu(), c, 33, 1.0), both(cpu(), c, 3, 1.0),
      three(cpu(), c, 3);
  EXPECT_EQ(by_factor.kept.raw(), limited.kept.raw());  // ceil(66 / 8)
  EXPECT_EQ(both.kept.raw(), three.kept.raw());
}

TEST(MoeCapacity, RowsHaveTheKeptSelections) {
  for (const MoeCase& c : kMoeCases)
    for (const int64_t capacity : {int64_t{1}, int64_t{3}, c.tokens}) {
      const LimitedOrder order(cpu(), c, capacity);
      const std::vector<int32_t> chosen = expert_choices(c), kept = ints_of(order.kept),
                                 row_of = ints_of(order.row_of), source = ints_of(order.source);
      int64_t dropped = 0;
      for (size_t i = 0; i < kept.size(); ++i) {
        if (kept[i] < 0) {
          ++dropped;
          EXPECT_EQ(row_of[i], -1);
          continue;
        }
        EXPECT_EQ(kept[i], chosen[i]);
        EXPECT_EQ(source[static_cast<size_t>(row_of[i])], static_cast<int32_t>(i));
      }
      EXPECT_EQ(order.dropped.floats(), (std::vector<float>{5.0f + static_cast<float>(dropped),
                                                            6.0f + static_cast<float>(kept.size())}));
      for (int64_t e = 0; e < c.experts; ++e) {
        const auto of = [e](const std::vector<int32_t>& all) {
          return std::count(all.begin(), all.end(), static_cast<int32_t>(e));
        };
        EXPECT_EQ(of(kept), std::min<int64_t>(of(chosen), capacity));
      }
    }
}

TEST(MoeCapacity, DroppedSelectionsAddNothing) {
  const MoeCase c{33, 8, 2, 16};
  const LimitedOrder order(cpu(), c, 4);
  TestTensor x(cpu(), DType::f32, {c.tokens, 3}), rows(cpu(), DType::f32, {order.source.get().numel(), 3}),
      y(cpu(), DType::f32, {c.tokens, 3});
  x.fill_normal(1);
  permute(cpu(), {.x = x, .source = order.source, .topk = c.topk, .rows = rows});
  unpermute(cpu(), {.rows = rows, .row_of = order.row_of, .y = y});
  const std::vector<float> in = x.floats(), out = y.floats();
  const std::vector<int32_t> kept = ints_of(order.kept);
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t token = i / 3 * 2;
    const int copies = (kept[token] >= 0 ? 1 : 0) + (kept[token + 1] >= 0 ? 1 : 0);
    EXPECT_EQ(out[i], static_cast<float>(copies) * in[i]);
  }
}

// The probability of a dropped selection has no gradient, whatever its memory contains.
TEST(MoeCapacity, DroppedProbabilitiesHaveNoGradient) {
  const RouterCase c{6, 8, {.topk = 3}};
  const RouterTensors tensors(cpu(), c);
  tensors.forward(cpu(), c, BalanceScope::microbatch);
  std::vector<int32_t> row_of(18, 1);
  std::vector<float> zero = tensors.d_probs.floats(), nan = zero;
  for (const size_t i : {size_t{0}, size_t{7}, size_t{8}})
    row_of[i] = -1, zero[i] = 0.0f, nan[i] = std::nanf("");
  TestTensor rows(cpu(), DType::i32, {6, 3}), d_probs(cpu(), DType::f32, {6, 3}),
      d_logits(cpu(), DType::f32, {6, 8});
  rows.fill_ints(row_of);
  const auto gradient = [&](const std::vector<float>& d, const Tensor& of) {
    d_probs.fill(d);
    router_backward(cpu(), {.rule = c.rule,
                            .logits = tensors.logits,
                            .experts = tensors.experts,
                            .d_probs = d_probs,
                            .row_of = of,
                            .d_logits = d_logits});
    return d_logits.floats();
  };
  const std::vector<float> expected = gradient(zero, {});
  EXPECT_EQ(gradient(nan, rows), expected);
}

}  // namespace
}  // namespace te::kernels
