// fp8_param_gather changes only what data-parallel ranks gather: a run that gathers FP8 weights is bitwise
// equal to one that gathers their BF16 values, and sends half as many bytes for them.
#include <limits>

#include "comm/replica_check.h"
#include "core/profile.h"
#include "layout_run.h"
#include "layout_table.h"
#include "parallel/groups.h"
#include "random_steps.h"
#include "same_bits.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using parallel::Groups;
using parallel::ProcessGrid;

struct Bytes {
  int64_t gathered = 0, summed = 0;
};

/// Counts the bytes of data-parallel gathers, and of the all-reduces that go with them.
class DataMessages final : public OpObserver {
 public:
  DataMessages() { install(this); }
  ~DataMessages() override { install(nullptr); }
  void begin(const Context& /*context*/, OpCall call) override {
    if (!call.group.starts_with("data")) return;
    if (std::string_view(call.name) == "all_gather") bytes_.gathered += static_cast<int64_t>(call.cost.bytes);
    if (std::string_view(call.name) == "all_reduce") bytes_.summed += static_cast<int64_t>(call.cost.bytes);
  }
  void end(const Context& /*context*/) override {}
  Bytes bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

class Fp8Gather : public ::testing::TestWithParam<Case> {
 protected:
  Fp8Gather()
      : grid_(ProcessGrid::of(world().size(), GetParam().tensor, GetParam().context, GetParam().pipeline)),
        groups_(Groups::connect(world(), Context::cpu(), grid_)) {}
  config::Config config() const {
    config::Config config = make_config(GetParam());
    config::validate(config);
    return config;
  }
  std::pair<Trace, Bytes> run(bool fp8_param_gather) {
    const DataMessages messages;
    parameters::DataParallelOptions options = data_parallel_of(GetParam());
    options.fp8_param_gather = fp8_param_gather;
    Trace trace = train_small(config(), groups_, {.steps = 4, .grads_at = {1, 3}, .data_parallel = options});
    return {std::move(trace), messages.bytes()};
  }

  ProcessGrid grid_;
  Groups groups_;
};

TEST_P(Fp8Gather, IsBitwiseEqualToARunWithout) {
  const auto [with, in_fp8] = run(true);
  const auto [without, in_bf16] = run(false);
  expect_same_bits(with, without);
  // The gather of a bucket with FP8 weights has half the bytes, plus an all-reduce of its other parameters.
  const Context context = Context::cpu();
  train::StepRunner runner(config(), context, groups_);
  runner.allocate();
  runner.initialize();
  const parameters::ParameterStore& store = runner.model().parameters();
  int64_t fp8 = 0, all = 0, sharded = 0;
  for (const parameters::Bucket& bucket : store.buckets()) {
    fp8 += store.gathers_bytes(bucket) ? bucket.size() : 0;
    (store.shards_values(bucket) ? sharded : all) += bucket.size();
  }
  EXPECT_GT(fp8, 0);
  constexpr int kGathers = 1 + 4;  // of the initial weights, and of each step
  EXPECT_EQ(in_fp8.summed - in_bf16.summed,
            kGathers * 2 * store.unquantized_parameters(GradientGroup::dense).numel());
  if (sharded == 0) {
    EXPECT_EQ(in_bf16.gathered, kGathers * 2 * all);
    EXPECT_EQ(in_fp8.gathered, kGathers * (2 * all - fp8));
  } else {
    // In addition to what is gathered once per step: the layers, for every pass.
    const int64_t passes_bf16 = in_bf16.gathered - kGathers * 2 * all;
    const int64_t passes_fp8 = in_fp8.gathered - kGathers * 2 * all;
    EXPECT_GE(passes_bf16, 4 * 2 * sharded);
    if (fp8 == sharded)
      EXPECT_EQ(passes_bf16, 2 * passes_fp8);
    else
      EXPECT_LT(passes_fp8, passes_bf16);
  }
  EXPECT_LT(4 * store.unquantized_parameters(GradientGroup::dense).numel(), fp8);
  comm::check_replicas(context, store, groups_);
}

std::vector<Case> gather_cases() {
  switch (world().size()) {
    case 2:
      return {
          named("gpt_delayed", {.dropout = true}),
          named("llama_delayed_recompute", {.recompute = Recompute::full, .variant = true}),
          named("llama_tensorwise"),
          named("gpt_tensorwise_blocking", {.recompute = Recompute::selective}),
          named("llama_layers_share_buckets",
                {.precision = Precision::delayed, .layers = 5, .bucket_size = 60'000}),
          named("gpt_sharded_gradients", {.precision = Precision::delayed}),
          named("llama_tensorwise_grads_of_two_bytes", {.bf16_grads = true}),
          named("llama_fp8_head", {.precision = Precision::delayed, .fp8_head = true}),
          // A recipe for a linear, a format for a weight, a linear and a layer in BF16.
          named("llama_overrides",
                {.precision = Precision::delayed,
                 .overrides = "linear_fc1: tensorwise; linear_qkv grad_output: e4m3; linear_qkv weight: "
                              "e5m2; layers 1 linear_proj: bf16; layers 3: bf16"}),
          named("cp2_llama_delayed"),
          named("qwen3_delayed"),
          named("llama_sharded_parameters", {.precision = Precision::delayed}),
          named("gpt_sharded_parameters_blocking",
                {.precision = Precision::tensorwise, .recompute = Recompute::full, .dropout = true}),
          // Buckets gathered alternately as bytes and values, some with several layers.
          named("llama_sharded_parameters_overrides",
                {.precision = Precision::delayed,
                 .layers = 6,
                 .overrides = "layers 1 linear_proj: bf16; layers 2: bf16; layers 4 linear_fc1 dgrad: bf16"}),
          named("llama_sharded_parameters_share_buckets", {.precision = Precision::tensorwise,
                                                           .recompute = Recompute::selective,
                                                           .layers = 5,
                                                           .bucket_size = 60'000}),
          named("cp2_llama_sharded_parameters", {.precision = Precision::delayed}),
      };
    case 4:
      return {
          named("dp4_llama_delayed"),
          named("dp4_gpt_tensorwise", {.dropout = true}),
          named("tp2_dp2_gpt_delayed"),
          named("tp2_dp2_sp_llama_tensorwise", {.overlap = 2, .recompute = Recompute::selective}),
          named("cp2_tp2_llama_tensorwise"),
          named("pp2_dp2_llama_interleaved", {.precision = Precision::delayed, .variant = true}),
          named("pp2_dp2_gpt_zero_bubble",
                {.precision = Precision::tensorwise, .layers = 6, .shard = config::Shard::gradients}),
          named("dp4_gpt_sharded_parameters", {.precision = Precision::delayed}),
          named("tp2_dp2_sp_llama_sharded_parameters", {.precision = Precision::delayed}),
          named("pp2_dp2_llama_zero_bubble_sharded_parameters",
                {.precision = Precision::tensorwise, .layers = 6}),
          named("pp2_dp2_llama_interleaved_sharded_parameters",
                {.precision = Precision::delayed, .variant = true}),
      };
    case 8:
      return {named("tp2_pp2_dp2_sp_llama_delayed")};
    default:
      return {};
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Fp8Gather, ::testing::ValuesIn(gather_cases()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8Gather);

config::Config llama(Precision precision) {
  config::Config config = make_config({.family = Family::llama, .precision = precision});
  config.training.global_batch_size = config.training.micro_batch_size * world().size();
  return config;
}

struct Weights {
  int in_fp8 = 0, in_bf16 = 0;
  int64_t planned = 0;
};
Weights weights_of(const config::Config& config, const Groups& groups, bool fp8_param_gather = true) {
  const Context context = Context::cpu();
  train::StepRunner runner(config, context, groups, {.fp8_param_gather = fp8_param_gather});
  Weights weights{.planned = runner.plan().total_bytes()};
  for (const parameters::Parameter& parameter : runner.model().parameters().parameters())
    if (parameter.linear) ++(parameter.has_bytes ? weights.in_fp8 : weights.in_bf16);
  return weights;
}

TEST(Fp8GatherOf, WeightsWithUnusedBf16Values) {
  if (world().size() == 1) GTEST_SKIP() << "one data-parallel rank gathers nothing";
  const Groups groups = Groups::connect(world(), Context::cpu(), ProcessGrid::of(world().size(), 1, 1, 1));
  const auto count = [&](Precision precision, const auto& change) {
    config::Config config = llama(precision);
    change(config);
    const Weights weights = weights_of(config, groups);
    EXPECT_EQ(weights.in_fp8 + weights.in_bf16, 17);  // 4 linears in 4 layers, and the output layer
    return weights.in_fp8;
  };
  const auto nothing = [](config::Config&) {};
  EXPECT_EQ(count(Precision::delayed, nothing), 16);
  EXPECT_EQ(count(Precision::tensorwise, nothing), 16);
  EXPECT_EQ(count(Precision::rowwise, nothing), 0);
  EXPECT_EQ(count(Precision::blockwise, nothing), 0);
  EXPECT_EQ(count(Precision::bf16_wide, nothing), 0);
  EXPECT_EQ(count(Precision::delayed_fp32, nothing), 0);
  const auto delayed = [&](const auto& change) { return count(Precision::delayed, change); };
  EXPECT_EQ(weights_of(llama(Precision::delayed), groups, false).in_fp8, 0);
  EXPECT_EQ(delayed([](config::Config& c) { c.parallel.shard = config::Shard::parameters; }), 16);
  EXPECT_EQ(delayed([](config::Config& c) { c.precision.fp8_keep_weights = config::Fp8KeptWeights::none; }),
            0);
  EXPECT_EQ(delayed([](config::Config& c) { c.precision.fp8_keep_weights = config::Fp8KeptWeights::both; }),
            16);
  EXPECT_EQ(delayed([](config::Config& c) { c.optimizer.store_param_remainders = true; }), 16);
  EXPECT_EQ(delayed([](config::Config& c) { c.precision.fp8_from_step = 3; }), 0);
  EXPECT_EQ(delayed([](config::Config& c) { c.precision.fp8_until_step = 3; }), 0);
  EXPECT_EQ(delayed([](config::Config& c) { c.guard.every = 3; }), 0);
  EXPECT_EQ(delayed([](config::Config& c) { c.logging.fp8_statistics_every = 3; }), 0);
  EXPECT_EQ(delayed([](config::Config& c) { c.logging.generate_every = 3; }), 0);
  EXPECT_EQ(delayed([](config::Config& c) { c.evaluation.every = 3; }), 0);
  // A GEMM in BF16; and a bucket with so much BF16 that gathering its values is smaller.
  EXPECT_EQ(delayed([](config::Config& c) { c.precision.overrides = "linear_proj dgrad: bf16"; }), 12);
  EXPECT_EQ(delayed([](config::Config& c) { c.precision.overrides = "linear_fc1: bf16"; }), 0);
  EXPECT_EQ(delayed([](config::Config& c) { c.precision.overrides = "layers 1 linear_fc1: bf16"; }), 12);
}

// BF16 values of this rank's shard and one byte of all elements replace BF16 values of all elements; the row-wise byte
// replaces what was kept in addition, or scratch.
TEST(Fp8GatherOf, ManyRanksNeedsLessMemory) {
  if (world().size() == 1) GTEST_SKIP() << "one data-parallel rank gathers nothing";
  const Groups groups = Groups::connect(world(), Context::cpu(), ProcessGrid::of(world().size(), 1, 1, 1));
  const config::Config config = llama(Precision::delayed);
  const int64_t without = weights_of(config, groups, false).planned;
  const int64_t with = weights_of(config, groups).planned;
  const int64_t weights = 4 * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128);
  const double saved = 2.0 * static_cast<double>(weights) * (1.0 - 1.0 / world().size());
  EXPECT_NEAR(static_cast<double>(without - with), saved, 0.04 * saved);  // norm weights, scales
}

// A skipped step leaves the weights, which are quantized and gathered again, and the amax history unchanged.
TEST(Fp8GatherOf, SkippedStepIsBitwiseEqual) {
  if (world().size() == 1) GTEST_SKIP() << "one data-parallel rank gathers nothing";
  const Groups groups = Groups::connect(world(), Context::cpu(), ProcessGrid::of(world().size(), 1, 1, 1));
  for (const Precision precision : {Precision::delayed, Precision::tensorwise}) {
    SCOPED_TRACE(static_cast<int>(precision));
    const config::Config config = llama(precision);
    RandomSteps skips{.steps = 5, .skipped = 3};
    const std::vector<float> with = run_random_steps(Context::cpu(), config, groups, skips);
    skips.data_parallel.fp8_param_gather = false;
    EXPECT_EQ(with, run_random_steps(Context::cpu(), config, groups, skips));
    EXPECT_NE(with, run_random_steps(Context::cpu(), config, groups, RandomSteps{.steps = 5}));
  }
}

}  // namespace
}  // namespace te::testing
