// The layout search: which layouts are valid and fit, their order, and the report on the config's own layout.
#include "planner/layouts.h"
#include "core/json.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/memory_plan.h"
#include "parallel/groups.h"
#include "planner_testing.h"
#include "testing/files.h"
#include "train/execution.h"
#include "train/pipeline.h"
#include "train/step_runner.h"
#include "train/summary.h"

namespace te::planner {

using parallel::Axis;

namespace {

using testing::Settings;
using testing::shipped_config;
using testing::user_error_of;

/// The largest memory plan among the stages.
int64_t planned(const config::Config& config, const parallel::ProcessGrid& grid) {
  const Context context = Context::cpu(train::execution_options(config));
  int64_t most = 0;
  for (int stage = 0; stage < grid[Axis::pipeline]; ++stage) {
    const auto groups = parallel::Groups::dry_run(grid, grid.rank({{Axis::pipeline, stage}}));
    most = std::max(most, train::StepRunner(config, context, groups).plan().total_bytes());
  }
  return most;
}

Settings words(const std::string& settings) {
  Settings all;
  for (size_t at = settings.find("--set "); at != std::string::npos;) {
    const size_t next = settings.find(" --set ", at + 1);
    all.push_back(settings.substr(at + 6, next == std::string::npos ? next : next - at - 6));
    at = next == std::string::npos ? next : next + 1;
  }
  return all;
}

// A number that the given schedule derives is not that of another schedule.
TEST(Search, SettingsGiveTheLayoutAfterADerivedNumberOfStages) {
  const Settings given{
      "model.hidden_size=512",         "model.ffn_hidden_size=1408", "model.num_attention_heads=8",
      "model.seq_length=1024",         "precision.fp8=off",          "training.global_batch_size=32",
      "parallel.schedule=interleaved", "parallel.pipeline=4"};
  for (const Layout& layout :
       search(shipped_config("llama7b_fp8", given), testing::h200s(4), planned).layouts) {
    Settings all = given;
    for (const std::string& word : words(layout.settings)) all.push_back(word);
    EXPECT_EQ(config::to_yaml(shipped_config("llama7b_fp8", all)), config::to_yaml(layout.config))
        << layout.settings;
  }
}

// Ranks that divide the experts need less memory; their communication costs time.
TEST(Search, DividesExperts) {
  const Settings small{"model.num_layers=4",         "model.num_moe_experts=16",
                       "model.moe_router_topk=2",    "model.moe_ffn_hidden_size=2048",
                       "model.ffn_hidden_size=2048", "training.global_batch_size=64"};
  const config::Config config = shipped_config("llama7b_fp8", small);
  const Cluster cluster = testing::h200s(4);
  const SearchResult result = search(config, cluster, planned);
  std::set<int> sizes;
  for (const Layout& layout : result.layouts) {
    SCOPED_TRACE(layout.settings);
    sizes.insert(layout.grid.experts);
    Settings all = small;
    for (const std::string& word : words(layout.settings)) all.push_back(word);
    EXPECT_EQ(config::to_yaml(shipped_config("llama7b_fp8", all)), config::to_yaml(layout.config));
    EXPECT_EQ(layout.config.parallel.expert, layout.grid.experts);
  }
  EXPECT_EQ(sizes, (std::set<int>{1, 2, 4}));
  config::Config divided = config;
  divided.parallel.expert = 4;
  const auto grid = [](int experts) { return parallel::ProcessGrid::of(4, 1, 1, 1, experts); };
  EXPECT_LT(planned(divided, grid(4)), planned(config, grid(1)));
  StepModel model(cluster);
  EXPECT_GT(model.predict(divided).communication, model.predict(config).communication);
}

/// Ten billion parameters, most of them of experts.
config::Config mixture(Settings settings = {}) {
  settings.insert(settings.begin(),
                  {"model.num_layers=8", "model.num_moe_experts=8", "model.moe_router_topk=2",
                   "model.moe_ffn_hidden_size=11008", "training.global_batch_size=64"});
  return shipped_config("llama7b_fp8", settings);
}

// As in the plan of a dry run, the ranks that share experts divide the experts' state, data-parallel ranks that of
// attention, and all ranks of the stage that of routers.
TEST(Search, CountsExpertsByTheRanksThatShareThem) {
  for (const Settings& layout : std::vector<Settings>{
           {},
           {"parallel.expert=2"},
           {"parallel.expert=8"},
           {"parallel.tensor=2", "parallel.sequence=true"},
           {"parallel.tensor=2", "parallel.sequence=true", "parallel.expert=2"},
           {"parallel.tensor=4", "parallel.sequence=true", "parallel.expert=8"},
           {"parallel.pipeline=2", "parallel.expert=4"},
           {"model.first_k_dense=3", "parallel.expert=4"},
           {"parallel.tensor=2", "parallel.sequence=true", "parallel.expert=4", "parallel.shard=gradients"},
           {"parallel.tensor=8", "parallel.sequence=true", "parallel.shard=parameters"},
           {"parallel.expert=2", "parallel.shard=parameters"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    config::Config config = mixture(layout);
    StepModel model(testing::h200s(8));
    const auto plan_of = [&] {
      return static_cast<double>(planned(config, train::grid_of(config.parallel, 8)));
    };
    const double plan = plan_of(), least = model.min_bytes(config);
    EXPECT_LE(least, plan);
    EXPECT_GE(least, 0.5 * plan);
    EXPECT_LE(model.min_seconds(config), model.predict(config).total() * (1 + 1e-12));
    // Two bytes of each parameter of the rank's shard.
    config.optimizer.exp_avg_dtype = config::MomentDType::fp32;
    const double wide = plan_of(), wide_least = model.min_bytes(config);
    config.optimizer.exp_avg_dtype = config::MomentDType::bf16;
    EXPECT_NEAR((wide_least - model.min_bytes(config)) / (wide - plan_of()), 1.0, 0.01);
  }
  StepModel model(testing::h200s(8));
  // Without copies of experts, only other gradients are reduced, but all of the experts' state is the rank's own.
  const StepTime whole = model.predict(mixture()), divided = model.predict(mixture({"parallel.expert=8"}));
  EXPECT_LT(divided.data, 0.3 * whole.data);
  EXPECT_GT(divided.update, 0.4 * whole.update);
}

// Tensor-parallel ranks have full weights of experts. Those of a layout without other data-parallel ranks fit only if
// the ranks shard them.
TEST(Search, CombinesExpertsWithTensorParallelism) {
  const SearchResult result = search(mixture({"model.num_layers=16"}), testing::h200s(4), planned);
  std::map<std::pair<int, int>, config::Shard> found;
  for (const Layout& layout : result.layouts) {
    if (layout.grid[Axis::pipeline] > 1) continue;
    found[{layout.grid[Axis::tensor], layout.grid.experts}] = layout.config.parallel.shard;
    EXPECT_EQ(layout.config.parallel.sequence, layout.grid[Axis::tensor] > 1) << layout.settings;
  }
  for (const int tensor : {2, 4})
    for (const int experts : {1, 2, 4})
      EXPECT_TRUE(found.contains({tensor, experts})) << tensor << " " << experts;
  EXPECT_NE((found[{4, 1}]), config::Shard::optimizer);
}

TEST(Search, LayoutsAreValidDistinctOrderedAndReproducible) {
  const config::Config config = shipped_config("llama7b_fp8");
  const Cluster cluster = testing::h200s(8);
  const SearchResult result = search(config, cluster, planned);
  ASSERT_GT(result.layouts.size(), 10u);
  std::set<std::string> cuts;
  double before = 0;
  for (const Layout& layout : result.layouts) {
    SCOPED_TRACE(layout.settings);
    EXPECT_TRUE(cuts.insert(layout.grid.str()).second);
    EXPECT_EQ(layout.grid[Axis::tensor] * layout.grid[Axis::context] * layout.grid[Axis::data] *
                  layout.grid[Axis::pipeline],
              8);
    EXPECT_GE(layout.time.total(), before);
    before = layout.time.total();
    EXPECT_LE(layout.memory_bytes, result.capacity_bytes);
    // The line to paste turns the config into this layout.
    const config::Config pasted = shipped_config("llama7b_fp8", words(layout.settings));
    EXPECT_EQ(config::to_yaml(pasted), config::to_yaml(layout.config));
    EXPECT_DOUBLE_EQ(StepModel(cluster).predict(pasted).total(), layout.time.total());
    EXPECT_EQ(planned(pasted, layout.grid), layout.memory_bytes);
  }
}

// For a few layouts: no other variant of the same division into ranks is faster and fits.
TEST(Search, ChoosesTheFastestVariantThatFits) {
  const config::Config config = shipped_config("llama7b_fp8");
  const SearchResult result = search(config, testing::h200s(4), planned);
  StepModel model(testing::h200s(4));
  for (const Layout& layout : result.layouts) {
    for (const char* recompute : {"none", "selective", "full"}) {
      for (const char* micro : {"1", "2", "4", "8"}) {
        config::Config other = layout.config;
        config::from_string(recompute, other.training.recompute);
        other.training.micro_batch_size = std::stoi(micro);
        if (other.parallel.schedule != config::PipelineSchedule::one_f_one_b) continue;
        if (model.predict(other).total() >= layout.time.total()) continue;
        EXPECT_GT(planned(other, layout.grid), result.capacity_bytes)
            << layout.settings << " " << micro << recompute;
      }
    }
  }
}

TEST(Search, KeepsFp8WeightsWhereMemoryIsLeft) {
  const auto best = [](const Settings& settings, const char* file = "llama7b_fp8") {
    return search(shipped_config(file, settings), testing::h200s(2), planned).layouts.front();
  };
  const Layout kept = best({});
  EXPECT_EQ(kept.config.precision.fp8_keep_weights, config::Fp8KeptWeights::both);
  EXPECT_NE(kept.settings.find("--set precision.fp8_keep_weights=both"), std::string::npos) << kept.settings;
  const Layout none = best({"precision.fp8_keep_weights=none"});
  EXPECT_GT(none.time.total(), 1.005 * kept.time.total());
  EXPECT_EQ(none.settings.find("fp8_keep_weights"), std::string::npos) << none.settings;
  EXPECT_EQ(best({}, "llama7b_bf16").settings.find("fp8_keep_weights"), std::string::npos);
}

// Four stages: activations of p microbatches of a stage for any number of chunks; operands of deferred weight gradients
// for stage + 1 passes, of one chunk each; and where the cycle of chunks closes, buffers for ceil(2 p / 3) sends in
// flight and one being filled, elsewhere for one and one, per direction.
TEST(Search, PlansTheMemoryOfInterleavedZeroBubble) {
  const auto plan_of = [](int chunks, int stage) {
    const config::Config config = shipped_config(
        "llama7b_fp8", {"parallel.pipeline=4", "parallel.schedule=zero_bubble", "training.recompute=none",
                        "parallel.virtual_stages=" + std::to_string(chunks)});
    const auto grid = parallel::ProcessGrid::of(4, 1, 1, 4);
    const auto groups = parallel::Groups::dry_run(grid, stage);
    const Context context = Context::cpu(train::execution_options(config));
    const train::StepRunner runner(config, context, groups);
    const std::string buffers = runner.plan().buffers();
    int communication = 0;
    for (size_t at = buffers.find("pipeline.message"); at != std::string::npos;
         at = buffers.find("pipeline.message", at + 1))
      ++communication;
    return std::pair{runner.plan().bytes(MemoryKind::activations), communication};
  };
  const auto [one, two] = std::pair{plan_of(1, 0).first, plan_of(1, 1).first};
  const int64_t operands = two - one;  // eight layers of a stage, one microbatch
  EXPECT_GT(operands, 0);
  for (const int chunks : {2, 4}) {
    for (int stage = 0; stage < 3; ++stage) {  // the last stage has activations of the output layer, too
      EXPECT_EQ(plan_of(chunks, stage).first, one - operands + (stage + 1) * operands / chunks)
          << chunks << " chunks, stage " << stage;
    }
    for (int stage = 0; stage < 4; ++stage)
      EXPECT_EQ(plan_of(chunks, stage).second, stage == 0 || stage == 3 ? 2 + 4 : 2 + 2);
  }
  EXPECT_EQ(plan_of(1, 0).second, 2 + 2);
}

void expect_bounds(StepModel& model, const config::Config& config) {
  const auto grid = train::grid_of(config.parallel, 8);
  SCOPED_TRACE(fmt::format("{} {} {}", grid.str(), to_string(config.training.recompute),
                           to_string(config.parallel.shard)));
  const StepTime step = model.predict(config);
  EXPECT_LE(model.min_seconds(config), step.total() * (1 + 1e-12));
  EXPECT_GE(step.pipeline, -1e-9 * step.total());
  EXPECT_LE(model.min_bytes(config), static_cast<double>(planned(config, grid)));
  EXPECT_GE(model.min_bytes(config), 0.6 * static_cast<double>(planned(config, grid)));
}

TEST(Search, LowerBoundsHold) {
  StepModel model(testing::h200s(8));
  for (const Settings& layout : std::vector<Settings>{
           {},
           {"parallel.tensor=2", "parallel.sequence=true"},
           {"parallel.pipeline=4"},
           {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2"},
           {"parallel.pipeline=4", "parallel.schedule=zero_bubble", "training.recompute=none"},
           {"parallel.pipeline=4", "parallel.schedule=zero_bubble", "parallel.virtual_stages=4",
            "training.recompute=none"},
           {"parallel.shard=parameters", "training.recompute=full"},
           {"optimizer.offload=moments"},
           {"optimizer.offload=state", "parallel.shard=parameters"},
           {"parallel.context=2"}})
    expect_bounds(model, shipped_config("llama7b_fp8", layout));
}

// Only adapters have gradients, master weights and moments.
TEST(Search, LowerBoundsOfAdaptersHold) {
  StepModel model(testing::h200s(8));
  for (const Settings& layout : std::vector<Settings>{{},
                                                      {"training.recompute=full"},
                                                      {"parallel.tensor=2", "parallel.sequence=true"},
                                                      {"parallel.pipeline=4"},
                                                      {"parallel.shard=gradients"},
                                                      {"parallel.shard=parameters"}}) {
    Settings settings{"adapter.type=lora", "checkpoint.init_from=base"};
    settings.insert(settings.end(), layout.begin(), layout.end());
    expect_bounds(model, shipped_config("llama7b_fp8", settings));
  }
}

TEST(Search, OwnLayoutIsRanked) {
  const config::Config config =
      shipped_config("llama7b_fp8", {"parallel.tensor=4", "parallel.sequence=true"});
  const SearchResult result = search(config, testing::h200s(4), planned);
  ASSERT_TRUE(result.configured_fits());
  EXPECT_EQ(result.configured->grid[Axis::tensor], 4);
  EXPECT_EQ(result.configured->time.total(), StepModel(testing::h200s(4)).predict(config).total());
  EXPECT_GT(result.configured_rank(), 1);
  // The best layout, given as the config, is ranked first.
  const config::Config best = result.layouts.front().config;
  const SearchResult again = search(best, testing::h200s(4), planned);
  EXPECT_EQ(again.configured_rank(), 1);
  EXPECT_EQ(again.layouts.front().settings, "");
  const SearchResult three = search(config, testing::h200s(6), planned);
  EXPECT_FALSE(three.configured);
  TE_EXPECT_CONTAINS(three.configured_refusal, "not a multiple of");
}

TEST(Search, RefusesImpossibleJobs) {
  const config::Config large = shipped_config("llama3.1_70b_fp8");
  const std::string misfit = user_error_of([&] { search(large, testing::h200s(2), planned); });
  TE_EXPECT_CONTAINS(misfit, "no layout of 2 GPUs fits into the 137.40 GiB");
  TE_EXPECT_CONTAINS(misfit, "the nearest one needs");
  const std::string illegal = user_error_of([&] { search(large, testing::h200s(97), planned); });
  TE_EXPECT_CONTAINS(illegal, "no layout of 97 GPUs is valid");
}

TEST(Search, FollowsTheAbilitiesOfTheGpu) {
  const config::Config fp8 = shipped_config("gpt2_124m_fp8");
  const std::string refused = user_error_of([&] { search(fp8, testing::cluster("a100", 2), planned); });
  TE_EXPECT_CONTAINS(refused, "precision.fp8: this GPU (NVIDIA A100 80GB SXM (rates assumed)) has no FP8");
  EXPECT_FALSE(search(fp8, testing::cluster("l40s", 2), planned).layouts.empty());
}

// Each tensor-parallel size pads the vocabulary differently.
TEST(Search, PadsAVocabularyThatIsNotDivisible) {
  const config::Config config =
      shipped_config("llama_1b_bf16", {"model.vocab_size=32001", "model.make_vocab_size_divisible_by=1"});
  const SearchResult result = search(config, testing::h200s(4), planned);
  bool split = false;
  for (const Layout& layout : result.layouts) {
    EXPECT_EQ(layout.settings.find("divisible"), std::string::npos) << layout.settings;
    split = split || layout.grid[Axis::tensor] == 4;
  }
  EXPECT_TRUE(split);
}

// A single sample has more tokens than the limit for microbatches of several samples.
TEST(Search, RunsLongSequencesOneAtATime) {
  const config::Config config = shipped_config("llama_1b_fp8", {"model.seq_length=1048576"});
  const SearchResult result = search(config, testing::h200s(4), planned);
  ASSERT_FALSE(result.layouts.empty());
  EXPECT_EQ(result.layouts.front().config.training.micro_batch_size, 1);
}

/// Settings of the fastest variant of llama7b_fp8 with these tensor-parallel and pipeline-parallel sizes; empty if the
/// search has none.
std::string settings_of_grid(const Cluster& cluster, int tensor, int pipeline) {
  const SearchResult result = search(shipped_config("llama7b_fp8"), cluster, planned);
  const auto cut = std::ranges::find_if(result.layouts, [&](const Layout& layout) {
    return layout.grid[Axis::tensor] == tensor && layout.grid[Axis::pipeline] == pipeline;
  });
  return cut == result.layouts.end() ? std::string() : cut->settings;
}

// With chunked GEMMs, copies overlap with them, but sums do not.
TEST(Search, TensorParallelismUsesCopyEngines) {
  const Settings tensor{"parallel.tensor=2", "parallel.sequence=true"};
  const auto with = [&](Settings more) {
    more.insert(more.end(), tensor.begin(), tensor.end());
    return StepModel(testing::h200s(2)).predict(shipped_config("llama7b_fp8", more));
  };
  const StepTime nccl = with({}), copies = with({"parallel.tensor_overlap=2"});
  EXPECT_LT(copies.communication, 0.35 * nccl.communication);  // 19% of those with copy engines, and others
  EXPECT_GT(copies.compute, nccl.compute);
  EXPECT_LT(copies.total(), 0.97 * nccl.total());
  const std::string cut = settings_of_grid(testing::h200s(2), 2, 1);
  TE_EXPECT_CONTAINS(cut, "--set parallel.tensor_overlap=2");
}

// With one chunk per rank, the first chunk needs no communication.
TEST(Search, FourTensorParallelRanksUseFourChunks) {
  const auto communication = [](const char* chunks) {
    return StepModel(testing::h200s(4))
        .predict(shipped_config("llama7b_fp8", {"parallel.tensor=4", "parallel.sequence=true", chunks}))
        .communication;
  };
  EXPECT_LT(communication("parallel.tensor_overlap=4"), 0.7 * communication("parallel.tensor_overlap=2"));
  const std::string cut = settings_of_grid(testing::h200s(4), 4, 1);
  TE_EXPECT_CONTAINS(cut, "--set parallel.tensor_overlap=4");
}

// State on the host needs no GPU memory, but its transfer takes time.
TEST(Search, OffloadSavesMemory) {
  const Settings offload{"optimizer.offload=state"};
  const SearchResult result = search(shipped_config("llama2_13b_fp8", offload), testing::h200s(1), planned);
  ASSERT_TRUE(result.configured_fits());
  EXPECT_EQ(result.configured->memory_bytes, planned(result.configured->config, result.configured->grid));
  StepModel model(testing::h200s(1));
  const StepTime with = model.predict(shipped_config("llama7b_fp8", offload));
  const StepTime without = StepModel(testing::h200s(1)).predict(shipped_config("llama7b_fp8"));
  // 10 bytes in each direction for 6.74 billion parameters, of which 0.5 GiB overlap with the passes.
  const double link = (10 * 6.74e9 - 0x1p29) / train::kHostLink;
  EXPECT_NEAR(with.update - without.update, link - 28 * 6.74e9 / model.cluster().gpu.copy, 0.1);
  EXPECT_EQ(with.compute, without.compute);
}

TEST(Report, PartsAddUpAndJsonIsEqual) {
  const config::Config config = shipped_config("llama7b_fp8");
  const Cluster cluster = testing::h200s(4);
  const SearchResult result = search(config, cluster, planned);
  const std::string text = report(result, config, cluster, 3);
  TE_EXPECT_CONTAINS(text, "4 x NVIDIA H200 141GB SXM");
  TE_EXPECT_CONTAINS(text, "the config's own layout would be number");
  TE_EXPECT_CONTAINS(text, "--set training.micro_batch_size=");
  const auto json = parse_json(report_json(result, config, cluster, 3));
  ASSERT_EQ(json.at("layouts").size(), 3u);
  const auto& first = json.at("layouts")[0];
  double sum = 0;
  for (const auto& [name, seconds] : first.at("seconds").items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, first.at("seconds_per_step").get<double>(), 1e-9);
  const double tokens = static_cast<double>(config.training.global_batch_size * config.model.seq_length);
  EXPECT_NEAR(first.at("tokens_per_s_per_gpu").get<double>(), tokens / sum / 4, 1e-6);
  EXPECT_EQ(json.at("own").at("rank").get<int64_t>(), result.configured_rank());
  EXPECT_EQ(json.at("cuts").get<size_t>(), result.layouts.size());
}

// More GPUs take less time, networks between hosts cost time, and a GPU with less memory bandwidth is slower.
TEST(Prediction, ChangesInTheRightDirection) {
  const config::Config config = shipped_config("llama7b_fp8");
  const auto seconds = [&](const Cluster& cluster) { return StepModel(cluster).predict(config).total(); };
  EXPECT_LT(seconds(testing::h200s(8)), 0.6 * seconds(testing::h200s(4)));
  Cluster apart = testing::h200s(8);
  apart.per_host = 1;
  EXPECT_GT(seconds(apart), 1.02 * seconds(testing::h200s(8)));
  Cluster h100 = testing::h200s(8);
  h100.gpu = gpu_named("h100");
  EXPECT_GT(seconds(h100), 1.02 * seconds(testing::h200s(8)));
  EXPECT_LT(seconds(h100), 1.15 * seconds(testing::h200s(8)));
  const config::Config bf16 = shipped_config("llama7b_bf16");
  double previous = 0.0;
  for (const char* gpu : {"b200", "h200", "a100", "a6000", "l4"}) {
    const double own = StepModel(testing::cluster(gpu, 8)).predict(bf16).total();
    EXPECT_GT(own, previous) << gpu;
    previous = own;
  }
}

}  // namespace
}  // namespace te::planner
