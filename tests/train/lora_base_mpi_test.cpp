// Bases of adapters that are held in FP8 only, on several ranks: parallel.shard parameters shards the codes. Scales,
// codes and results equal a base that every rank holds.
#include <map>

#include "comm/replica_check.h"
#include "fp8_base.h"
#include "model/tiny_model.h"
#include "random_steps.h"
#include "testing/mpi.h"
#include "train/summary.h"

namespace te::testing {
namespace {

using config::Fp8Recipe;
using config::Shard;
using parallel::Groups;
using parallel::ProcessGrid;
using parameters::Parameter;
using parameters::ParameterStore;

struct BaseForm {
  const char* name;
  Fp8Recipe recipe;
  bool experts = false;
  config::Recompute recompute = config::Recompute::none;
  const char* overrides = "";
};
constexpr BaseForm kBaseForms[] = {
    {"delayed", Fp8Recipe::delayed},
    {"tensorwise", Fp8Recipe::tensorwise, false, config::Recompute::full},
    {"rowwise", Fp8Recipe::rowwise, false, config::Recompute::selective},
    {"rowwise_full", Fp8Recipe::rowwise, false, config::Recompute::full},
    {"blockwise", Fp8Recipe::blockwise},
    {"delayed_experts", Fp8Recipe::delayed, true, config::Recompute::full},
    {"blockwise_experts", Fp8Recipe::blockwise, true},
    {"several", Fp8Recipe::tensorwise, false, config::Recompute::none,
     "layers 1: rowwise; layers 2 linear_fc1: bf16; linear_proj: blockwise"},
};

struct BaseLayout {
  int tensor = 1, pipeline = 1, expert = 1;
  ProcessGrid grid() const { return ProcessGrid::of(world().size(), tensor, 1, pipeline, expert); }
};

/// All with several data-parallel ranks, if there are several ranks.
std::vector<BaseLayout> base_layouts(const BaseForm& form) {
  std::vector<BaseLayout> layouts{{}};
  if (world().size() < 4) return layouts;
  layouts.push_back({.tensor = 2});
  layouts.push_back({.pipeline = 2});
  if (form.experts) layouts.push_back({.expert = 2});
  return layouts;
}

config::Config base_config(const BaseForm& form, Shard shard, const BaseLayout& layout = {}) {
  config::Config config = adapter_config(config::Family::llama);
  config.model.num_layers = form.experts ? 4 : 8;
  config.model.ffn_hidden_size = 64;
  config.model.kv_channels = 16;
  if (form.experts) set_fp8_experts(config.model), config.model.num_moe_experts = 4;
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = config::Fp8Mode::hybrid;
  config.precision.fp8_recipe = form.recipe;
  config.precision.overrides = form.overrides;
  config.parallel.shard = shard;
  config.parallel.bucket_size = 10'000;  // some buckets have several layers
  config.parallel.tensor = layout.tensor;
  config.parallel.sequence = layout.tensor > 1;
  config.parallel.pipeline = layout.pipeline;
  config.parallel.expert = layout.expert;
  config.training.global_batch_size = 2 * config.training.micro_batch_size * world().size();
  config.training.recompute = form.recompute;
  config.adapter.dropout = 0.1;
  config.optimizer.lr = 1e-2;
  config::resolve_defaults(config);
  config::validate(config);
  return config;
}

Groups all_data_parallel() {
  return Groups::connect(world(), Context::cpu(), ProcessGrid::of(world().size(), 1, 1, 1));
}

class ShardedBase : public ::testing::TestWithParam<BaseForm> {
 protected:
  const Groups groups_ = all_data_parallel();
};

TEST_P(ShardedBase, StepsHaveTheBitsOfAnUnshardedBase) {
  for (const BaseLayout& layout : base_layouts(GetParam())) {
    const Groups groups = Groups::connect(world(), Context::cpu(), layout.grid());
    const auto run = [&](Shard shard, bool overlap) {
      return run_random_steps(
          Context::cpu(), base_config(GetParam(), shard, layout), groups,
          {.steps = 4, .data_parallel = {.overlap_grad_reduce = overlap, .overlap_param_gather = overlap}});
    };
    const std::vector<float> expected = run(Shard::gradients, false);
    for (const bool overlap : {false, true})
      EXPECT_EQ(run(Shard::parameters, overlap), expected)
          << "overlap " << overlap << " tensor " << layout.tensor << " pipeline " << layout.pipeline
          << " expert " << layout.expert;
  }
}

/// Codes and scales of the base, by name. Sharded codes are gathered.
std::map<std::string, std::string> base_of(train::StepRunner& runner, const Context& context) {
  std::map<std::string, std::string> base;
  for (const Parameter& parameter : runner.model().parameters().parameters()) {
    if (!parameter.dropped) continue;
    runner.optimizer().gatherer().wait(context, parameter.offset, parameter.end());
    for (const auto* layout : {parameter.rowwise, parameter.two_codes ? parameter.columnwise : nullptr})
      if (layout != nullptr) base[parameter.name] += bytes_at(layout->values) + bytes_at(layout->scales);
  }
  return base;
}

TEST_P(ShardedBase, HasTheCodesAndScalesOfAnUnshardedBase) {
  const Context context = Context::cpu();
  const auto base = [&](Shard shard) {
    train::StepRunner runner(base_config(GetParam(), shard), context, groups_);
    runner.allocate();
    runner.initialize();
    comm::check_replicas(context, runner.model().parameters(), groups_);
    return base_of(runner, context);
  };
  const auto expected = base(Shard::optimizer);
  EXPECT_GE(expected.size(), 15u);
  EXPECT_EQ(base(Shard::parameters) == expected, true);
}

// A rank stores its part of the codes, and full buckets only in the slots.
TEST_P(ShardedBase, NeedsLessMemory) {
  const int ranks = world().size();
  if (ranks == 1) GTEST_SKIP() << "one data-parallel rank shards nothing";
  const Context context = Context::cpu();
  for (const Shard shard : {Shard::gradients, Shard::parameters}) {
    train::StepRunner runner(base_config(GetParam(), shard), context, groups_);
    const ParameterStore& store = runner.model().parameters();
    int64_t weights = 0, stored = 0, largest = 0, padding = 0;
    for (const Parameter& parameter : store.parameters()) {
      if (!parameter.dropped) continue;
      EXPECT_FALSE(parameter.has_value) << parameter.name;
      EXPECT_EQ(parameter.has_bytes, shard == Shard::parameters) << parameter.name;
      weights += parameter.shape.numel() * (parameter.two_codes ? 2 : 1);
    }
    for (size_t i = 0; i < store.buckets().size(); ++i) {
      const parameters::Bucket& bucket = store.buckets()[i];
      if (!bucket.dropped) continue;
      EXPECT_EQ(store.shards_values(bucket), shard == Shard::parameters);
      stored += store.segments()[i].count;
      largest = std::max(largest, bucket.size());
      padding += 128 * ranks;
    }
    const int64_t held = shard == Shard::parameters ? weights / ranks : weights;
    TE_EXPECT_CONTAINS(train::model_summary(base_config(GetParam(), shard), store, false),
                       fmt::format("base: {} in FP8, ", human_bytes(held)));
    const int64_t planned = runner.plan().bytes(MemoryKind::fp8_weights);
    if (shard != Shard::parameters) {
      EXPECT_EQ(planned, weights);
      continue;
    }
    EXPECT_LE(stored, weights / ranks + padding);
    EXPECT_LE(planned, stored + 2 * (largest + 256));
  }
}

// Each pass gathers a bucket at most once: a byte per code.
TEST_P(ShardedBase, GathersTheCodes) {
  if (world().size() == 1) GTEST_SKIP() << "nothing is gathered";
  const auto gathered_in = [&](int steps) {
    const Gathered gathered;
    run_random_steps(Context::cpu(), base_config(GetParam(), Shard::parameters), groups_, steps);
    return gathered.bytes;
  };
  train::StepRunner runner(base_config(GetParam(), Shard::parameters), Context::cpu(), groups_);
  const ParameterStore& store = runner.model().parameters();
  int64_t in_pass = 0, in_step = 0;
  for (const parameters::Bucket& bucket : store.buckets()) {
    const int64_t bytes = bucket.size() * (bucket.dropped ? 1 : 2);
    (store.shards_values(bucket) ? in_pass : in_step) += bucket.trainable || bucket.sharded >= 0 ? bytes : 0;
  }
  const int64_t passes = 2 * 2, step = gathered_in(3) - gathered_in(2);
  EXPECT_GE(step, passes / 4 * in_pass + in_step);
  EXPECT_LE(step, passes * in_pass + in_step);
}

INSTANTIATE_TEST_SUITE_P(Forms, ShardedBase, ::testing::ValuesIn(kBaseForms),
                         [](const auto& info) { return std::string(info.param.name); });

// The codes of a folder in FP8, where the recipe has the same scales.
TEST(ShardedBaseOf, FolderHasTheCodesOfAnUnshardedBase) {
  const Context context = Context::cpu();
  const Groups groups = all_data_parallel();
  for (const fp8_base::StoredBase& form : fp8_base::kStoredBases) {
    const TemporaryFolder folder;
    fp8_base::write_model(folder.path(), fp8_base::fp8_llama(form.scales, form.equal_scales), form.scales);
    const convert::ForeignModel model = convert::open_hugging_face(folder.path());
    const auto base = [&](Shard shard) {
      config::Config config = fp8_base::config_on(folder.path(), form.recipe);
      config.training.global_batch_size = config.training.micro_batch_size * world().size();
      config.parallel.shard = shard;
      config::validate(config);
      train::StepRunner runner(config, context, groups);
      runner.allocate();
      runner.initialize();
      checkpoint::load_weights(context, model, config, runner.training_state());
      runner.publish_weights();
      return base_of(runner, context);
    };
    const auto expected = base(Shard::optimizer);
    EXPECT_EQ(expected.size(), 4u);
    EXPECT_EQ(base(Shard::parameters) == expected, true) << form.name;
  }
}

}  // namespace
}  // namespace te::testing
