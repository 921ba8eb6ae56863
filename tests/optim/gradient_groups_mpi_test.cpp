// Gradient groups: parameters of which data-parallel ranks hold different ones (experts) are reduced, sharded and
// gathered over other ranks than the rest.
#include "comm/replica_check.h"
#include "core/random.h"
#include "distributed_optimizer.h"
#include "kernels/elementwise/elementwise.h"
#include "parallel/mpi_communicator.h"

namespace te::testing {
namespace {

using GradientGroups = DistributedOptimizer;

/// Divides the data-parallel ranks into groups with the same one of `experts` experts.
void set_expert_ranks(Groups& groups, int experts) {
  std::vector<int> ranks;
  const std::vector<int> data = groups.data().world_ranks();
  for (size_t i = 0; i < data.size(); ++i)
    if (static_cast<int>(i) % experts == groups.data().rank() % experts) ranks.push_back(data[i]);
  std::unique_ptr<parallel::Communicator> group;
  if (ranks.size() == 1)
    group = std::make_unique<parallel::SingleCommunicator>("expert", ranks.front());
  else
    group = std::make_unique<parallel::MpiCommunicator>(world(), "expert", ranks);
  groups.set_gradient_ranks(GradientGroup::expert, std::move(group));
}

// As above, with up to four more buckets: at most 19 roundings.
constexpr double kNormBoundOfExperts = 19.0 / (1 << 24);

TEST_F(GradientGroups, ExpertsEqualOneRankThatHoldsAll) {
  for (const ProcessGrid& grid : grids(world().size())) {
    for (int experts = 1; experts <= grid[Axis::data]; experts *= 2) {
      SCOPED_TRACE(fmt::format("{} with {} experts", grid.str(), experts));
      Groups groups = Groups::connect(world(), cpu_, grid);
      set_expert_ranks(groups, experts);
      for (const ReadyOrder order : {ReadyOrder::shuffled, ReadyOrder::halves}) {
        const Case c{.dtype = DType::bf16, .bucket_size = 700, .order = order, .experts = experts};
        EXPECT_LE(compare(groups, c, {}), kNormBoundOfExperts);
      }
      for (const Case& c : {Case{.bucket_size = 1, .overlap = false, .experts = experts},
                            Case{.bucket_size = 700, .muon = true, .experts = experts},
                            Case{.dtype = DType::bf16,
                            .bucket_size = 700,
                            .offload = config::Offload::state,
                            .experts = experts}})
        EXPECT_LE(compare(groups, c, {}), kNormBoundOfExperts);
      Rank rank(cpu_, groups, {.dtype = DType::bf16, .bucket_size = 700, .experts = experts});
      rank.step(1);
      comm::check_replicas(cpu_, rank.store(), groups);
      for (const Rank::Held& held : rank.held()) {
        int64_t count = 0;
        for (const ParameterStore::ShardRange& range : rank.store().shard_ranges(*held.parameter))
          count += range.count;
        const parallel::Communicator& owners = groups.gradient_ranks(held.parameter->group);
        EXPECT_EQ(world().sum_i64(count, owners.world_ranks()), held.parameter->shape.numel());
      }
    }
  }
}

// With sharded gradients and values (ZeRO-3) the buckets of each group pass through slots of that group. Three layers,
// two microbatches.
TEST_F(GradientGroups, HaveTheirOwnSlots) {
  const int size = world().size(), rank = world().rank();
  if (size == 1) return;
  const int experts = size / 2;
  Groups groups = Groups::connect(world(), cpu_, ProcessGrid::of(size, 1, 1, 1));
  set_expert_ranks(groups, std::max(experts, 1));
  for (const bool overlap : {true, false}) {
    const int slots = overlap ? 2 : 1;  // with overlap one is filled while another one is used
    ParameterStore store;
    std::vector<parameters::Parameter*> weights;
    for (int layer = 0; layer < 3; ++layer) {
      const auto add = [&](const std::string& name, int64_t rows, GradientGroup group) {
        weights.push_back(store.add({.name = fmt::format("{}.{}", layer, name),
                                     .shard = ParameterShard::full({rows, 24}),
                                     .std = 0.5f,
                                     .group = group}));
        weights.back()->linear = true;
      };
      add("qkv", 40, GradientGroup::dense);
      add(fmt::format("experts.{}", rank % std::max(experts, 1)), 50, GradientGroup::expert);
      add("router", 9, GradientGroup::dense);
      store.end_layer(true);
    }
    MemoryPlan plan;
    store.plan(plan, {.dtype = DType::f32,
                      .ranks = ranks_of(groups, store),
                      .grad_slots = slots,
                      .value_slots = slots,
                      .data_parallel = {.overlap_grad_reduce = overlap, .overlap_param_gather = overlap}});
    comm::GradientReducer reducer(false, store, groups);
    comm::ParameterGatherer gatherer(store, groups);
    reducer.plan(plan);
    const DeviceBuffer memory = plan.allocate(cpu_);
    store.bind(cpu_);
    store.initialize(cpu_, 7);
    gatherer.gather_all(cpu_);
    store.reset_gradients(cpu_);
    EXPECT_EQ(store.buckets().size(), 6u);
    const auto values_of = [](const parameters::Parameter& p) {
      std::vector<float> values(static_cast<size_t>(p.shape.numel()));
      kernels::fill_normal(
          Context::cpu(), {values.data(), DType::f32, {p.shape.numel()}}, p.std, 7, stream_of(p.name),
          {.local_cols = 24, .first_local = 0, .global_row = 0, .global_col = 0, .global_cols = 24});
      return values;
    };
    const auto found = [](int64_t i, int rank, int microbatch) {
      return static_cast<float>(i % 17 * (rank + 1) + microbatch);
    };
    reducer.begin(cpu_);
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      for (size_t layer = 3; layer-- > 0;) {
        for (const parameters::Bucket& range : store.ranges(3 * layer, 3 * layer + 3)) {
          gatherer.wait(cpu_, range.begin, range.end, -1);
          reducer.open(cpu_, range.begin, range.end);
        }
        for (size_t i = 3 * layer; i < 3 * layer + 3; ++i) {
          parameters::Parameter& p = *weights[i];
          const std::vector<float> expected = values_of(p);
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), p.value.as<float>())) << p.name;
          for (int64_t k = 0; k < p.shape.numel(); ++k) p.grad.as<float>()[k] = found(k, rank, microbatch);
          p.grad_stale = false;
        }
        for (const parameters::Bucket& range : store.ranges(3 * layer, 3 * layer + 3))
          reducer.ready(cpu_, range.begin, range.end, microbatch == 1);
      }
    }
    reducer.finish(cpu_);
    for (const parameters::Parameter* p : weights) {
      for (const ParameterStore::ShardRange& range : store.shard_ranges(*p)) {
        const Tensor sums = store.grad_of(p->offset + range.local, p->offset + range.local + range.count);
        for (int64_t k = 0; k < range.count; ++k) {
          float expected = 0;
          for (const int other : groups.gradient_ranks(p->group).world_ranks())
            for (int microbatch = 0; microbatch < 2; ++microbatch)
              expected += found(range.local + k, other, microbatch);
          ASSERT_EQ(sums.as<float>()[k], expected) << p->name << " " << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace te::testing
