// Operands of experts: data-parallel ranks hold different ones, so their amaxes are reduced over other ranks than those
// of dense operands.
#include <cmath>

#include "fp8/recipe.h"
#include "parallel/groups.h"
#include "parallel/mpi_communicator.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using fp8::OperandRole;
using parallel::Group;
using parallel::Groups;
using parallel::ProcessGrid;

constexpr int kExperts = 2;  ///< ranks that divide the experts

class ExpertAmax : public ::testing::Test {
 protected:
  // With four ranks also two tensor-parallel ranks, which have different experts.
  void for_each_grid(const std::function<void(const Groups&)>& run) {
    for (const int tensor : {1, 2}) {
      if (world().size() / tensor < kExperts) continue;
      const ProcessGrid grid = ProcessGrid::of(world().size(), tensor, 1, 1, kExperts);
      SCOPED_TRACE(grid.str());
      const Groups groups = Groups::connect(world(), cpu_, grid);
      run(groups);
    }
  }

  /// A recipe whose layers have a dense linear and one of an expert.
  std::unique_ptr<fp8::Recipe> make_recipe(const Groups& groups, config::Fp8Recipe scaling) {
    config::PrecisionConfig precision;
    precision.fp8 = config::Fp8Mode::hybrid;
    precision.fp8_recipe = scaling;
    auto recipe = fp8::make_recipe(precision, 2);
    for (int layer = 0; layer < 2; ++layer) {
      for (const OperandRole role : {OperandRole::input, OperandRole::weight}) {
        quantizers_.push_back(recipe->quantizer({layer, LinearKind::qkv}, role));
        quantizers_.push_back(recipe->quantizer({layer, LinearKind::fc1}, role, GradientGroup::expert));
      }
    }
    recipe->set_amax_groups(groups.microbatch(), groups.stage());
    recipe->set_expert_amax_group(groups.gradient_ranks(GradientGroup::expert));
    return recipe;
  }

  /// The largest value of `of_rank` among the ranks that share an operand's scale.
  template <class OfRank>
  static float largest(const Groups& groups, GradientGroup group, const OfRank& of_rank) {
    float result = 0;
    for (const int other : groups.stage().world_ranks()) {
      const std::vector<int> copies = groups.grid().members(Group::expert_data, other);
      bool shares = group == GradientGroup::dense;
      for (const int copy : copies) shares |= copy == world().rank();
      if (shares) result = std::max(result, of_rank(other));
    }
    return result;
  }

  const Context cpu_ = Context::cpu();
  std::vector<fp8::Quantizer> quantizers_;
};

TEST_F(ExpertAmax, DelayedScalesCoverTheRanksOfTheOperand) {
  for_each_grid([&](const Groups& groups) {
    const auto recipe = make_recipe(groups, config::Fp8Recipe::delayed);
    MemoryPlan plan;
    recipe->plan(plan);
    const DeviceBuffer memory = plan.allocate(cpu_);
    recipe->reset(cpu_);
    fp8::ScaleTable& table = recipe->table();
    ASSERT_EQ(table.size(), 8);
    const auto amax_of = [](int rank, int row) { return 1.0f + static_cast<float>((rank + 1) * (row + 1)); };
    for (int row = 0; row < table.size(); ++row)
      *table.amax_of(row).as<float>() = amax_of(world().rank(), row);
    recipe->update(cpu_, nullptr);
    for (int row = 0; row < table.size(); ++row) {
      const float expected =
          largest(groups, table.info(row).group, [&](int rank) { return amax_of(rank, row); });
      EXPECT_EQ(table.last_amax.as<float>()[row], expected) << row;
      EXPECT_EQ(table.history.as<float>()[row], expected) << row;
    }
  });
}

// Weights that ranks quantize in shards: the bytes are those of one rank that holds all of the weight's values.
TEST_F(ExpertAmax, ShardedWeightsHaveTheScaleOfTheirRanks) {
  for_each_grid([&](const Groups& groups) {
    const auto recipe = make_recipe(groups, config::Fp8Recipe::tensorwise);
    fp8::ShardedWeightQuantizer& weights = recipe->sharded_weights();
    fp8::ShardedWeightQuantizer whole;
    std::vector<fp8::ShardedWeightQuantizer::Weight> registered;
    for (size_t i = 0; i < quantizers_.size(); ++i) {
      if (i % 4 < 2) continue;  // inputs
      const int number = quantizers_[i].register_sharded();
      whole.add(weights.at(number));
    }
    ASSERT_EQ(weights.size(), 4);
    MemoryPlan plan;
    recipe->plan(plan);
    weights.plan(plan);
    whole.plan(plan);
    const DeviceBuffer memory = plan.allocate(cpu_);
    recipe->reset(cpu_);
    whole.bind(cpu_);
    const auto value_of = [](int rank, int number) { return 0.3f * static_cast<float>(rank + number + 1); };
    std::vector<float> own(128), all(128);
    std::vector<uint8_t> bytes(128), expected(128);
    const auto flat = [](auto& values, DType dtype) { return Tensor{values.data(), dtype, {128}}; };
    weights.reset_amax(cpu_);
    whole.reset_amax(cpu_);
    for (int number = 0; number < weights.size(); ++number) {
      own.assign(128, value_of(world().rank(), number));
      all = own;
      all[0] = largest(groups, weights.at(number).group, [&](int rank) { return value_of(rank, number); });
      weights.record_amax(cpu_, number, flat(own, DType::f32));
      whole.record_amax(cpu_, number, flat(all, DType::f32));
    }
    weights.all_reduce_amax(cpu_, recipe->stage_ranks());
    whole.all_reduce_amax(cpu_, {});
    for (int number = 0; number < weights.size(); ++number) {
      own.assign(128, value_of(world().rank(), number));
      weights.quantize(cpu_, number, flat(own, DType::f32), flat(bytes, DType::u8), nullptr);
      whole.quantize(cpu_, number, flat(own, DType::f32), flat(expected, DType::u8), nullptr);
      EXPECT_EQ(bytes, expected) << number;
    }
    quantizers_.clear();
  });
}

}  // namespace
}  // namespace te::testing
