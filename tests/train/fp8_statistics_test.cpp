// FP8 statistics of a run: their content, and that collecting them changes no bit of the run, for any recipe and
// layout.
#include <nlohmann/json.hpp>

#include "te_train_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;

const Overrides kWatching = {"logging.fp8_statistics_every=2",
                             "logging.fp8_what_if=[tensorwise, rowwise, blockwise, mxfp8, nvfp4]"};

/// Losses and the whole checkpoint of a run with and without statistics.
void expect_same_bits(const TrainFolder& folder, const std::string& name, const Overrides& overrides) {
  SCOPED_TRACE(name);
  const Result plain = folder.run(name, overrides),
               watched = folder.run(name + "_watched", overrides + kWatching);
  ASSERT_EQ(plain.code, 0) << plain.error;
  ASSERT_EQ(watched.code, 0) << watched.error;
  EXPECT_EQ(folder.column(name, "loss"), folder.column(name + "_watched", "loss"));
  EXPECT_EQ(folder.column(name, "grad_norm"), folder.column(name + "_watched", "grad_norm"));
  EXPECT_EQ(folder.checkpoint_bytes(name, 6), folder.checkpoint_bytes(name + "_watched", 6));
  EXPECT_EQ(folder.records(name + "_watched", "fp8_statistics.jsonl").size(), 3u);
}

TEST(Fp8Statistics, ChangeNoBitOfAnyRecipe) {
  const TrainFolder folder;
  for (const char* recipe : {"delayed", "tensorwise", "rowwise", "blockwise"})
    expect_same_bits(folder, recipe, {"precision.fp8=hybrid", std::string("precision.fp8_recipe=") + recipe});
  expect_same_bits(folder, "mxfp8", kTinyFp8 + Overrides{"precision.fp8_recipe=mxfp8"});
  expect_same_bits(folder, "nvfp4", kTinyFp8 + Overrides{"precision.fp8_recipe=nvfp4"});
  expect_same_bits(folder, "off", {});
  expect_same_bits(folder, "calibrates", {"precision.fp8_calibrate=true"});
  expect_same_bits(folder, "mixed",
                   {"precision.fp8=hybrid", "precision.fp8_output_layer=true", "training.recompute=selective",
                    "precision.overrides=linear_fc2 input: bf16; layers 0 linear_qkv: blockwise; layers 1 "
                    "linear_proj: tensorwise"});
  expect_same_bits(folder, "counting",
                   {"precision.fp8=hybrid", "logging.fp8_stats_every=1", "training.recompute=full"});
}

TEST(Fp8Statistics, ChangeNoBitOfAnyLayout) {
  TrainFolder folder;
  folder.use_ranks(2);
  expect_same_bits(folder, "tp", kTinyFp8 + Overrides{"parallel.tensor=2"});
  expect_same_bits(folder, "tp_sp", kTinyFp8 + Overrides{"parallel.tensor=2", "parallel.sequence=true"});
  expect_same_bits(
      folder, "tp_sp_blockwise",
      kTinyFp8 + Overrides{"parallel.tensor=2", "parallel.sequence=true", "precision.fp8_recipe=blockwise"});
  expect_same_bits(folder, "tp_sp_blockwise_groups",  // 128 tokens per rank, quantized locally
                   kTinyFp8 + Overrides{"parallel.tensor=2", "parallel.sequence=true",
                                        "precision.fp8_recipe=blockwise", "model.seq_length=128"});
  expect_same_bits(folder, "pp",
                   kTinyFp8 + Overrides{"parallel.pipeline=2", "parallel.schedule=zero_bubble"});
  expect_same_bits(folder, "dp", kTinyFp8);
  expect_same_bits(folder, "dp_rowwise",
                   kTinyFp8 + Overrides{"precision.fp8_recipe=rowwise", "parallel.bucket_size=1000"});
}

const json* find(const json& record, const std::string& linear, const std::string& role,
                 const std::string& recipe, const std::string& form) {
  for (const json& operand : record["operands"])
    if (operand.at("linear") == linear && operand.at("role") == role && operand.at("recipe") == recipe &&
        operand.value("form", "") == form)
      return &operand;
  return nullptr;
}

TEST(Fp8Statistics, MatchTheRun) {
  const TrainFolder folder;
  // With one microbatch per step, the statistics cover exactly what the step computes.
  Overrides overrides = kWatching + Overrides{"precision.fp8=hybrid", "training.global_batch_size=2",
                                              "logging.fp8_stats_every=1", "precision.fp8_recast=false"};
  ASSERT_EQ(folder.run("run", overrides).code, 0);
  const std::vector<json> statistics = folder.records("run", "fp8_statistics.jsonl"),
                          metrics = folder.records("run", "metrics.jsonl");
  ASSERT_EQ(statistics.size(), 3u);
  EXPECT_EQ(statistics[0]["step"], 2);
  // 2 layers of 4 linears with 3 operands; the output layer is not quantized.
  size_t own = 0;
  for (const json& operand : statistics[0]["operands"]) own += operand.value("what_if", true) ? 0 : 1;
  EXPECT_EQ(own, 24u);
  // They match the amaxes and fractions of the step's FP8 health.
  for (const json& health : metrics[1]["fp8"]) {
    const json* operand = find(statistics[0], health.at("linear"), health.at("role"), "delayed", "both");
    ASSERT_NE(operand, nullptr) << health;
    if (health.at("role") == "weight") continue;  // FP8 health has the weights after the step
    EXPECT_EQ((*operand)["amax"].get<float>(), health.at("amax").get<float>()) << health;
    EXPECT_EQ((*operand)["saturated"].get<double>(), health.at("saturated").get<double>()) << health;
    EXPECT_EQ((*operand)["flushed"].get<double>(), health.at("flushed").get<double>()) << health;
  }
  // Rounding to 3 mantissa bits changes a value by at most 1/16 (24 dB), to 2 bits by at most 1/8 (18 dB).
  for (const json& operand : statistics[2]["operands"]) {
    if (operand.at("recipe") == "none") continue;  // not quantized
    EXPECT_TRUE(operand.at("saturated") == 0.0 || operand.at("what_if") == false) << operand;
    if (operand.at("saturated") != 0.0) continue;
    const bool fp4 = operand.at("format") == "fp4_e2m1";
    EXPECT_GT(operand.at("sqnr_db").get<double>(), fp4                                  ? 12
                                                   : operand.at("format") == "fp8_e5m2" ? 18
                                                                                        : 24)
        << operand;
    EXPECT_LT(operand.at("sqnr_db").get<double>(), 60) << operand;
    EXPECT_EQ(operand.contains("scale"), operand.at("recipe") != "mxfp8" && operand.at("recipe") != "nvfp4")
        << operand;
    EXPECT_GE(operand.value("scale_max", 0.0), operand.value("scale", 0.0)) << operand;
  }
  const json* fc2 = find(statistics[2], "layers.1.mlp.linear_fc2", "input", "blockwise", "columnwise");
  ASSERT_NE(fc2, nullptr);
  EXPECT_EQ((*fc2)["values"], 2 * 16 * 48);
  // E4M3 with a scale per 32 values is as good as one per 128, also for gradients.
  for (const char* form : {"rowwise", "columnwise"}) {
    const json* gradient = find(statistics[2], "layers.1.mlp.linear_fc2", "grad_output", "mxfp8", form);
    ASSERT_NE(gradient, nullptr);
    EXPECT_EQ((*gradient)["format"], "fp8_e4m3");
    EXPECT_GT((*gradient)["sqnr_db"].get<double>(), 30);
  }
  ASSERT_EQ(statistics[2]["swiglu"].size(), 2u);
  EXPECT_GT(statistics[2]["swiglu"][1]["max"].get<double>(),
            statistics[2]["swiglu"][1]["mean"].get<double>());
  // The summary in metrics.jsonl.
  EXPECT_FALSE(metrics[0].contains("fp8_statistics"));
  EXPECT_GT(metrics[1]["fp8_statistics"]["sqnr_db_min"].get<double>(), 10);
  EXPECT_GT(metrics[1]["fp8_statistics"]["fc2_input_amax"].get<double>(), 0);
  EXPECT_GT(metrics[1]["fp8_statistics"]["swiglu_alignment"].get<double>(), 0);
}

// Parts of tensors and samples of a step are merged: the statistics of two ranks equal those of one.
TEST(Fp8Statistics, OfSeveralRanksAreMerged) {
  TrainFolder folder;
  const Overrides overrides = {"precision.fp8=hybrid",   "precision.fp8_recipe=tensorwise",
                               "training.train_steps=1", "logging.fp8_statistics_every=1",
                               "precision.dtype=fp32",   "model.ffn_hidden_size=64"};
  ASSERT_EQ(folder.run("one", overrides + Overrides{"training.micro_batch_size=4"}).code, 0);
  folder.use_ranks(2);
  ASSERT_EQ(folder
                .run("tp", overrides + Overrides{"parallel.tensor=2", "parallel.sequence=true",
                                                 "training.micro_batch_size=4"})
                .code,
            0);
  ASSERT_EQ(
      folder.run("pp", overrides + Overrides{"parallel.pipeline=2", "training.micro_batch_size=4"}).code, 0);
  ASSERT_EQ(folder.run("dp", overrides).code, 0);
  const json one = folder.records("one", "fp8_statistics.jsonl")[0];
  for (const char* run : {"tp", "pp", "dp"}) {
    SCOPED_TRACE(run);
    const json other = folder.records(run, "fp8_statistics.jsonl")[0];
    ASSERT_EQ(other["operands"].size(), one["operands"].size());
    for (const json& expected : one["operands"]) {
      const json* operand =
          find(other, expected["linear"], expected["role"], expected["recipe"], expected.value("form", ""));
      ASSERT_NE(operand, nullptr) << expected;
      // Data-parallel ranks have different scales and values.
      const double bound = 0.05 * expected["rms"].get<double>();
      EXPECT_NEAR((*operand)["rms"].get<double>(), expected["rms"].get<double>(), bound)
          << *operand << expected;
      EXPECT_NEAR((*operand)["kurtosis"].get<double>(), expected["kurtosis"].get<double>(),
                  0.04 * expected["kurtosis"].get<double>())
          << *operand;
    }
  }
}

// As an alternative `tensorwise` has the scales of a run with it, also of tensors that ranks have parts of.
TEST(Fp8Statistics, AlternativesHaveTheScalesOfTheRecipe) {
  TrainFolder folder;
  const Overrides all = {"training.train_steps=1", "logging.fp8_statistics_every=1",
                         "model.ffn_hidden_size=64"};
  for (const char* tensor : {"1", "2"}) {
    SCOPED_TRACE(tensor);
    folder.use_ranks(tensor[0] - '0');
    const std::string name = std::string("tensor") + tensor;
    const Overrides layout = all + Overrides{std::string("parallel.tensor=") + tensor};
    run(folder, name, layout + Overrides{"precision.fp8=hybrid", "precision.fp8_recipe=tensorwise"});
    run(folder, name + "_bf16", layout + Overrides{"logging.fp8_what_if=[tensorwise]"});
    const json own = folder.records(name, "fp8_statistics.jsonl")[0],
               tried = folder.records(name + "_bf16", "fp8_statistics.jsonl")[0];
    int compared = 0;
    for (const json& operand : own["operands"]) {
      // What depends on no quantization before it.
      if (operand.at("role") != "weight" && operand.at("linear") != "layers.0.self_attention.linear_qkv")
        continue;
      if (operand.at("role") == "grad_output" || operand.at("recipe") == "none") continue;
      const json* other = find(tried, operand["linear"], operand["role"], "tensorwise", "both");
      ASSERT_NE(other, nullptr) << operand;
      EXPECT_EQ(operand.at("scale"), other->at("scale")) << operand;
      EXPECT_EQ(operand.at("scale"), other->at("scale_max")) << operand;
      EXPECT_EQ(operand.at("sqnr_db"), other->at("sqnr_db")) << operand;
      ++compared;
    }
    EXPECT_EQ(compared, 9);  // 2 x 4 weights and an input
  }
}

// The linear layers of experts have no statistics.
TEST(Fp8Statistics, HaveNoFc2InputIfAllLayersHaveExperts) {
  const TrainFolder folder;
  for (const char* dense_layers : {"0", "1"}) {
    SCOPED_TRACE(dense_layers);
    const Result result = folder.run(
        dense_layers, {"precision.fp8=hybrid", "training.train_steps=1", "logging.fp8_statistics_every=1",
                       "model.num_moe_experts=4", std::string("model.first_k_dense=") + dense_layers});
    ASSERT_EQ(result.code, 0) << result.error;
    const bool dense = dense_layers[0] == '1';
    const json summary = folder.records(dense_layers, "metrics.jsonl")[0].at("fp8_statistics");
    EXPECT_TRUE(summary.contains("sqnr_db_min")) << summary;
    EXPECT_EQ(summary.contains("fc2_input_amax"), dense) << summary;
    EXPECT_EQ((result.out + result.error).find(", largest linear_fc2 input ") != std::string::npos, dense)
        << result.out << result.error;
  }
}

TEST(Fp8Statistics, InvalidKeysAreRefused) {
  const TrainFolder folder;
  expect_refused(folder.run("delayed", {"logging.fp8_what_if=[delayed]", "logging.fp8_statistics_every=1"}),
                 "logging.fp8_what_if: \"delayed\"");
}

}  // namespace
}  // namespace te::testing
