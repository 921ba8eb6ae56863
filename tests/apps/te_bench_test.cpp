// te-bench end to end on the CPU; it must account for all operations of a step.
#include <algorithm>
#include <regex>
#include <vector>

#include "config/config.h"
#include "core/json.h"
#include "te_bench_testing.h"
#include "train/flops.h"

namespace te {
namespace {

using testing::kTinyConfig;
using testing::TeBench;

const nlohmann::json& operation(const nlohmann::json& profile, const std::string& name) {
  for (const auto& row : profile.at("operations"))
    if (row.at("name") == name) return row;
  throw std::runtime_error("no operation " + name);
}

// The update's waits belong to the optimizer; the copies overlap with the step.
TEST_F(TeBench, ReportsOffloadCopies) {
  ASSERT_EQ(run("step --steps 1 --profile --set optimizer.offload=moments --config " + path("tiny.yaml") +
                " --json " + path("report.json")),
            0)
      << text("err");
  const nlohmann::json entry = report().at(0);
  const double host = entry.at("host_memory_bytes").get<double>();
  EXPECT_GT(host, 0);
  EXPECT_EQ(operation(entry.at("profile"), "wait_for_state").at("group"), "optimizer");
  EXPECT_EQ(operation(entry.at("profile"), "wait_for_state").at("calls"),
            operation(entry.at("profile"), "adamw").at("calls"));
  for (const std::string copy : {"copy_to_device (offload)", "copy_to_host (offload)"}) {
    const nlohmann::json row = operation(entry.at("profile"), copy);
    EXPECT_EQ(row.at("group"), "offload");
    EXPECT_NEAR(row.at("bytes").get<double>(), host, 512);  // whole buffers are aligned
    EXPECT_EQ(row.at("lower_bound_ms"), 0.0);               // a link's time, not the memory bandwidth
  }
  EXPECT_NE(text("out").find(", host "), std::string::npos) << text("out");
}

// Allocating more page-locked memory than the host has would kill this process or another one.
TEST_F(TeBench, RefusesMoreHostMemoryThanAvailable) {
  EXPECT_EQ(run("step --set optimizer.offload=moments --set model.hidden_size=32768 --set "
                "model.num_layers=1000 --config " +
                path("tiny.yaml")),
            2);
  EXPECT_NE(text("err").find("the memory plan needs "), std::string::npos) << text("err");
}

// Before the benchmarks, which can take long.
TEST_F(TeBench, AReportThatCannotBeWrittenIsRefusedFirst) {
  const std::string json = " --json " + path("no/report.json");
  for (const std::string& command : {"attention --device cpu" + json, "gemm --device cpu" + json,
                                     "layer --device cpu --config " + path("tiny.yaml") + json,
                                     "step --config " + path("tiny.yaml") + json}) {
    EXPECT_EQ(run(command), 2) << command;
    EXPECT_NE(text("err").find("te-bench: error: --json " + path("no/report.json") + ": cannot be written"),
              std::string::npos)
        << text("err");
    EXPECT_EQ(text("out"), "") << command;
  }
  EXPECT_EQ(run("attention --device cpu --repeats 99999999999"), 2);
  EXPECT_NE(text("err").find("--repeats 99999999999: is too large; see te-bench --help"), std::string::npos)
      << text("err");
}

// Later configs may fail: the second config here is refused.
TEST_F(TeBench, PrintsEachConfigWhenItIsMeasured) {
  ASSERT_EQ(run("step --steps 1 --config " + path("tiny.yaml") + " --config " + path("missing.yaml") +
                " --json " + path("report.json")),
            2);
  EXPECT_NE(text("err").find("tiny, FP8 hybrid, 1x1x1: "), std::string::npos) << text("err");
  EXPECT_NE(text("err").find(" tokens/s/GPU\n"), std::string::npos) << text("err");
  ASSERT_EQ(report().size(), 1u);
  EXPECT_EQ(report().at(0).at("config"), "tiny");
}

TEST_F(TeBench, AccountsForAllOperationsOfAStep) {
  ASSERT_EQ(
      run("step --steps 2 --profile --tune --config " + path("tiny.yaml") + " --json " + path("report.json")),
      0)
      << text("err");
  const nlohmann::json entry = report().at(0);
  const nlohmann::json& profile = entry.at("profile");
  // The FLOPs of all GEMMs and attention of the step equal the model's formula. The formula counts four GEMMs in the
  // backward pass of attention; the pass recomputes the scores with a fifth.
  const config::Config config = config::parse_config(kTinyConfig, "tiny.yaml");
  double flops = 0, ms = 0;
  for (const auto& row : profile.at("operations")) {
    flops += row.at("flops").get<double>() * (row.at("name") == "attention_backward" ? 0.8 : 1.0);
    ms += row.at("ms").get<double>();
    if (row.at("bytes").get<double>() > 0) {
      EXPECT_GT(row.at("lower_bound_ms").get<double>(), 0.0) << row;
    }
  }
  const double tokens = 4 * 32;
  EXPECT_NEAR(flops / (train::flops_per_token(config.model) * tokens), 1.0, 1e-6);
  // The sums equal the totals.
  EXPECT_NEAR(profile.at("operations_ms").get<double>(), ms, 1e-9);
  EXPECT_NEAR(profile.at("busy_ms").get<double>(), ms, 1e-3 * ms);
  EXPECT_GE(profile.at("span_ms").get<double>(), profile.at("busy_ms").get<double>());
  EXPECT_GT(profile.at("copy_bytes_per_s").get<double>(), 0.0);
  // Two layers and two microbatches; one microbatch of 64 tokens, FP8: x, W, y in bf16, its activation in both layouts.
  const nlohmann::json fc1 = operation(profile, "linear_fc1 fprop + activation");
  EXPECT_EQ(fc1.at("calls"), 4);
  EXPECT_EQ(fc1.at("flops"), 4 * 2.0 * 64 * 192 * 64);
  EXPECT_EQ(fc1.at("bytes"), 4 * (64.0 * 64 + 192 * 64 + 2 * 64 * 192 + 2 * 64 * 96));
  EXPECT_EQ(fc1.at("problems").size(), 1u);
  // The first microbatch's GEMM overwrites the gradient, the second one accumulates: two problems, also for --tune.
  const nlohmann::json wgrad = operation(profile, "output_layer wgrad");
  EXPECT_EQ(wgrad.at("calls"), 2);
  EXPECT_EQ(wgrad.at("problems").size(), 2u);
  EXPECT_EQ(operation(profile, "adamw").at("calls"), 1);
  EXPECT_FALSE(profile.contains("communication"));  // none on one rank
  EXPECT_EQ(text("out").find("exposed"), std::string::npos) << text("out");
}

// In BF16 the GEMMs before and after the activation fuse it.
TEST_F(TeBench, CountsAnActivationWithItsGemm) {
  std::ofstream(folder_ / "bf16.yaml")
      << std::regex_replace(kTinyConfig, std::regex("fp8: hybrid"), "fp8: off");
  ASSERT_EQ(
      run("step --steps 1 --profile --tune --config " + path("bf16.yaml") + " --json " + path("report.json")),
      0)
      << text("err");
  const nlohmann::json entry = report().at(0);
  const nlohmann::json& profile = entry.at("profile");
  const nlohmann::json fc1 = operation(profile, "linear_fc1 fprop + activation");
  EXPECT_EQ(fc1.at("group"), "GEMMs");
  EXPECT_EQ(fc1.at("calls"), 4);
  EXPECT_EQ(fc1.at("flops"), 4 * 2.0 * 64 * 192 * 64);
  EXPECT_GT(fc1.at("lower_bound_ms").get<double>(), 0.0);
  EXPECT_EQ(fc1.at("problems").at(0).at("problem"), "gemm forward swiglu bf16[64, 64] [192, 64]");
  const nlohmann::json fc2 = operation(profile, "linear_fc2 dgrad + activation");
  EXPECT_EQ(fc2.at("calls"), 4);
  EXPECT_EQ(fc2.at("flops"), 4 * 2.0 * 64 * 96 * 64);
  EXPECT_GT(fc2.at("lower_bound_ms").get<double>(), 0.0);
  EXPECT_EQ(fc2.at("problems").at(0).at("problem"), "gemm backward swiglu bf16[64, 64] [64, 96]");
  for (const auto& row : profile.at("operations")) EXPECT_NE(row.at("group"), "activation") << row;
}

// One pass per token. A pass reads the model's weights, in FP8 as bytes.
TEST_F(TeBench, DecodesWithAllVariants) {
  ASSERT_EQ(run("decode --device cpu --prompt 3 --tokens 4 --batch 1,3 --set model.hidden_size=128 --set "
                "model.ffn_hidden_size=256 "
                "--config " +
                path("tiny.yaml") + " --json " + path("report.json")),
            0)
      << text("err");
  const nlohmann::json rows = report().at("decode");
  ASSERT_EQ(rows.size(), 8u);  // two batches, off and hybrid, ops and megakernel
  for (const auto& row : rows) {
    EXPECT_GT(row.at("ms").get<double>(), 0);
    EXPECT_NEAR(row.at("tokens_per_s").get<double>(),
                row.at("sequences").get<double>() / row.at("ms").get<double>() * 1e3,
                1e-6 * row.at("tokens_per_s").get<double>());
    // Two layers of 128 x (3 x 128 + 128 + 3 x 256), and the output layer with 128 columns; the embedding is a lookup.
    const double layers = 2 * 128 * (4 * 128 + 3 * 256), head = 128 * 128;
    const double bytes = (row.at("fp8") == "off" ? 4 * layers : layers) + 4 * head;
    EXPECT_NEAR(row.at("weight_bytes").get<double>(), bytes, 0.02 * bytes) << row;  // norms
  }
  EXPECT_EQ(run("decode --device cpu --config " + path("tiny.yaml") + " --batch 0"), 2);
  EXPECT_EQ(run("decode --device cpu --config " + path("tiny.yaml"), 2), 2);
}

// The CPU runs operations one after another, so all communication is exposed. overlap_test.cpp tests overlap.
TEST_F(TeBench, ReportsExposedCommunication) {
  ASSERT_EQ(run("step --steps 1 --profile --set parallel.tensor=2 --config " + path("tiny.yaml") +
                    " --json " + path("report.json"),
                2),
            0)
      << text("err");
  const nlohmann::json entry = report().at(0);
  const nlohmann::json& profile = entry.at("profile");
  const nlohmann::json& communication = profile.at("communication");
  double calls = 0, of_tensor_ranks = 0, ms = 0;
  for (const auto& row : communication.at("kinds")) {
    if (row.at("group") == "tensor") of_tensor_ranks += row.at("calls").get<double>();
    EXPECT_EQ(row.at("hidden_ms"), 0.0) << row;
    EXPECT_DOUBLE_EQ(row.at("exposed_ms").get<double>(), row.at("ms").get<double>()) << row;
    calls += row.at("calls").get<double>();
    ms += row.at("ms").get<double>();
  }
  double profiled = 0;
  for (const auto& row : profile.at("operations"))
    if (row.at("group") == "communication") profiled += row.at("calls").get<double>();
  EXPECT_GE(of_tensor_ranks, 2 * 2 * 4);  // two microbatches of two layers, twice forward, twice backward
  EXPECT_DOUBLE_EQ(calls, profiled);
  EXPECT_NEAR(communication.at("exposed_ms").get<double>(), ms, 1e-6 * ms);
  EXPECT_NEAR(communication.at("exposed_share").get<double>(), ms / profile.at("run_ms").get<double>(), 1e-6);
  EXPECT_NE(text("out").find("exposed of step"), std::string::npos) << text("out");
}

TEST_F(TeBench, CountsAllToAllAsCommunication) {
  ASSERT_EQ(run("step --steps 1 --profile --set parallel.context=2 --config " + path("tiny.yaml") +
                    " --json " + path("report.json"),
                2),
            0)
      << text("err");
  const nlohmann::json entry = report().at(0);
  const nlohmann::json& profile = entry.at("profile");
  EXPECT_EQ(operation(profile, "all_to_all").at("group"), "communication");
  double calls = 0;
  for (const auto& row : profile.at("communication").at("kinds"))
    if (row.at("group") == "context" && row.at("name") == "all_to_all") calls = row.at("calls").get<double>();
  // Two layers and two microbatches; forward: qkv and the output; backward: the output again, its gradient and qkv's.
  EXPECT_EQ(calls, 2 * 2 * 5);
}

/// The complete events of a rank in a trace.
std::vector<nlohmann::json> complete_events(const nlohmann::json& trace, int rank) {
  std::vector<nlohmann::json> events;
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("ph") == "X" && event.at("pid") == rank) events.push_back(event);
  return events;
}

TEST_F(TeBench, WritesTheTimelineOfAllRanks) {
  const std::string start = "step --steps 1 --config " + path("tiny.yaml") + " --json " + path("report.json");
  // Without FP8 all steps have the same operations.
  ASSERT_EQ(
      run(start + " --set parallel.tensor=2 --set precision.fp8=off --timeline " + path("trace.json"), 2), 0)
      << text("err");
  const nlohmann::json trace = parse_json(text("trace.json"));
  EXPECT_EQ(trace.at("otherData").at("config"), "tiny");
  const nlohmann::json entry = report().at(0);  // --profile is implied
  double calls = 0;
  for (const auto& row : entry.at("profile").at("operations")) calls += row.at("calls").get<double>();
  for (const int rank : {0, 1}) {
    const std::vector<nlohmann::json> events = complete_events(trace, rank);
    // The report is that of rank 0; only rank 0 adds up the losses of the two microbatches.
    EXPECT_EQ(static_cast<double>(events.size()), rank == 0 ? calls : calls - 2);
    double first = 1e9, flops = 0, communication = 0;
    for (const auto& event : events) {
      first = std::min(first, event.at("ts").get<double>());
      flops += event.at("args").at("flops").get<double>();
      communication += event.at("args").at("group") == "tensor" ? 1 : 0;
      EXPECT_GE(event.at("dur").get<double>(), 0.0);
    }
    EXPECT_EQ(first, 0.0);
    EXPECT_GT(flops, 0.0);
    EXPECT_GT(communication, 0.0);
  }
}

TEST_F(TeBench, RefusesUnwritableTimeline) {
  const std::string config = " --config " + path("tiny.yaml"), file = path("no folder") + "/trace.json";
  EXPECT_EQ(run("step" + config + " --timeline '" + file + "'"), 2);
  EXPECT_EQ(text("err"),
            "te-bench: error: --timeline " + file +
                ": cannot be written (No such file or directory); check the folder's permissions "
                "and free space\n");
  EXPECT_EQ(text("out"), "");
  EXPECT_EQ(run("step" + config + config + " --timeline " + path("trace.json")), 2);
  EXPECT_EQ(
      text("err").find("te-bench: error: --timeline " + path("trace.json") + ": needs exactly one --config"),
      0u)
      << text("err");
}

// The operations of two ranks' shards of the first layer add up to those of the full layer, plus communication.
TEST_F(TeBench, TimesALayerOnTensorParallelRanks) {
  const std::string layer = "layer --profile --repeats 1 --recipe delayed --config " + path("tiny.yaml") +
                            " --json " + path("report.json");
  const auto flops = [&](size_t entry) {
    const nlohmann::json all = report();
    double sum = 0;
    for (const auto& row : all.at("layer").at(entry).at("profile").at("operations"))
      sum += row.at("flops").get<double>();
    return sum;
  };
  ASSERT_EQ(run(layer), 0) << text("err");
  const double whole[] = {flops(0), flops(1)};
  ASSERT_EQ(run(layer + " --set parallel.tensor=2 --set parallel.sequence=true", 2), 0) << text("err");
  const nlohmann::json rows = report().at("layer");
  ASSERT_EQ(rows.size(), 2u);
  for (const size_t entry : {0u, 1u}) {
    EXPECT_GT(whole[entry], 0);
    EXPECT_DOUBLE_EQ(flops(entry), whole[entry] / 2);
    EXPECT_EQ(rows[entry].at("layout"), "TP2");
    EXPECT_EQ(rows[entry].at("tokens"), 2 * 32);  // of a microbatch, over all ranks
    const nlohmann::json& communication = rows[entry].at("profile").at("communication").at("kinds");
    double calls = 0;
    for (const auto& row : communication) calls += row.at("calls").get<double>();
    EXPECT_GE(calls, 8);  // around attention and MLP, in two passes
  }
  EXPECT_EQ(rows[0].at("precision"), "bf16");
  EXPECT_EQ(rows[1].at("recipe"), "delayed");
}

TEST_F(TeBench, LayerUsesTheDtypeOfItsConfig) {
  const auto precisions = [&](const std::string& dtype) {
    const std::string set = " --set precision.fp8=off --set precision.dtype=" + dtype;
    EXPECT_EQ(run("layer --repeats 1 --config " + path("tiny.yaml") + set + " --json " + path("report.json")),
              0)
        << text("err");
    std::string found;
    const nlohmann::json all = report();
    for (const auto& row : all.at("layer")) found += row.at("precision").get<std::string>() + " ";
    return found;
  };
  EXPECT_EQ(precisions("fp32"), "fp32 fp8 ");
  EXPECT_EQ(precisions("fp16"), "fp16 ");
  EXPECT_NE(text("out").find("FP16 layers are not measured in FP8"), std::string::npos) << text("out");
}

TEST_F(TeBench, LayerNeedsTheRanksOfItsConfig) {
  EXPECT_EQ(run("layer --set parallel.tensor=2 --config " + path("tiny.yaml")), 2);
  EXPECT_NE(
      text("err").find(
          "has parallel.tensor 2 and parallel.context 1, but the job has 1 rank: start it with mpirun -n 2"),
      std::string::npos)
      << text("err");
  EXPECT_EQ(run("layer --which gpt --config " + path("tiny.yaml")), 2);
  EXPECT_NE(text("err").find("--which and --config exclude each other"), std::string::npos) << text("err");
  EXPECT_EQ(run("layer --recipe blocks --config " + path("tiny.yaml")), 2);
  EXPECT_NE(text("err").find("--recipe blocks: must be delayed"), std::string::npos) << text("err");
  EXPECT_EQ(run("layer --set model.hidden_size=64"), 2);
  EXPECT_NE(text("err").find("--set overrides a key of a config"), std::string::npos) << text("err");
}

TEST_F(TeBench, CountsVisibleAttentionPairs) {
  ASSERT_EQ(run("attention --device cpu --seq 100 --batch 2 --heads 4 --groups 2 --head-dim 16 --repeats 1 "
                "--documents 0,40 --windows 0,8,100 --json " +
                path("report.json")),
            0)
      << text("err");
  const nlohmann::json rows = report().at("attention");
  ASSERT_EQ(rows.size(), 4u);  // a window of all tokens is no window
  const auto triangle = [](int n) { return n * (n + 1) / 2; };
  const auto banded = [&](int n) { return triangle(8) + (n - 8) * 8; };
  const int pairs[] = {triangle(100), banded(100), 2 * triangle(40) + triangle(20),
                       2 * banded(40) + banded(20)};
  for (size_t i = 0; i < rows.size(); ++i) {
    // Two samples, four heads of 16: two dot products with two operations per value forward, five backward.
    EXPECT_EQ(rows[i].at("forward_flops").get<double>(), pairs[i] * 2.0 * 4 * 16 * 2 * 2) << rows[i];
    EXPECT_EQ(rows[i].at("backward_flops").get<double>(), pairs[i] * 2.0 * 4 * 16 * 2 * 5) << rows[i];
    EXPECT_GT(rows[i].at("backward_ms").get<double>(), 0);
  }
  EXPECT_NE(text("out").find("documents of 40, window of 8"), std::string::npos) << text("out");
  ASSERT_EQ(run("attention --device cpu --seq 96 --batch 1 --heads 2 --groups 1 --head-dim 8 --repeats 1 "
                "--documents 0,40 --windows 0 --context-ranks 2 --json " +
                path("report.json")),
            0)
      << text("err");
  // Queries 0 to 23 and 72 to 95; documents of tokens 0 to 39, 40 to 79 and 80 to 95.
  const int of_rank[] = {triangle(24) + triangle(96) - triangle(72),
                         triangle(24) + triangle(40) - triangle(32) + triangle(16)};
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(report().at("attention").at(i).at("forward_flops").get<double>(), of_rank[i] * 2.0 * 2 * 8 * 2);
  EXPECT_NE(text("out").find("queries of one of 2 context-parallel ranks"), std::string::npos) << text("out");
  EXPECT_EQ(run("attention --device cpu --seq 90 --context-ranks 2"), 2);
  EXPECT_NE(text("err").find("--context-ranks 2: 2 * context ranks must divide --seq 90"), std::string::npos);
  EXPECT_EQ(run("attention --device cpu --heads 5 --groups 2"), 2);
  EXPECT_NE(text("err").find("--groups 2: must divide --heads 5"), std::string::npos) << text("err");
}

TEST_F(TeBench, TimesGroupedGemmsOfExperts) {
  const std::string options =
      " --config preset:moe_40m_100m --set model.moe_ffn_hidden_size=32 --repeats 1 --tokens 20";
  for (const std::string routing : {"balanced", "random"}) {
    ASSERT_EQ(run("experts --device cpu --json " + path("report.json") + options + " --routing " + routing),
              0)
        << text("err");
    const nlohmann::json rows = report().at("experts");
    ASSERT_EQ(rows.size(), 12u);  // BF16 and FP8; 32 is no whole block of scales
    for (const nlohmann::json& row : rows) {
      EXPECT_GT(row.at("ms").get<double>(), 0.0);
      EXPECT_EQ(row.at("flops").get<double>(),
                (row.at("linear") == "fc1" ? 2.0 : 1.0) * 2 * 20 * 8 * 32 * 384);
    }
    EXPECT_GE(report().at("load_max").get<double>(), 1.0);
  }
  EXPECT_EQ(run("experts --device cpu --config preset:gpt2"), 2);
  EXPECT_EQ(text("err"), "te-bench: error: --config preset:gpt2: the model has no experts\n");
}

TEST_F(TeBench, RefusesWithOneLine) {
  EXPECT_EQ(run("step --config " + path("missing.yaml")), 2);
  EXPECT_EQ(text("err").find("te-bench: error: "), 0u) << text("err");
  EXPECT_EQ(run("gemm --autotune sometimes"), 2);
  EXPECT_EQ(run("--help >/dev/full 2>" + path("err") + " #"), 2);
  EXPECT_EQ(text("err").find("te-bench: error: standard output could not be written"), 0u) << text("err");
}

}  // namespace
}  // namespace te
