// A trace reports the operations that the program executes: the same passes of the same models, once executed on the
// CPU and once only traced, report the same operations one by one; and the cost per layer adds up.
#include "planner/cost_trace.h"

#include <fmt/ranges.h>

#include <gtest/gtest.h>

#include <algorithm>

#include "config/pipeline_split.h"
#include "core/profile.h"
#include "cost/op_cost.h"
#include "model/model_stage.h"
#include "optim/optimizer.h"
#include "planner/op_time.h"
#include "planner_testing.h"
#include "testing/abilities.h"
#include "train/execution.h"
#include "train/flops.h"

namespace te::planner {
namespace {

using testing::Settings;

class Listener final : public OpObserver {
 public:
  ~Listener() override { install(nullptr); }
  void begin(const Context&, OpCall call) override {
    const OpCost cost = is_communication(call) ? call.cost : cost::op_cost(call);
    told.push_back(fmt::format("{} [{}] {} FLOPs {} bytes {}", call.name, call.label, cost.flops, cost.bytes,
                               call.group));
    flops += cost.flops;
  }
  void end(const Context&) override {}
  std::vector<std::string> told;
  double flops = 0;
};

config::Config small_config(const Settings& settings) {
  return config::parse_config(
      "model: {family: llama, num_layers: 3, hidden_size: 64, ffn_hidden_size: 96, num_attention_heads: 4,\n"
      "        num_query_groups: 2, vocab_size: 300, seq_length: 32}\n"
      "training: {micro_batch_size: 2, global_batch_size: 2, train_steps: 1}\n"
      "data: {synthetic: true}\n",
      "small", settings);
}

/// The operations of a step on one rank: two passes and the update. `flops`: of the passes.
std::vector<std::string> told(const config::Config& config, bool executes, double* flops = nullptr) {
  const parallel::Groups groups = parallel::Groups::single();
  Listener listener;
  const ExecutionOptions options = train::execution_options(config);
  const Context context = executes ? Context::cpu(options) : Context::trace(listener, options);
  model::ModelStage stage(config, groups);
  optim::Optimizer optimizer({.optimizer = config.optimizer, .seed = 1}, stage.parameters(), groups);
  MemoryPlan plan;
  stage.plan(plan, context);
  optimizer.plan(plan);
  PlannedTensor tokens, targets;
  plan.add(tokens, "tokens", MemoryKind::data, DType::i32, {stage.dims().tokens});
  plan.add(targets, "targets", MemoryKind::data, DType::i32, {stage.dims().tokens});
  const DeviceBuffer memory = plan.allocate(context);
  const HostBuffer host = plan.allocate_host(context);
  stage.bind(context);
  optimizer.bind(context);
  stage.initialize(context, 1);
  OpObserver::install(&listener);
  listener.told.clear();
  listener.flops = 0;
  optimizer.begin_step(context);
  stage.weights_changed();
  stage.forward_backward(context, tokens, targets, 1.0f, optimizer.loss_sum(), {});
  if (flops != nullptr) *flops = listener.flops;
  optimizer.step(context, 1e-3f);
  stage.recipe().update(context, nullptr);
  return listener.told;
}

TEST(CostTrace, MatchesExecution) {
  const std::vector<Settings> all{
      {},
      {"precision.fp8=hybrid"},
      {"precision.fp8=hybrid", "precision.fp8_recipe=tensorwise", "training.recompute=selective"},
      {"precision.fp8=hybrid", "precision.fp8_recipe=rowwise", "training.recompute=full"},
      {"precision.fp8=hybrid", "precision.fp8_recipe=blockwise", "precision.fp8_output_layer=true"},
      {"precision.fp8=hybrid", "precision.overrides=layers 1-1: bf16"},
      {"optimizer.name=muon", "model.qk_norm=head"},
      {"model.family=gpt", "model.hidden_dropout=0.1", "training.recompute=selective"},
      {"optimizer.offload=moments"},
      {"optimizer.offload=state", "optimizer.store_param_remainders=true", "optimizer.exp_avg_dtype=fp8"},
      {"model.norm_placement=both", "model.activation=geglu", "optimizer.store_param_remainders=true"},
      {"adapter.type=lora", "adapter.rank=8", "checkpoint.init_from=base", "adapter.dropout=0.1",
       "precision.fp8=hybrid"},
      {"adapter.type=lora", "adapter.rank=8", "checkpoint.init_from=base", "adapter.dropout=0.1",
       "model.num_moe_experts=4", "model.moe_router_topk=2", "model.moe_ffn_hidden_size=32",
       "model.moe_shared_expert_intermediate_size=16", "precision.fp8=hybrid"}};
  for (const Settings& settings : all) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(settings, " ")));
    config::Config config;
    try {
      config = small_config(settings);
    } catch (const UserError& error) {
      FAIL() << error.what();
    }
    const std::vector<std::string> done = told(config, true), traced_only = told(config, false);
    ASSERT_GT(done.size(), 50u);
    ASSERT_EQ(traced_only.size(), done.size());
    for (size_t i = 0; i < done.size(); ++i) ASSERT_EQ(traced_only[i], done[i]) << "operation " << i;
  }
}

// Models that do not fit into the memory of this machine can be traced.
TEST(CostTrace, NeedsNoMemory) {
  const auto config = testing::shipped_config("llama3.1_70b_fp8");
  const MicrobatchCost passes = trace_microbatch(config, testing::h200s(8), false);
  EXPECT_EQ(passes.layers.size(), 1u);
  // 8192 x (8192 + 2 x 1024) + 8192 x 8192 + 3 x 8192 x 28672, of which one of four ranks has a quarter, and two norm
  // weights.
  EXPECT_EQ(passes.layer(79).parameters.all(),
            (8192 * 10240 + 8192 * 8192 + 3 * int64_t{8192} * 28672) / 4 + 2 * 8192);
  EXPECT_EQ(passes.embedding.parameters.all(), int64_t{128256} * 8192 / 4);
  EXPECT_EQ(passes.output_layer.parameters.all(), int64_t{128256} * 8192 / 4 + 8192);
}

// With two of eight experts a token goes to a rank in 22 of 28 cases, in BF16, or has one selection of it, as FP8.
// Results and dx return in BF16. With four experts per token, tokens are less data.
TEST(CostTrace, KnowsTheRowsThatAreSentToExperts) {
  const auto of = [](const char* topk, const char* recipe) {
    const MicrobatchCost passes = trace_microbatch(
        testing::shipped_config(
            "llama7b_fp8", {"model.num_moe_experts=8", "model.moe_ffn_hidden_size=1024", "parallel.expert=2",
                            "training.micro_batch_size=8", "training.global_batch_size=16", topk, recipe}),
        testing::h200s(2), false);
    return std::pair{passes.layer(0).forward.communication, passes.layer(0).backward.communication};
  };
  constexpr double kTokens = 22.0 / 28.0, kFourOfEight = 69.0 / 70.0;
  const auto bf16 = of("model.moe_router_topk=2", "precision.fp8_recipe=blockwise"),
             fp8 = of("model.moe_router_topk=2", "precision.fp8_recipe=delayed"),
             four = of("model.moe_router_topk=4", "precision.fp8_recipe=delayed");
  EXPECT_NEAR(fp8.first / bf16.first, (1 + 2 * kTokens) / (4 * kTokens), 0.03);
  EXPECT_NEAR(fp8.second / bf16.second, (2 + 2 * kTokens) / (6 * kTokens), 0.03);
  EXPECT_NEAR(four.first / bf16.first, kFourOfEight / kTokens, 0.03);
  EXPECT_NEAR(four.second / bf16.second, kFourOfEight / kTokens, 0.03);
}

// A rank has four of eight experts of 3 x 4096 x 1024 weights in layers 3, 6 and so on, after dense layers. Few layers
// are traced for all.
TEST(CostTrace, DistinguishesLayersWithExperts) {
  for (const int64_t frequency : {1, 3}) {
    const auto config = testing::shipped_config(
        "llama7b_fp8", {"model.num_layers=32", "model.first_k_dense=3", "model.num_moe_experts=8",
                        fmt::format("model.moe_layer_freq={}", frequency), "model.moe_ffn_hidden_size=1024",
                        "parallel.tensor=2", "parallel.sequence=true", "parallel.expert=2"});
    const MicrobatchCost passes = trace_microbatch(config, testing::h200s(4), false);
    ASSERT_EQ(passes.layers.size(), 32u);
    for (int64_t layer = 0; layer < 32; ++layer) {
      const GroupCounts& counts = passes.layer(layer).parameters;
      const auto of = [&](GradientGroup group) { return counts[static_cast<size_t>(group)].all; };
      const bool experts = layer >= 3 && layer % frequency == 0;
      EXPECT_EQ(of(GradientGroup::expert), experts ? 4 * 3 * 4096 * 1024 : 0) << layer;
      EXPECT_EQ(of(GradientGroup::stage), experts ? 8 * 4096 : 0) << layer;
      EXPECT_EQ(of(GradientGroup::dense),
                4 * 4096 * 4096 / 2 + 2 * 4096 + (experts ? 0 : 3 * 4096 * 11008 / 2))
          << layer;
      EXPECT_EQ(passes.layer(layer).forward.total(), passes.layer(experts ? 3 : 1).forward.total()) << layer;
    }
    EXPECT_NE(passes.layer(3).forward.total(), passes.layer(1).forward.total());
  }
}

// Tracing does not read document starts either.
TEST(CostTrace, OfDocuments) {
  const config::Config config =
      small_config({"data.synthetic=false", "data.train=[x]", "data.document_mask=true"});
  const MicrobatchCost passes = trace_microbatch(config, testing::h200s(1), false);
  EXPECT_GT(passes.layer(0).forward.compute, 0);
  EXPECT_GT(passes.layer(0).backward.compute, passes.layer(0).forward.compute);
}

// The FLOPs of the operations equal those of the formula, plus the scores that the backward pass of attention
// recomputes (docs/how-to/profile.md).
TEST(CostTrace, HasTheFlopsOfTheFormula) {
  const config::Config config = small_config({});
  double flops = 0;
  told(config, false, &flops);
  const double tokens = 2 * 32,
               again = 3 * 32.0 * 64;  // layers x sequence x width, 2 FLOPs for half of the scores
  EXPECT_NEAR(flops / tokens / (train::flops_per_token(config.model) + again), 1.0, 1e-12);
}

Work sum(const MicrobatchCost& passes) {
  Work all = passes.layer(0).forward;
  all += passes.layer(0).backward;
  all += passes.layer(0).wgrad;
  return all;
}

// The middle of three layers represents all; if a rule distinguishes layers, each one is traced.
TEST(CostTrace, DifferentLayersAreAllTraced) {
  const auto cluster = testing::h200s(1);
  const auto mixed = testing::shipped_config("llama7b_fp8", {"precision.first_layers_bf16=2"});
  const MicrobatchCost passes = trace_microbatch(mixed, cluster, false);
  ASSERT_EQ(passes.layers.size(), 32u);
  EXPECT_GT(passes.layer(0).forward.total(), 1.3 * passes.layer(16).forward.total());
  const MicrobatchCost alike = trace_microbatch(testing::shipped_config("llama7b_fp8"), cluster, false);
  EXPECT_NEAR(alike.layer(5).forward.total() / passes.layer(16).forward.total(), 1.0, 1e-9);
  EXPECT_NEAR(alike.layer(5).backward.total() / passes.layer(16).backward.total(), 1.0, 1e-9);
}

// The ratio that a balanced split uses (config/pipeline_split.h) is close to that of the trace.
TEST(CostTrace, OutputLayerTakesTheExpectedTime) {
  for (const char* name :
       {"llama7b_bf16", "llama7b_fp8", "llama3.1_8b_fp8", "llama2_13b_fp8", "llama3.1_70b_fp8"}) {
    const auto config = testing::shipped_config(name, {"parallel.tensor=1", "parallel.pipeline=1",
                                                       "parallel.sequence=false", "training.recompute=none"});
    const MicrobatchCost passes = trace_microbatch(config, testing::h200s(1), false);
    const double head = passes.output_layer.forward.total() + passes.output_layer.backward.total(),
                 layer = passes.layer(0).forward.total() + passes.layer(0).backward.total();
    EXPECT_NEAR(config::output_layer_in_layers(config) / (head / layer), 1.0, 0.15) << name;
  }
}

// Deferred weight gradients are the same work at another time.
TEST(CostTrace, DeferredWgradMovesWork) {
  const auto config = testing::shipped_config("llama7b_bf16", {"training.recompute=none"});
  const MicrobatchCost now = trace_microbatch(config, testing::h200s(1), false),
                       later = trace_microbatch(config, testing::h200s(1), true);
  EXPECT_EQ(now.layer(0).wgrad.total(), 0);
  EXPECT_NEAR(later.layer(0).wgrad.total() / later.layer(0).backward.total(), 0.8, 0.3);
  EXPECT_NEAR(sum(later).total() / sum(now).total(), 1.0, 0.03);
}

TEST(CostTrace, RecomputationCostsAForwardPass) {
  const auto times = [](const char* recompute) {
    const auto config =
        testing::shipped_config("llama7b_bf16", {std::string("training.recompute=") + recompute});
    return trace_microbatch(config, testing::h200s(1), false).layer(0);
  };
  const LayerCost none = times("none"), selective = times("selective"), full = times("full");
  EXPECT_EQ(none.forward.total(), full.forward.total());
  EXPECT_NEAR(full.backward.total(), none.backward.total() + none.forward.total(),
              0.02 * none.backward.total());
  EXPECT_GT(selective.backward.total(), none.backward.total());
  EXPECT_LT(selective.backward.total(), 1.05 * none.backward.total());
}

// Sequence parallelism: four all-gathers and four reduce-scatters per layer, in FP8 and BF16, computed by hand.
TEST(CostTrace, TensorParallelCommunication) {
  const Cluster cluster = testing::h200s(4);
  const auto config =
      testing::shipped_config("llama7b_fp8", {"parallel.tensor=4", "parallel.sequence=true",
                                              "training.recompute=none", "precision.fp8_recast=false"});
  const LayerCost layer = trace_microbatch(config, cluster, false).layer(0);
  const double elements = 2.0 * 4096 * 4096, part = 3.0 / 4, bandwidth = cluster.gpu.nvlink;
  const double expected = 8 * cluster.gpu.nvlink_latency + part * elements * (4 * 1 + 4 * 2) / bandwidth;
  EXPECT_NEAR(layer.forward.communication + layer.backward.communication, expected, 1e-9);
}

// State on the host is counted by its bytes, and the update on the device does not change.
TEST(CostTrace, UpdateOfOffloadedState) {
  const Cluster cluster = testing::h200s(4);
  const UpdateWork plain = trace_update(testing::shipped_config("llama7b_bf16"), cluster, 4);
  const UpdateWork moments =
      trace_update(testing::shipped_config("llama7b_bf16", {"optimizer.offload=moments"}), cluster, 4);
  const UpdateWork state =
      trace_update(testing::shipped_config("llama7b_bf16", {"optimizer.offload=state"}), cluster, 4);
  EXPECT_NEAR(moments.host_bytes, 8.0, 0.04);
  EXPECT_NEAR(state.host_bytes, 10.0, 0.04);  // remainders, too
  EXPECT_NEAR(state.per_parameter / plain.per_parameter, 1.0, 0.05);
}

std::vector<std::string> described(const std::vector<train::GemmUse>& uses) {
  std::vector<std::string> lines;
  for (const train::GemmUse& use : uses)
    lines.push_back(fmt::format("{} {} {}: {}", use.precision, use.pass, static_cast<int>(use.kernels),
                                fmt::join(use.linears, " ")));
  std::sort(lines.begin(), lines.end());
  return lines;
}

// Every GEMM of the passes is listed once per pass and precision, with the kernels of the device that will run them.
TEST(CostTrace, GemmsAndTheirKernels) {
  const Context cpu = Context::cpu();
  const int openblas = static_cast<int>(kernels::GemmKernels::openblas),
            reference = static_cast<int>(kernels::GemmKernels::fp8_reference);
  const auto line = [](const char* use, int kernels, const char* linears) {
    return fmt::format("{} {}: {}", use, kernels, linears);
  };
  EXPECT_EQ(described(trace_gemms(small_config({"precision.fp8=hybrid"}), cpu)),
            (std::vector<std::string>{
                line("BF16 dgrad", openblas, "output_layer"), line("BF16 fprop", openblas, "output_layer"),
                line("BF16 wgrad", openblas, "output_layer"),
                line("FP8 dgrad", reference, "linear_fc2 linear_fc1 linear_proj linear_qkv"),
                line("FP8 fprop", reference, "linear_qkv linear_proj linear_fc1 linear_fc2"),
                line("FP8 wgrad", reference, "linear_fc2 linear_fc1 linear_proj linear_qkv")}));
  const auto fp16 = trace_gemms(small_config({"precision.dtype=fp16"}), cpu);
  EXPECT_EQ(fp16.size(), 3u);
  for (const train::GemmUse& use : fp16) EXPECT_EQ(use.precision, "FP16");
}

// Each start traces its own config, whatever it has for stages and optimizer state.
TEST(CostTrace, GemmsOfAnyConfig) {
  const Context cpu = Context::cpu();
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"optimizer.offload=state"},
           {"optimizer.offload=moments", "optimizer.store_param_remainders=true"},
           {"model.num_layers=8", "parallel.pipeline=2", "parallel.pipeline_split=3,5"},
           {"model.num_layers=4", "parallel.pipeline=2", "parallel.schedule=zero_bubble"},
           {"parallel.shard=parameters"},
           {"model.num_moe_experts=4", "model.moe_router_topk=2", "model.moe_ffn_hidden_size=32"},
           {"training.recompute=full"}})
    EXPECT_GE(trace_gemms(small_config(overrides), cpu).size(), 3u)
        << fmt::format("{}", fmt::join(overrides, " "));
}

// A run under ulimit -v needs less address space than the trace of its passes, which only serves the start screen.
TEST(CostTrace, GemmsAreLeftOutIfTheTraceDoesNotFit) {
  const auto config = small_config({"model.hidden_size=1000000", "model.ffn_hidden_size=1000000",
                                    "model.kv_channels=16", "model.num_layers=20", "precision.fp8=hybrid",
                                    "precision.first_layers_bf16=1"});  // so that all layers are traced
  EXPECT_TRUE(trace_gemms(config, Context::cpu()).empty());
}

#ifdef TE_WITH_CUDA
TEST(CostTrace, GemmsAndTheirKernelsGpu) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  using kernels::GemmKernels;
  const Context gpu = Context::cuda(0);
  const auto find = [](const std::vector<train::GemmUse>& uses, const char* pass, const char* linear) {
    for (const train::GemmUse& use : uses)
      if (use.pass == pass && std::find(use.linears.begin(), use.linears.end(), linear) != use.linears.end())
        return use;
    return train::GemmUse{};
  };
  const auto uses = trace_gemms(testing::shipped_config("gpt2_124m_fp8"), gpu);
  EXPECT_EQ(find(uses, "fprop", "linear_fc1").precision, "FP8");
  EXPECT_EQ(find(uses, "fprop", "linear_fc1").kernels, GemmKernels::hopper);
  EXPECT_EQ(find(uses, "fprop", "linear_qkv").kernels, GemmKernels::cublaslt);
  EXPECT_EQ(find(uses, "fprop", "output_layer").precision, "BF16");
  const auto bf16 = trace_gemms(testing::shipped_config("gpt2_124m_bf16"), gpu);
  EXPECT_EQ(find(bf16, "dgrad", "linear_fc2").kernels, GemmKernels::hopper);
  EXPECT_EQ(find(bf16, "wgrad", "linear_fc2").kernels, GemmKernels::cublaslt);
  const auto fp32 = trace_gemms(small_config({"precision.dtype=fp32"}), gpu);
  for (const train::GemmUse& use : fp32) EXPECT_EQ(use.kernels, GemmKernels::cublaslt_fp32);
  const auto unpadded =
      trace_gemms(small_config({"model.vocab_size=301", "model.make_vocab_size_divisible_by=1"}), gpu);
  EXPECT_EQ(find(unpadded, "fprop", "output_layer").kernels, GemmKernels::cublaslt_unaligned);
}
#endif

// AdamW reads and writes two moments, the remainder and the weight, and reads the gradient, also for its norm.
TEST(CostTrace, UpdateOfAParameter) {
  const Cluster cluster = testing::h200s(4);
  const auto config = testing::shipped_config("llama7b_bf16");
  const UpdateWork one = trace_update(config, cluster, 1), four = trace_update(config, cluster, 4);
  const double bytes = 4 * 4 + 2 * 2 + 2 * 2 + 2 * 4;
  EXPECT_NEAR(one.per_parameter / (bytes / cluster.gpu.copy), 1.0, 0.05);
  EXPECT_NEAR(four.per_parameter / one.per_parameter, 1.0, 0.08);  // of a quarter of the parameters
  EXPECT_EQ(one.per_layer, 0);
  EXPECT_EQ(one.host_bytes, 0);
  const UpdateWork muon =
      trace_update(testing::shipped_config("llama7b_bf16", {"optimizer.name=muon"}), cluster, 1);
  // Five iterations of 4 n^2 m + 2 n^3 FLOPs (docs/explanation/architecture.md) for q, k, v, proj, and gate, up, down.
  const double n = 4096, flops = 5 * (4 * (6 * n * n * n) + 3 * (4 * n * n * 11008 + 2 * n * n * n));
  EXPECT_NEAR(muon.per_layer / (flops / cluster.gpu.bf16), 1.2, 0.2);
}

}  // namespace
}  // namespace te::planner
