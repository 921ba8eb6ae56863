// Schedules differ only in the order of their work: losses, gradients, FP32 master weights and FP8 state are bitwise
// equal under all of them. The gradient norm is summed in the order of a rank's parameters, so it is bitwise equal
// where ranks hold the same layers; the runs here do not clip, so that it affects nothing else.
#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "layout_cases.h"
#include "layout_run.h"
#include "parallel/groups.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using parallel::Groups;
using parallel::ProcessGrid;

template <class Values>
size_t hash_of(const Values& values) {
  return std::hash<std::string_view>{}(
      {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])});
}

/// The lines of all ranks, sorted.
std::vector<std::string> lines_of_all_ranks(const std::string& own) {
  std::vector<std::string> lines;
  for (const std::string& rank : world().gather_strings(own)) {
    std::istringstream text(rank);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
  }
  std::ranges::sort(lines);
  return lines;
}

/// One line per part of a parameter: its name, and hashes of its indices and values.
std::vector<std::string> lines_of(const Parts& parts) {
  std::string own;
  for (const Part& part : parts)
    own += fmt::format("{} {:x} {:x}\n", part.name, hash_of(part.index), hash_of(part.value));
  return lines_of_all_ranks(own);
}

/// The same for scales and histories of FP8 operands.
std::vector<std::string> fp8_lines(const Trace& trace) {
  std::string own;
  for (const auto& [step, operands] : trace.fp8)
    for (const auto& [name, values] : operands)
      own += fmt::format("{} {} {:x}\n", step, name, hash_of(values));
  return lines_of_all_ranks(own);
}

struct Order {
  PipelineSchedule schedule;
  int chunks = 1;
};

TEST(Schedules, ChangeNoBit) {
  if (world().size() == 1) GTEST_SKIP() << "no pipeline";
  if (world().size() > 4) GTEST_SKIP() << "two and four ranks cover all cases";
  const RunOptions options{.steps = 3, .grads_at = {2}, .valid_microbatches = 2};
  const auto compare = [&](Case c, int tensor) {
    SCOPED_TRACE(fmt::format("tensor {}, tied {}, precision {}", tensor, c.tied(), int(c.precision)));
    c.tensor = tensor;
    c.pipeline = world().size() / tensor;
    c.sequence = tensor > 1;
    c.layers = 2 * c.pipeline;
    const Groups groups =
        Groups::connect(world(), Context::cpu(), ProcessGrid::of(world().size(), c.tensor, 1, c.pipeline));
    const auto trace_of = [&](Order order) {
      c.schedule = order.schedule;
      c.chunks = order.chunks;
      config::Config config = make_config(c);
      config.optimizer.clip_grad = 0;
      config.training.global_batch_size = 16;  // two groups of microbatches on four stages
      return train_small(config, groups, options);
    };
    const Trace zero = trace_of({PipelineSchedule::zero_bubble, 2});
    for (const Order order : {Order{PipelineSchedule::interleaved, 2}, Order{PipelineSchedule::one_f_one_b},
                              Order{PipelineSchedule::zero_bubble}}) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(order.schedule), order.chunks));
      const Trace other = trace_of(order);
      EXPECT_EQ(zero.loss, other.loss);
      EXPECT_EQ(zero.valid_loss, other.valid_loss);
      EXPECT_EQ(lines_of(zero.grads.at(2)), lines_of(other.grads.at(2)));
      EXPECT_EQ(lines_of(zero.mains), lines_of(other.mains));
      EXPECT_EQ(fp8_lines(zero), fp8_lines(other));
      if (order.chunks == 2) {
        EXPECT_EQ(zero.grad_norm, other.grad_norm);
      }
    }
    EXPECT_FALSE(lines_of(zero.mains).empty());
    EXPECT_NE(zero.loss.front(), zero.loss.back());
  };
  const auto cases = [&](int tensor) {
    compare({.family = Family::llama, .precision = Precision::fp32, .variant = true}, tensor);
    compare({.family = Family::gpt, .precision = Precision::bf16, .dropout = true}, tensor);
    compare({.family = Family::gpt, .precision = Precision::delayed, .variant = true}, tensor);
    compare({.family = Family::llama, .precision = Precision::blockwise}, tensor);
  };
  cases(1);
  if (world().size() == 4) cases(2);
}

}  // namespace
}  // namespace te::testing
