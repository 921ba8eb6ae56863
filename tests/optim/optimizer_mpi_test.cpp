// The distributed optimizer on CPU ranks, compared with a one-rank optimizer that receives the sums of all ranks'
// gradients. MPI sums in rank order in FP32 and rounds once, and so does the test: without clipping every number must
// be equal. With clipping the norm has a different summation order.
#include <algorithm>

#include "comm/replica_check.h"
#include "distributed_optimizer.h"
#include "kernels/common/granule.h"

namespace te::testing {
namespace {

TEST_F(DistributedOptimizer, EqualsOneRank) {
  on_every_grid([&](const Groups& groups) {
    for (const ReadyOrder order : kOrders) {
      EXPECT_LE(compare(groups, {.bucket_size = 700, .order = order}, {}), kNormBound);
    }
    for (const int64_t bucket_size : {int64_t{1}, int64_t{1} << 40}) {
      const Case c{.dtype = DType::bf16, .bucket_size = bucket_size, .order = ReadyOrder::shuffled};
      EXPECT_LE(compare(groups, c, {}), kNormBound);
    }
    for (const DType dtype : {DType::f32, DType::bf16}) {
      EXPECT_LE(compare(groups, {.dtype = dtype, .bucket_size = 700, .overlap = false}, {}), kNormBound);
    }
  });
}

TEST_F(DistributedOptimizer, EqualsOneRankWithGradientsInBf16) {
  on_every_grid([&](const Groups& groups) {
    for (const bool overlap : {true, false}) {
      for (const bool exact : {true, false}) {
        const Case c{.dtype = DType::bf16,
                     .grad_dtype = DType::bf16,
                     .bucket_size = 700,
                     .overlap = overlap,
                     .order = ReadyOrder::shuffled,
                     .exact = exact};
        EXPECT_LE(compare(groups, c, {}), kNormBound);
      }
    }
  });
}

// Every layout draws the same random numbers for an element. Tensor-parallel ranks have different FP8 blocks.
TEST_F(DistributedOptimizer, EqualsOneRankWithMomentsInFewerBits) {
  using config::MomentDType;
  on_every_grid([&](const Groups& groups) {
    for (const MomentDType moments : {MomentDType::bf16, MomentDType::fp8}) {
      if (moments == MomentDType::fp8 && groups.tensor().size() > 1) continue;
      for (const int64_t bucket_size : {int64_t{1}, int64_t{700}, int64_t{1} << 40}) {
        const Case c{.dtype = DType::bf16,
                     .moment_dtype = moments,
                     .bucket_size = bucket_size,
                     .order = ReadyOrder::shuffled};
        EXPECT_LE(compare(groups, c, {}), kNormBound);
      }
    }
  });
}

// The same numbers, though each element passes through a slot. The reference has its state on the device.
TEST_F(DistributedOptimizer, EqualsOneRankWithOffload) {
  using config::MomentDType;
  on_every_grid([&](const Groups& groups) {
    for (const config::Offload offload : {config::Offload::moments, config::Offload::state}) {
      for (const auto& [moments, bucket_size] : {std::pair{MomentDType::fp32, int64_t{1} << 40},
                                                 {MomentDType::bf16, int64_t{1}},
                                                 {MomentDType::fp8, int64_t{700}}}) {
        if (moments == MomentDType::fp8 && groups.tensor().size() > 1) continue;  // its blocks differ
        const Case c{.dtype = DType::bf16,
                     .moment_dtype = moments,
                     .bucket_size = bucket_size,
                     .order = ReadyOrder::shuffled,
                     .offload = offload};
        EXPECT_LE(compare(groups, c, {}), kNormBound);
      }
      EXPECT_LE(compare(groups, {.bucket_size = 700, .overlap = false, .offload = offload}, {}), kNormBound);
    }
  });
}

// The reference does not train the same parameters.
TEST_F(DistributedOptimizer, EqualsOneRankIfSomeParametersAreNotTrained) {
  on_every_grid([&](const Groups& groups) {
    for (const Case& c :
         {Case{.bucket_size = 700, .some_untrained = true},
          Case{.dtype = DType::bf16, .bucket_size = 1, .overlap = false, .some_untrained = true},
          Case{.dtype = DType::bf16,
          .moment_dtype = config::MomentDType::bf16,
          .bucket_size = 700,
          .order = ReadyOrder::shuffled,
          .some_untrained = true},
          Case{.dtype = DType::bf16,
          .bucket_size = 700,
          .muon = true,
          .offload = config::Offload::none,
          .some_untrained = true},
          Case{.dtype = DType::bf16,
          .bucket_size = 700,
          .order = ReadyOrder::halves,
          .offload = config::Offload::state,
          .some_untrained = true}})
      EXPECT_LE(compare(groups, c, {}), kNormBound);
    Rank rank(cpu_, groups, {.dtype = DType::bf16, .bucket_size = 700, .some_untrained = true});
    const ParameterStore& store = rank.store();
    EXPECT_LT(store.trained_size(), store.flat_size());
    EXPECT_EQ(store.grads.numel(), store.trained_size());
    EXPECT_EQ(store.mains.numel() * groups.data().size(), store.trained_size());
    EXPECT_EQ(rank.optimizer().exp_avg.count() * groups.data().size(), store.trained_size());
    rank.step(1);
    comm::check_replicas(cpu_, store, groups);
  });
}

// A sharded matrix is orthogonalized as a whole, with the same GEMMs as on one rank.
TEST_F(DistributedOptimizer, MuonEqualsOneRank) {
  on_every_grid([&](const Groups& groups) {
    for (const int64_t bucket_size : {int64_t{1}, int64_t{700}, int64_t{1} << 40}) {
      const Case c{.bucket_size = bucket_size, .order = ReadyOrder::shuffled, .muon = true};
      EXPECT_LE(compare(groups, c, {}), kNormBound);
    }
    EXPECT_LE(compare(groups, {.dtype = DType::bf16, .bucket_size = 700, .muon = true}, {}), kNormBound);
    EXPECT_LE(compare(groups,
                      {.dtype = DType::bf16,
                       .grad_dtype = DType::bf16,
                       .bucket_size = 700,
                       .overlap = false,
                       .muon = true},
                      {}),
              kNormBound);
  });
}

// Second moments that Muon does not need are not allocated, whatever part of them a rank would have.
TEST_F(DistributedOptimizer, MuonHasOneMomentOfAMatrix) {
  on_every_grid([&](const Groups& groups) {
    Rank adamw(cpu_, groups, {.bucket_size = 700}), muon(cpu_, groups, {.bucket_size = 700, .muon = true});
    int64_t matrices = 0, granules = 0;
    for (const Rank::Held& held : muon.held()) {
      if (held.parameter->matrices.empty()) continue;
      for (const ParameterStore::ShardRange& range : muon.store().shard_ranges(*held.parameter)) {
        EXPECT_FALSE(muon.optimizer().exp_avg_sq.contains(range.shard, range.count)) << held.parameter->name;
        matrices += range.count;
        granules += kernels::granules_of(range.count);
      }
    }
    EXPECT_GT(world().sum_i64(matrices, groups.world().world_ranks()), 0);
    const int64_t saved = adamw.optimizer().exp_avg_sq.count() - muon.optimizer().exp_avg_sq.count();
    EXPECT_GE(saved, matrices);
    EXPECT_LE(saved, granules * kernels::kAdamWGranule);
    EXPECT_EQ(muon.optimizer().exp_avg.count(), adamw.optimizer().exp_avg.count());
  });
}

TEST_F(DistributedOptimizer, EqualsOneRankWithClipping) {
  on_every_grid([&](const Groups& groups) {
    // The multiplier, and thus each step's gradient, is off by e <= kNormBound plus the rounding of its division.
    // exp_avg and the root of exp_avg_sq are then off by e times the largest gradient so far; an element's update, lr
    // exp_avg / sqrt(exp_avg_sq), by at most 5 e lr (exp_avg_sq after 5 steps is at least 0.05 / 0.23 of the largest
    // squared gradient). FP32 master weights, below 4, round by 2^-23 per step in addition.
    const float e = static_cast<float>(kNormBound) + 4.0f / (1 << 24);
    const float main = kSteps * (5e-2f * e + 2.4e-7f);
    const Tolerance tolerance{.main = main, .exp_avg = e, .exp_avg_sq = e, .value = main};
    const Case c{.bucket_size = 700, .clip = 0.25};
    EXPECT_LE(compare(groups, c, tolerance), kNormBound);
  });
}

TEST_F(DistributedOptimizer, EachDataParallelRankKeepsItsShard) {
  on_every_grid([&](const Groups& groups) {
    Rank rank(cpu_, groups, {.dtype = DType::bf16, .bucket_size = 700});
    const int64_t size = groups.data().size();
    EXPECT_EQ(rank.optimizer().exp_avg.count() * size, rank.store().flat_size());
    EXPECT_EQ(rank.store().mains.numel() * size, rank.store().flat_size());
    // Every element has exactly one owner in the data-parallel group.
    for (const Rank::Held& held : rank.held()) {
      int64_t count = 0;
      for (const ParameterStore::ShardRange& range : rank.store().shard_ranges(*held.parameter))
        count += range.count;
      EXPECT_EQ(world().sum_i64(count, groups.data().world_ranks()), held.parameter->shape.numel());
    }
  });
}

TEST_F(DistributedOptimizer, AllRanksSkipWhenOneHasANonFiniteNumber) {
  on_every_grid([&](const Groups& groups) {
    using config::Offload;
    for (const auto& [in_the_loss, muon, offload] : {std::tuple{false, false, Offload::none},
                                                     {true, false, Offload::none},
                                                     {false, true, Offload::none},
                                                     {true, false, Offload::moments},
                                                     {false, false, Offload::state}}) {
      const Case c{.dtype = DType::bf16, .bucket_size = 700, .muon = muon, .offload = offload};
      Rank rank(cpu_, groups, c), reference(cpu_, single_, c);
      for (int step = 1; step <= kSteps; ++step) {
        const bool skip = step == 3;
        rank.step(step, skip ? groups.data().size() - 1 : -1, in_the_loss);
        reference.step_with_sums(step, groups.grid(), skip);
        EXPECT_EQ(rank.optimizer().status().skipped, skip ? 1 : 0);
        expect_same_status(rank);
      }
      EXPECT_EQ(rank.optimizer().updates(), kSteps - 1);
      expect_equal(rank, Expected(reference), {});
    }
  });
}

TEST_F(DistributedOptimizer, ReplicasAreCompared) {
  on_every_grid([&](const Groups& groups) {
    Rank rank(cpu_, groups, {.bucket_size = 700});
    rank.step(1);
    comm::check_replicas(cpu_, rank.store(), groups);
    if (groups.tensor().size() == 1) return;
    // A norm weight differs in the last bit on one tensor-parallel rank, on every data-parallel rank.
    const Rank::Held& held = *std::ranges::find_if(
        rank.held(), [](const Rank::Held& h) { return h.definition.sharing == Sharing::partial; });
    std::vector<float> values = rank.read(held.parameter->value);
    if (groups.tensor().rank() == 1) values[5] = std::nextafter(values[5], 100.0f);
    rank.write(held.parameter->value, values);
    try {
      comm::check_replicas(cpu_, rank.store(), groups);
      ADD_FAILURE() << "the difference was not detected";
    } catch (const InternalError& error) {
      EXPECT_NE(std::string(error.what()).find(held.parameter->name), std::string::npos) << error.what();
    }
  });
}

TEST_F(DistributedOptimizer, MisuseIsAnError) {
  const Groups groups = Groups::connect(world(), cpu_, ProcessGrid::of(world().size(), 1, 1, 1));
  Rank rank(cpu_, groups, {.bucket_size = int64_t{1} << 40});
  comm::GradientReducer& reducer = rank.optimizer().reducer();
  EXPECT_THROW(reducer.ready(cpu_, 0, 1), InternalError);
  reducer.begin(cpu_);
  EXPECT_THROW(reducer.begin(cpu_), InternalError);
  EXPECT_THROW(rank.optimizer().begin_step(cpu_), InternalError);
  if (world().size() > 1) {
    reducer.ready(cpu_, 0, rank.layer_begin(1));
    // The single bucket counts elements: announcing the rest twice must be detected.
    reducer.ready(cpu_, rank.layer_begin(1), rank.store().flat_size());
    EXPECT_THROW(reducer.ready(cpu_, 0, 1), InternalError);
  }
  reducer.finish(cpu_);
  rank.step(1);
}

TEST_F(DistributedOptimizer, UnmarkedTiedParameterIsAnError) {
  const Groups planned = Groups::dry_run(ProcessGrid::of(2, 1, 1, 2), 0);
  ParameterStore store;
  store.add({.name = "words", .shard = ParameterShard::full({5, 3})});
  MemoryPlan plan;
  store.plan(plan, {});
  comm::GradientReducer reducer(true, store, planned);
  EXPECT_THROW(reducer.plan(plan), InternalError);
}

}  // namespace
}  // namespace te::testing
