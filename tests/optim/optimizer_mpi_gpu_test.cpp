// The distributed optimizer on GPUs, with CUDA streams and NCCL. NCCL has its own summation order, so the gradients
// have the same sum in any order; all numbers must then equal those of the one-rank optimizer on the CPU, whose AdamW
// is bitwise equal to the GPU's.
#include <algorithm>

#include "comm/replica_check.h"
#include "compare_ranks.h"
#include "kernels/adamw/adamw_math.h"
#include "kernels/elementwise/elementwise.h"
#include "parallel/launch.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

class DistributedOptimizerGpu : public ::testing::Test {
 protected:
  void compare(const Groups& groups, const Case& c, const Tolerance& tolerance = {}) {
    SCOPED_TRACE(c.str());
    Rank rank(device_, groups, c), reference(cpu_, single_, c);
    expect_equal(rank, Expected(reference), {});
    for (int step = 1; step <= kSteps; ++step) {
      rank.step(step);
      reference.step_with_sums(step, groups.grid());
      const optim::StepStatus actual = rank.optimizer().status(), expected = reference.optimizer().status();
      // FP64 sums of FP32 squares in a different order, rounded to FP32 a few times per rank and bucket.
      EXPECT_NEAR(actual.grad_norm, expected.grad_norm, 1e-5f * expected.grad_norm);
      EXPECT_EQ(actual.loss_sum, expected.loss_sum);
      EXPECT_EQ(actual.skipped, 0);
    }
    expect_equal(rank, Expected(reference), tolerance);
    expect_padding_zero(rank);
    comm::check_replicas(device_, rank.store(), groups);
  }

  const Context device_ = parallel::open_cuda_device(world());
  const Context cpu_ = Context::cpu();
  const Groups single_ = Groups::single();
};

TEST_F(DistributedOptimizerGpu, EqualsOneRank) {
  for (const ProcessGrid& grid : grids(world().size())) {
    SCOPED_TRACE(grid.str());
    const Groups groups = Groups::connect(world(), device_, grid);
    for (const int64_t bucket_size : {int64_t{1}, int64_t{700}, int64_t{1} << 40}) {
      for (const ReadyOrder order : {ReadyOrder::nothing, ReadyOrder::descending, ReadyOrder::shuffled}) {
        for (const bool overlap : {true, false}) {
          compare(groups, {.dtype = DType::bf16,
                           .bucket_size = bucket_size,
                           .overlap = overlap,
                           .order = order,
                           .exact = true});
        }
      }
    }
    compare(groups, {.dtype = DType::f32, .bucket_size = 700, .exact = true});
    compare(groups, {.dtype = DType::bf16, .grad_dtype = DType::bf16, .bucket_size = 700, .exact = true});
    for (const auto moments : {config::MomentDType::bf16, config::MomentDType::fp8}) {
      if (moments == config::MomentDType::fp8 && grid[parallel::Axis::tensor] > 1)
        continue;  // its blocks differ
      compare(groups, {.dtype = DType::bf16, .moment_dtype = moments, .bucket_size = 700, .exact = true});
    }
  }
}

// State on the host is fetched, updated and written back on three CUDA streams.
TEST_F(DistributedOptimizerGpu, EqualsOneRankWithOffload) {
  using config::MomentDType;
  for (const ProcessGrid& grid : grids(world().size())) {
    SCOPED_TRACE(grid.str());
    const Groups groups = Groups::connect(world(), device_, grid);
    for (const config::Offload offload : {config::Offload::moments, config::Offload::state}) {
      for (const MomentDType moments : {MomentDType::fp32, MomentDType::bf16, MomentDType::fp8}) {
        if (moments == MomentDType::fp8 && grid[parallel::Axis::tensor] > 1) continue;
        compare(groups, {.dtype = DType::bf16,
                         .moment_dtype = moments,
                         .bucket_size = 700,
                         .exact = true,
                         .offload = offload});
      }
      compare(groups,
              {.dtype = DType::f32, .bucket_size = int64_t{1} << 40, .exact = true, .offload = offload});
    }
  }
}

// The GEMMs of Newton-Schulz differ from those of the CPU. An element of an orthogonalized matrix with n = max(rows,
// cols) is about n^-1/2 and off by a few hundredths of that in BF16 (muon_gpu_test.cpp); times lr 0.2 n^1/2 that is a
// few hundredths of lr 0.2 = 2e-3 per step. A value may round to another BF16 number, and the largest ones are 2^-6
// apart. Momenta depend only on the gradients, and are bitwise equal to the CPU's.
TEST_F(DistributedOptimizerGpu, MuonEqualsOneRank) {
  for (const ProcessGrid& grid : grids(world().size())) {
    SCOPED_TRACE(grid.str());
    const Groups groups = Groups::connect(world(), device_, grid);
    const Tolerance within{.main = kSteps * 5e-4f, .value = kSteps * 5e-4f + 0x1p-6f};
    for (const int64_t bucket_size : {int64_t{1}, int64_t{700}, int64_t{1} << 40})
      compare(groups, {.dtype = DType::bf16, .bucket_size = bucket_size, .exact = true, .muon = true},
              within);
  }
}

// Several steps are launched at once, over large buckets, and the host waits only at the end: missing synchronization
// between the CUDA streams would reduce gradients too early, zero them too early, or gather values too early.
TEST_F(DistributedOptimizerGpu, StreamsKeepTheirOrder) {
  constexpr int64_t kLayers = 6, kRows = 4099, kCols = 1024, kManySteps = 8;
  constexpr float kLr = 0.01f;
  const Groups groups = Groups::connect(world(), device_, ProcessGrid::of(world().size(), 1, 1, 1));
  const int ranks = world().size();
  optim::OptimizerOptions options;
  options.optimizer.clip_grad = 0;
  ParameterStore store;
  optim::Optimizer optimizer(options, store, groups);
  std::vector<parameters::Parameter*> layers;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    layers.push_back(store.add({.name = fmt::format("layer {}", layer),
                                .shard = ParameterShard::full({kRows, kCols}),
                                .init = parameters::Init::zeros}));
    store.end_layer();
  }
  MemoryPlan plan;
  store.plan(plan, {.ranks = ranks_of(groups, store), .bucket_size = 1});
  optimizer.plan(plan);
  PlannedTensor seen;  // the values that each step's forward pass reads
  plan.add(seen, "seen", MemoryKind::data, DType::bf16, {kManySteps * kLayers, kRows * kCols});
  const DeviceBuffer memory = plan.allocate(device_);
  store.bind(device_);

  const auto sign = [](int64_t step) { return step % 3 == 2 ? -1.0f : 1.0f; };
  for (int64_t step = 0; step < kManySteps; ++step) {
    optimizer.begin_step(device_);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const parameters::Parameter& p = *layers[static_cast<size_t>(layer)];
      optimizer.gatherer().wait(device_, p.offset, p.end());
      device_.copy(seen.slice_rows(step * kLayers + layer, 1), p.value);
    }
    optimizer.reducer().begin(device_);
    for (int64_t layer = kLayers - 1; layer >= 0; --layer) {
      const parameters::Parameter& p = *layers[static_cast<size_t>(layer)];
      kernels::fill_value(device_, p.grad, sign(step) * static_cast<float>(groups.data().rank() + 1));
      optimizer.reducer().ready(device_, p.offset, p.end());
    }
    optimizer.step(device_, kLr);
    optimizer.finish_step(false);
  }

  // All weights start at 0 and rank r of R has the gradient r + 1, so every element follows this one.
  std::vector<uint16_t> bits(static_cast<size_t>(kRows * kCols));
  float main = 0, exp_avg = 0, exp_avg_sq = 0;
  for (int64_t step = 0; step < kManySteps; ++step) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      device_.copy_to_host(bits.data(), seen.slice_rows(step * kLayers + layer, 1));
      device_.synchronize();
      EXPECT_EQ(std::ranges::count(bits, to_bf16(main).bits), kRows * kCols)
          << "step " << step << ", layer " << layer << ": " << main;
    }
    const kernels::AdamW rule{.lr = kLr,
                              .beta1 = static_cast<float>(options.optimizer.beta1),
                              .beta2 = static_cast<float>(options.optimizer.beta2),
                              .eps = static_cast<float>(options.optimizer.eps),
                              .step = step + 1};
    const float sum = sign(step) * static_cast<float>(ranks * (ranks + 1) / 2);
    const kernels::AdamWConstants constants = kernels::adamw_constants(rule);
    kernels::adamw_element(constants, kernels::adamw_rate(constants, 0), sum, main, exp_avg, exp_avg_sq);
  }
}

}  // namespace
}  // namespace te::testing
