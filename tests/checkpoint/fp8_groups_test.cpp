// The FP8 state of operands whose weights belong to different gradient groups: the first rank of each group saves it.
#include "checkpoint/training_state.h"
#include "testing/testing.h"

namespace te::checkpoint {
namespace {

using parameters::ShardRank;

std::vector<std::string> saved_by(const ShardRank& dense, const ShardRank& expert, int tensor_rank = 0) {
  const Context& cpu = testing::cpu();
  parameters::ParameterStore store;
  for (const GradientGroup group : kGradientGroups)
    store.add({.name = group == GradientGroup::dense ? "dense" : "expert",
               .shard = parameters::ParameterShard::full({128, 128}),
               .group = group});
  store.end_layer();
  fp8::ScaleTable table;
  table.add({.linear = {0, LinearKind::qkv}});
  table.add({.linear = {0, LinearKind::fc1}, .group = GradientGroup::expert});
  table.add({.linear = {0, LinearKind::proj}});
  MemoryPlan plan;
  store.plan(plan, {.ranks = {{dense, expert}}, .tensor_rank = tensor_rank});
  table.plan(plan, 4, false);
  const DeviceBuffer memory = plan.allocate(cpu);
  table.reset(cpu);
  const TrainingState state{.parameters = &store, .scales = &table};
  std::vector<std::string> names;
  if (saves_fp8(state))
    for (const Fp8State::Row& row : read_fp8(cpu, state).rows) names.push_back(row.operand.name);
  return names;
}

TEST(Fp8Groups, FirstRankOfEachGroupSavesItsOperands) {
  using Names = std::vector<std::string>;
  const Names dense{"layers.0.self_attention.linear_qkv", "layers.0.self_attention.linear_proj"},
      expert{"layers.0.mlp.linear_fc1"};
  Names all = dense;
  all.insert(all.begin() + 1, expert.front());
  EXPECT_EQ(saved_by({0, 2}, {0, 2}), all);
  // Two data-parallel ranks with different experts.
  EXPECT_EQ(saved_by({0, 2}, {0, 1}), all);
  EXPECT_EQ(saved_by({1, 2}, {0, 1}), expert);
  EXPECT_EQ(saved_by({1, 4}, {1, 2}), Names());
  // A tensor-parallel rank above 0, with other experts than rank 0.
  EXPECT_EQ(saved_by({0, 2}, {0, 1}, 1), expert);
}

}  // namespace
}  // namespace te::checkpoint
