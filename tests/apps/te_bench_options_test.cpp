// Configs and options of te-bench that a command measures, ignores on purpose, or refuses.
#include <algorithm>
#include <string>
#include <vector>

#include "config/config.h"
#include "te_bench_testing.h"
#include "train/flops.h"

namespace te {
namespace {

using testing::kTinyConfig;

class TeBenchOptions : public testing::TeBench {
 protected:
  /// Writes tiny.yaml plus `lines` to FILE.yaml and returns its path.
  std::string derived(const std::string& name, const std::string& lines) const {
    std::ofstream(folder_ / name) << "extends: tiny.yaml\n" << lines;
    return (folder_ / name).string();
  }
  std::string lora() const {
    return derived("lora.yaml", "checkpoint: {init_from: base}\nadapter: {type: lora, rank: 8}\n");
  }
  /// Without mpirun's own lines.
  bool has_error(const std::string& line) const {
    return ("\n" + text("err")).find("\nte-bench: error: " + line) != std::string::npos;
  }
};

nlohmann::json row_of(const nlohmann::json& profile, const std::string& name) {
  for (const auto& row : profile.at("operations"))
    if (row.at("name") == name) return row;
  return {};
}

/// Whether a GEMM of a profile has FP8 operands.
bool has_fp8_gemms(const nlohmann::json& profile) {
  for (const auto& row : profile.at("operations"))
    for (const auto& problem : row.at("problems"))
      if (problem.at("problem").get<std::string>().find("fp8") != std::string::npos) return true;
  return false;
}

TEST_F(TeBenchOptions, StepMeasuresEachWindow) {
  for (const std::string pattern : {"w f", "f w"}) {
    ASSERT_EQ(run("step --steps 1 --profile --set model.num_layers=4 --set model.sliding_window=8 --set "
                  "'model.window_pattern=" +
                  pattern + "' --config " + path("tiny.yaml") + " --json " + path("report.json")),
              0)
        << text("err");
    const nlohmann::json entry = report().at(0);
    for (const std::string pass : {"attention_forward", "attention_backward"}) {
      const nlohmann::json problems = row_of(entry.at("profile"), pass).at("problems");
      ASSERT_EQ(problems.size(), 2u) << problems;
      int windows = 0;
      for (const auto& problem : problems) {
        EXPECT_EQ(problem.at("calls"), 4);  // two layers and two microbatches
        windows += problem.at("problem").get<std::string>().ends_with(" window 8") ? 1 : 0;
      }
      EXPECT_EQ(windows, 1) << problems;
    }
  }
}

TEST_F(TeBenchOptions, StepCountsTheFlopsOfAdapters) {
  ASSERT_EQ(run("step --steps 1 --config " + lora() + " --json " + path("report.json")), 0) << text("err");
  const nlohmann::json entry = report().at(0);
  const config::Config config = config::load_config(path("lora.yaml"));
  EXPECT_NEAR(entry.at("tflops").get<double>() * 1e12 / entry.at("tokens_per_s_per_gpu").get<double>() /
                  train::flops_per_token(config),
              1.0, 1e-9);
  EXPECT_LT(train::flops_per_token(config), 0.9 * train::flops_per_token(config.model));
}

// The layer's times and FLOPs are of pre-training.
TEST_F(TeBenchOptions, LayerRefusesAdapters) {
  EXPECT_EQ(run("layer --repeats 1 --config " + lora()), 2);
  EXPECT_EQ(text("err"),
            "te-bench: error: " + path("lora.yaml") +
                ": te-bench layer measures pre-training, where all weights of a layer are trained, but "
                "adapter.type is lora; use te-bench step, or --set adapter.type=none\n");
  EXPECT_EQ(run("layer --repeats 1 --set adapter.type=none --config " + lora()), 0) << text("err");
}

TEST_F(TeBenchOptions, LayerMeasuresFp8WhereItSaysSo) {
  const std::string layer =
      "layer --repeats 1 --profile --json " + path("report.json") + " --config " + path("tiny.yaml");
  for (const std::string set :
       {"first_layers_bf16=1", "last_layers_bf16=1", "overrides='linear_fc2: bf16'"}) {
    ASSERT_EQ(run(layer + " --set precision." + set), 0) << text("err");
    const nlohmann::json rows = report().at("layer");
    ASSERT_EQ(rows.size(), 2u);
    const bool overrides = set.starts_with("overrides");
    EXPECT_EQ(rows[1].at("precision"), "fp8");
    EXPECT_EQ(rows[1].at("overrides"), overrides);
    EXPECT_EQ(text("out").find("FP8 delayed, overrides") != std::string::npos, overrides) << text("out");
    EXPECT_FALSE(has_fp8_gemms(rows[0].at("profile"))) << set;
    EXPECT_TRUE(has_fp8_gemms(rows[1].at("profile"))) << set;
  }
  // A rule for the output layer is not one for the layer.
  ASSERT_EQ(run(layer + " --set precision.overrides='output_layer: bf16'"), 0) << text("err");
  EXPECT_EQ(report().at("layer").at(1).at("overrides"), false);
  EXPECT_EQ(run(layer + " --set precision.overrides='layers -1: bf16'"), 2);
  EXPECT_TRUE(has_error(path("tiny.yaml") + ": precision.overrides names layers")) << text("err");
  EXPECT_EQ(run(layer + " --set precision.overrides='fprop, dgrad, wgrad: bf16'"), 2);
  EXPECT_TRUE(has_error(path("tiny.yaml") + ": precision.overrides keeps all linears in BF16"))
      << text("err");
}

TEST_F(TeBenchOptions, ConfigsOfInstructionTuningNeedNoData) {
  const std::string instruct = derived(
      "instruct.yaml",
      "data: {synthetic: false, train: [a], valid: [b], format: instruct, overlong: drop, document_mask: "
      "true}\ntraining: {eval_interval: 5, early_stopping_patience: 2}\ncheckpoint: {keep_best: 1}\n");
  const std::string masked =
      derived("masked.yaml",
              "data: {synthetic: false, train: [a], document_mask: true, eod_mask_loss: true, max_documents: "
              "8}\n");
  for (const std::string& config : {instruct, masked}) {
    EXPECT_EQ(run("step --steps 1 --config " + config), 0) << text("err");
    EXPECT_EQ(run("layer --repeats 1 --config " + config), 0) << text("err");
    EXPECT_EQ(run("decode --device cpu --prompt 2 --tokens 2 --batch 1 --fp8 off --config " + config), 0)
        << text("err");
    EXPECT_EQ(run("comm --repeats 1 --config " + config, 2), 0) << text("err");
  }
  // A key on the command line is not ignored.
  EXPECT_EQ(run("step --steps 1 --set data.document_mask=true --config " + instruct), 2);
  EXPECT_TRUE(has_error("data.synthetic has no documents")) << text("err");
}

TEST_F(TeBenchOptions, DecodeCountsTheExpertsThatAPassCanRead) {
  const std::string start =
      "decode --device cpu --prompt 3 --tokens 2 --launches ops --json " + path("report.json") +
      " --config " + path("tiny.yaml") +
      " --set model.num_moe_experts=8 --set model.moe_router_topk=2 --set model.moe_ffn_hidden_size=32";
  ASSERT_EQ(run(start + " --batch 1,3,8"), 0) << text("err");
  EXPECT_NE(text("out").find("GB read: at most"), std::string::npos) << text("out");
  // Two layers of 64 columns: attention, router, two norms; the final norm and the output layer.
  const int64_t attention = (3 * 64 + 64) * 64, expert = 3 * 32 * 64, others = 8 * 64 + 2 * 64,
                last = 64 + 128 * 64;
  const nlohmann::json rows = report().at("decode");
  ASSERT_EQ(rows.size(), 6u);
  for (const auto& row : rows) {
    const int64_t experts = std::min<int64_t>(8, 2 * row.at("sequences").get<int64_t>());
    const int64_t bytes = row.at("fp8") == "off" ? 4 : 1;
    EXPECT_EQ(row.at("weight_bytes"), 2 * (bytes * (attention + experts * expert) + 4 * others) + 4 * last)
        << row;
  }
}

// Emulated recipes multiply rounded values of the compute dtype.
TEST_F(TeBenchOptions, DecodeCountsEmulatedWeightsInFull) {
  ASSERT_EQ(run("decode --device cpu --prompt 3 --tokens 2 --launches ops --batch 1 --set "
                "precision.fp8_recipe=mxfp8 --config " +
                path("tiny.yaml") + " --json " + path("report.json")),
            0)
      << text("err");
  const nlohmann::json rows = report().at("decode");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("weight_bytes"), rows[1].at("weight_bytes"));
}

// Each rank would measure the same device and write the same report.
TEST_F(TeBenchOptions, CommandsOfOneDeviceRefuseRanks) {
  const std::string tiny = " --config " + path("tiny.yaml");
  const std::vector<std::string> commands = {"gemm --model gpt2_124m --tokens 16", "attention --seq 16",
                                             "experts --tokens 20 --config preset:moe_40m_100m",
                                             "decode" + tiny};
  for (const std::string& command : commands) {
    EXPECT_EQ(run(command + " --device cpu --json " + path("report.json"), 2), 2) << command;
    EXPECT_TRUE(has_error("te-bench " + command.substr(0, command.find(' ')) +
                          " supports one rank only; start it without mpirun"))
        << text("err");
    EXPECT_EQ(text("out"), "") << command;
  }
  EXPECT_EQ(run("layer --device cuda:1 --set parallel.tensor=2" + tiny, 2), 2);
  EXPECT_TRUE(has_error("--device cuda:1: 2 ranks have a GPU each")) << text("err");
}

TEST_F(TeBenchOptions, OptionsWithoutEffectAreRefused) {
  EXPECT_EQ(run("decode --repeats 3 --device cpu --config " + path("tiny.yaml")), 2);
  const std::string gemm = "gemm --device cpu --model gpt2_124m --tokens 16 --json " + path("report.json");
  EXPECT_EQ(run(gemm + " --repeats 3"), 2);
  EXPECT_EQ(run(gemm + " --autotune full"), 2);
  EXPECT_TRUE(has_error("--autotune full: the CPU has no GEMM algorithms to choose from; leave it out"))
      << text("err");
  for (const std::string autotune : {"", " --autotune off"}) {
    ASSERT_EQ(run(gemm + autotune), 0) << text("err");
    EXPECT_EQ(report().at("autotune"), "off");
    EXPECT_FALSE(report().contains("repeats"));
    EXPECT_EQ(report().at("gemm").size(), 30u);  // five linears, three passes, BF16 and FP8
    EXPECT_NE(text("out").find("with gemm_autotune off"), std::string::npos) << text("out");
  }
}

TEST_F(TeBenchOptions, AWindowOfTheSequenceIsNoWindow) {
  ASSERT_EQ(run("attention --device cpu --seq 16 --heads 2 --groups 1 --head-dim 8 --repeats 1 --documents "
                "0 --windows 1024,16,8 --json " +
                path("report.json")),
            0)
      << text("err");
  const nlohmann::json rows = report().at("attention");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("window"), 0);
  EXPECT_EQ(rows[1].at("window"), 8);
  EXPECT_NE(text("out").find("causal"), std::string::npos) << text("out");
}

}  // namespace
}  // namespace te
