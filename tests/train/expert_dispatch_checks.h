// Checks of the dispatch of tokens to experts of other ranks, for both devices.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "kernels/moe/permute.h"
#include "model/expert_dispatch.h"
#include "parallel/groups.h"
#include "testing/mpi.h"

namespace te::testing {

/// The experts of each token of a rank, [tokens * topk], different ones per token.
using Choices = std::function<std::vector<int32_t>(int rank)>;

struct DispatchProblem {
  int64_t tokens, topk, experts, alignment;
  double factor;
  Choices choices;
  int rounds;  ///< expected
};

/// Sends each token to its experts and back, with "experts" that multiply: y = (2 + expert) * x. All values are small
/// integers, so the results are exact.
inline void check_dispatch(const Context& context, parallel::Communicator& group, const DispatchProblem& c) {
  constexpr int64_t kHidden = 24;
  model::ExpertRanks ranks(group, c.factor);
  model::Dimensions dims;
  dims.tokens = c.tokens, dims.hidden = kHidden, dims.dtype = DType::f32;
  model::ExpertDispatch dispatch("test", ranks, dims, c.experts, c.topk, c.alignment, true);
  model::ExpertDispatch::Routing routing;
  MemoryPlan plan;
  dispatch.plan_routing(plan, routing);
  dispatch.plan_scratch(plan, false, false);
  const DeviceBuffer memory = plan.allocate(context);
  const int64_t selections = c.tokens * c.topk, rows = dispatch.rows();
  TestTensor x(context, DType::f32, {c.tokens, kHidden}), dy(context, DType::f32, {c.tokens, kHidden}),
      probs(context, DType::f32, {c.tokens, c.topk}), experts(context, DType::i32, {c.tokens, c.topk}),
      offsets(context, DType::i32, {c.experts + 1}), row_of(context, DType::i32, {c.tokens, c.topk}),
      source(context, DType::i32, {selections}), x_rows(context, DType::f32, {rows, kHidden}),
      dy_rows(context, DType::f32, {rows, kHidden}), y_rows(context, DType::f32, {rows, kHidden}),
      y(context, DType::f32, {c.tokens, kHidden}), d_probs(context, DType::f32, {c.tokens, c.topk}),
      numbers(context, DType::i32, {c.tokens, c.topk});
  const std::vector<int32_t> chosen = c.choices(group.rank());
  std::vector<float> tokens, gradients, given;
  for (int64_t i = 0; i < c.tokens * kHidden; ++i) {
    const int64_t value = group.rank() * 37 + i;
    tokens.push_back(static_cast<float>(value % 61)), gradients.push_back(static_cast<float>(value % 53));
  }
  for (int64_t i = 0; i < selections; ++i) given.push_back(static_cast<float>(group.rank() * 1000 + i));
  numbers.fill_ints({given.begin(), given.end()});
  experts.fill_ints(chosen), x.fill(tokens), dy.fill(gradients), probs.fill(given);
  kernels::expert_rows(
      context, {.experts = experts, .alignment = 1, .offsets = offsets, .row_of = row_of, .source = source});
  const int own = static_cast<int>(c.experts) / group.size();
  for (const bool backward : {false, true}) {
    dispatch.order_tokens(context, row_of, offsets, routing);
    if (!backward) dispatch.count(context, offsets, routing);
    if (backward) dispatch.pack_gradients(context, routing, dy, source);
    dispatch.pack(context, probs, numbers, source);
    dispatch.wait_for_counts(context, routing);
    const model::ExpertDispatch::Sent sent{source, row_of, {x}, {backward ? dy.get() : Tensor{}}};
    dispatch.start(context, routing, sent);
    EXPECT_EQ(routing.rounds, c.rounds);
    for (int round = 0; round < routing.rounds; ++round) {
      const auto got = dispatch.receive(context, routing, round, sent);
      const int64_t count = got.source.numel();
      const auto copy = [&](const model::ExpertDispatch::Received& from, const Tensor& to) {
        kernels::permute(
            context,
            {.x = from.values, .source = from.source, .topk = from.topk, .rows = to.slice_rows(0, count)});
      };
      copy(got.x, x_rows);
      if (backward) copy(got.dy, dy_rows);
      std::vector<int32_t> ends(static_cast<size_t>(own) + 1), from(static_cast<size_t>(count)),
          received_numbers(static_cast<size_t>(got.numbers.numel()));
      std::vector<float> received_probs(static_cast<size_t>(got.probs.numel()));
      context.copy_to_host(ends.data(), got.offsets), context.copy_to_host(from.data(), got.source);
      context.copy_to_host(received_probs.data(), got.probs);
      context.copy_to_host(received_numbers.data(), got.numbers);
      context.synchronize();
      EXPECT_EQ(count, std::max<int64_t>(ends.back(), c.alignment));
      std::vector<float> values = (backward ? dy_rows : x_rows).floats();
      for (int e = 0; e < own; ++e) {
        EXPECT_EQ(ends[static_cast<size_t>(e)] % c.alignment, 0);
        for (int64_t r = ends[static_cast<size_t>(e)]; r < ends[static_cast<size_t>(e) + 1]; ++r) {
          const int32_t at = from[static_cast<size_t>(r)];
          if (at >= 0) {
            EXPECT_EQ(static_cast<float>(received_numbers[static_cast<size_t>(at)]),
                      received_probs[static_cast<size_t>(at)]);
          }
          for (int64_t i = r * kHidden; i < (r + 1) * kHidden; ++i) {
            EXPECT_TRUE(at >= 0 || values[static_cast<size_t>(i)] == 0.0f);
            values[static_cast<size_t>(i)] *= static_cast<float>(2 + group.rank() * own + e);
          }
        }
      }
      y_rows.fill(values);
      if (backward) {  // of row r: its probability plus one
        std::vector<float> d_received(received_probs);
        for (float& value : d_received) value += 1.0f;
        context.copy_to_device(dispatch.d_probs(), d_received.data());
        context.synchronize();
      }
      dispatch.send_back(context, routing, round, y_rows.get().slice_rows(0, count), backward);
    }
    const auto returned = dispatch.returned(routing, row_of);
    kernels::unpermute(context, {.rows = returned.rows, .row_of = returned.row_of, .y = y});
    std::vector<float> expected = backward ? gradients : tokens;
    for (int64_t t = 0; t < c.tokens; ++t) {
      float factor = 0;
      for (int64_t i = 0; i < c.topk; ++i)
        factor += static_cast<float>(2 + chosen[static_cast<size_t>(t * c.topk + i)]);
      for (int64_t i = 0; i < kHidden; ++i) expected[static_cast<size_t>(t * kHidden + i)] *= factor;
    }
    EXPECT_EQ(y.floats(), expected) << (backward ? "backward" : "forward");
  }
  dispatch.returned_d_probs(context, row_of, d_probs);
  for (float& value : given) value += 1.0f;
  EXPECT_EQ(d_probs.floats(), given);
}

/// Balanced and unequal loads, idle ranks, numbers of tokens that are multiples of nothing.
inline void check_dispatches(const Context& context, parallel::Communicator& group) {
  const int size = group.size();
  const int64_t experts = 4 * size;
  const auto spread = [=](int rank) {
    std::vector<int32_t> all;
    for (int64_t i = 0; i < 37; ++i)
      for (int64_t slot = 0; slot < 3; ++slot)
        all.push_back(static_cast<int32_t>((i * 5 + rank + slot * 3) % experts));
    return all;
  };
  const auto last = [=](int) { return std::vector<int32_t>(29, static_cast<int32_t>(experts) - 1); };
  const auto one_rank = [=](int rank) {  // all of rank 0, others send nothing to each other
    std::vector<int32_t> all;
    for (int i = 0; i < 29; ++i) all.push_back(static_cast<int32_t>(rank == 0 ? i % 4 : (4 * rank + i % 2)));
    return all;
  };
  const DispatchProblem problems[] = {
      {37, 3, experts, 1, 2.0, spread, 1},   {37, 3, experts, 16, 2.0, spread, 1},
      {29, 1, experts, 16, 1.0, last, size}, {29, 1, experts, 128, 0.5, last, (29 * size + 14) / 15},
      {29, 1, experts, 1, 8.0, last, 1},     {29, 1, experts, 4, 1.0, one_rank, 1},
      {29, 1, experts, 4, 0.3, one_rank, 4}};
  for (const DispatchProblem& problem : problems) {
    SCOPED_TRACE(fmt::format("factor {}, alignment {}", problem.factor, problem.alignment));
    check_dispatch(context, group, problem);
  }
}

}  // namespace te::testing
