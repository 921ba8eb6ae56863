// Whole runs of te-train: learning and logging, and that an interrupted run is bitwise equal to an uninterrupted one.
#include <nlohmann/json.hpp>
#include <set>

#include "te_train_testing.h"

namespace te {
namespace {

using testing::operator+;
using testing::kNanochat;
using testing::read_file;
using testing::Result;
using testing::split;
using testing::TrainFolder;

const std::vector<std::string> kPlainFp8 = {"precision.fp8=hybrid"};
const std::vector<std::string> kFp8Moments = {"optimizer.exp_avg_dtype=fp8",
                                              "optimizer.exp_avg_sq_dtype=fp8"};
const std::vector<std::string> kBf16Moments = {"optimizer.exp_avg_dtype=bf16",
                                               "optimizer.exp_avg_sq_dtype=bf16"};

const std::vector<std::string> kExperts = {"model.num_moe_experts=6",
                                           "model.moe_router_topk=2",
                                           "model.moe_ffn_hidden_size=24",
                                           "model.moe_shared_expert_intermediate_size=16",
                                           "model.moe_router_load_balancing_type=global_aux_loss",
                                           "model.moe_aux_loss_coeff=0.01",
                                           "model.moe_z_loss_coeff=0.001"};

void expect_success(const Result& result) {
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_EQ(result.error, "");
}

class Training : public ::testing::Test {
 protected:
  TrainFolder folder_;
};

TEST_F(Training, LearnsTextAndLogsIt) {
  expect_success(folder_.run(
      "a", {"training.train_steps=40", "training.eval_interval=15", "training.eval_microbatches=3",
            "optimizer.decay_steps=40", "logging.fp8_stats_every=10", "precision.fp8=hybrid"}));
  const std::string text = read_file(folder_.run_folder("a") + "/loss.csv");
  EXPECT_EQ(split(text, '\n')[0],
            "step,consumed_samples,consumed_tokens,loss,valid_loss,grad_norm,lr,tokens_per_s,step_ms,tflops,"
            "skipped");
  const auto rows = folder_.csv("a");
  ASSERT_EQ(rows.size(), 40u);
  const std::vector<nlohmann::json> records = folder_.records("a");
  ASSERT_EQ(records.size(), 40u);

  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t step = static_cast<int64_t>(i) + 1;
    EXPECT_EQ(rows[i].at("step"), std::to_string(step));
    EXPECT_EQ(rows[i].at("consumed_samples"), std::to_string(4 * step));
    EXPECT_EQ(rows[i].at("consumed_tokens"), std::to_string(4 * 16 * step));
    EXPECT_EQ(rows[i].at("skipped"), "0");
    EXPECT_GT(std::stod(rows[i].at("tokens_per_s")), 0);
    EXPECT_EQ(rows[i].at("valid_loss").empty(), step != 15 && step != 30 && step != 40) << step;
    EXPECT_EQ(records[i]["step"], step);
    EXPECT_NEAR(records[i]["loss"].get<double>(), std::stod(rows[i].at("loss")), 1e-5);
    EXPECT_EQ(records[i].contains("valid_loss"), !rows[i].at("valid_loss").empty());
  }
  const std::vector<double> loss = folder_.column("a", "loss");
  EXPECT_NEAR(loss.front(), std::log(257.0), 0.1);  // a new model predicts uniformly
  EXPECT_LT(loss.back(), loss.front() - 1.5);
  EXPECT_LT(std::stod(rows[39].at("valid_loss")), std::stod(rows[14].at("valid_loss")));

  // FP8 health of every operand: 2 layers, 4 linears, 3 roles.
  for (size_t i = 0; i < records.size(); ++i) {
    const bool stats = i == 0 || (i + 1) % 10 == 0;
    ASSERT_EQ(records[i].contains("fp8"), stats) << i + 1;
    if (!stats) continue;
    std::set<std::string> operands;
    for (const nlohmann::json& item : records[i]["fp8"]) {
      const std::string role = item["role"];
      operands.insert(item["linear"].get<std::string>() + " " + role);
      EXPECT_GT(item["amax"].get<double>(), 0) << item;
      EXPECT_GT(item["scale"].get<double>(), 0) << item;
      EXPECT_GE(item["saturated"].get<double>(), 0) << item;
      EXPECT_LT(item["saturated"].get<double>(), 0.5) << item;
      EXPECT_EQ(item["format"], role == "grad_output" ? "fp8_e5m2" : "fp8_e4m3");
    }
    EXPECT_EQ(operands.size(), 24u);
  }
}

TEST_F(Training, LogsEverySoManySteps) {
  expect_success(folder_.run("a", {"logging.every=4"}));
  const auto lines = split(read_file(folder_.run_folder("a") + "/loss.csv"), '\n');
  ASSERT_EQ(lines.size(), 4u);  // the header, and steps 1, 4 and 6
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(split(lines[i], ',')[0], std::string("146").substr(i - 1, 1));
}

// --- bitwise reproducibility -------------------------------------------------------------------------------

struct TrainingCase {
  const char* name;
  std::vector<std::string> overrides;
};

TEST_F(Training, ExpertsLearnAndTheirRoutingIsLogged) {
  expect_success(
      folder_.run("a", kExperts + std::vector<std::string>{"training.train_steps=40", "logging.every=2",
                                                           "optimizer.decay_steps=40"}));
  const std::vector<double> loss = folder_.column("a", "loss");
  EXPECT_LT(loss.back(), loss.front() - 1.5);
  for (const nlohmann::json& record : folder_.records("a")) {
    ASSERT_EQ(record.at("experts").size(), 2u);
    const nlohmann::json& layer = record["experts"].at("layers.1");
    EXPECT_GE(layer.at("load_max").get<double>(), 1.0);
    EXPECT_LE(layer.at("load_min").get<double>(), 1.0);
    EXPECT_GT(layer.at("entropy").get<double>(), 0.0);
    EXPECT_LE(layer.at("entropy").get<double>(), std::log(6.0) + 1e-6);
    EXPECT_GT(layer.at("balance_loss").get<double>(), 0.9);
    EXPECT_GT(layer.at("z_loss").get<double>(), 0.0);
  }
}

// A capacity that drops nothing changes no bit; one that drops some is logged, in validation passes, too.
TEST_F(Training, ExpertsWithACapacityDropTokens) {
  const auto run = [&](const std::string& name, const std::string& factor) {
    expect_success(folder_.run(
        name, kExperts +
                  std::vector<std::string>{"logging.every=2", "model.moe_expert_capacity_factor=" + factor}));
    return folder_.column(name, "loss");
  };
  const std::vector<double> dropless = run("all", "0");
  EXPECT_EQ(run("large", "1000"), dropless);
  EXPECT_NE(run("small", "0.5"), dropless);
  for (const nlohmann::json& record : folder_.records("small")) {
    const double dropped = record.at("experts").at("layers.1").at("dropped").get<double>();
    EXPECT_GE(dropped, 0.4);  // each expert keeps half of its balanced load, rounded up
    EXPECT_LT(dropped, 1.0);
  }
  EXPECT_EQ(folder_.records("large").front().at("experts").at("layers.1").at("dropped"), 0.0);
}

// Experts start unbalanced, because all tokens have similar logits at first.
TEST_F(Training, TheBiasOfExpertsBalancesThem) {
  const auto unbalance = [&](const std::string& name, const std::string& bias) {
    expect_success(folder_.run(
        name,
        kExperts + std::vector<std::string>{"training.train_steps=60", "model.moe_aux_loss_coeff=0",
                                            "logging.every=1", "model.moe_router_bias_update_rate=0.005",
                                            "model.moe_router_enable_expert_bias=" + bias}));
    double sum = 0.0;
    const auto records = folder_.records(name);
    for (size_t i = records.size() - 10; i < records.size(); ++i)
      for (const auto& layer : records[i].at("experts")) sum += layer.at("load_max").get<double>();
    return sum / 20.0;
  };
  const double without = unbalance("without", "false"), with = unbalance("with", "true");
  EXPECT_LT(with, without - 0.2);
  EXPECT_FALSE(folder_.records("without").front().at("experts").at("layers.1").contains("bias_range"));
  const auto range = [&](size_t step) {
    return folder_.records("with").at(step).at("experts").at("layers.1").at("bias_range").get<double>();
  };
  EXPECT_NEAR(range(0), 2 * 0.005, 1e-7);  // some are above the mean load, others below it
  EXPECT_GT(range(20), range(0));
  EXPECT_LE(range(59), 60 * 2 * 0.005);
}

TEST_F(Training, Fp8StatisticsOfExperts) {
  expect_success(
      folder_.run("a", kExperts + kPlainFp8 +
                           std::vector<std::string>{"model.moe_ffn_hidden_size=32", "training.train_steps=3",
                                                    "logging.fp8_stats_every=1"}));
  std::map<std::string, double> scales;
  const nlohmann::json last = folder_.records("a").back();
  for (const nlohmann::json& operand : last.at("fp8"))
    if (operand.at("role") == "weight")
      scales[operand.at("linear").get<std::string>()] = operand.at("scale").get<double>();
  for (int e = 0; e < 6; ++e)
    EXPECT_GT(scales[fmt::format("layers.1.mlp.experts.{}.linear_fc2", e)], 0.0) << e;
  EXPECT_NE(scales["layers.1.mlp.experts.0.linear_fc2"], scales["layers.1.mlp.experts.1.linear_fc2"]);
  EXPECT_GT(scales["layers.1.mlp.shared_experts.linear_fc1"], 0.0);
}

class Resume : public ::testing::TestWithParam<TrainingCase> {
 protected:
  TrainFolder folder_;
};

TEST_P(Resume, IsBitwiseEqualToAnUninterruptedRun) {
  const auto& overrides = GetParam().overrides;
  expect_success(folder_.run("whole", overrides));
  expect_success(folder_.run("cut", overrides + std::vector<std::string>{"training.train_steps=3"}));
  EXPECT_EQ(folder_.csv("cut").size(), 3u);
  const Result second = folder_.run("cut", overrides + std::vector<std::string>{"checkpoint.resume=auto"});
  expect_success(second);
  TE_EXPECT_CONTAINS(second.out, "step_00000003 after step 3");
  EXPECT_EQ(folder_.checkpoint_bytes("cut", 6), folder_.checkpoint_bytes("whole", 6));
  const auto cut = folder_.csv("cut"), whole = folder_.csv("whole");
  ASSERT_EQ(cut.size(), 6u);
  ASSERT_EQ(whole.size(), 6u);
  for (size_t i = 0; i < 6; ++i)  // as text, since a norm may be NaN
    for (const char* column :
         {"step", "consumed_samples", "consumed_tokens", "loss", "grad_norm", "lr", "skipped"})
      EXPECT_EQ(cut[i].at(column), whole[i].at(column)) << column << " of step " << i + 1;
}

const TrainingCase kTrainingCases[] = {
    {"bf16", {}},
    {"fp32", {"precision.dtype=fp32"}},
    {"fp16",
     {"precision.dtype=fp16", "precision.initial_loss_scale=1.099511627776e12", "checkpoint.save_every=1"}},
    {"saved_in_the_background", {"checkpoint.save_every=1", "checkpoint.keep=2"}},
    {"saved_in_the_foreground", {"checkpoint.save_every=1", "checkpoint.async=false"}},
    {"fp8_delayed", kPlainFp8},
    {"fp8_delayed_full_recompute", kPlainFp8 + std::vector<std::string>{"training.recompute=full"}},
    {"fp8_param_remainders", kPlainFp8 + std::vector<std::string>{"optimizer.store_param_remainders=true"}},
    {"param_remainders_saved_in_the_foreground",
     {"optimizer.store_param_remainders=true", "checkpoint.save_every=1", "checkpoint.async=false"}},
    {"bf16_moments", kBf16Moments + std::vector<std::string>{"checkpoint.save_every=1"}},
    {"fp8_moments", kFp8Moments + std::vector<std::string>{"checkpoint.save_every=1"}},
    {"fp8_moments_and_remainders_saved_in_the_foreground",
     kPlainFp8 + kFp8Moments +
         std::vector<std::string>{"optimizer.store_param_remainders=true", "checkpoint.save_every=1",
                                  "checkpoint.async=false"}},
    {"fp8_exp_avg_alone", {"optimizer.exp_avg_dtype=fp8", "optimizer.exp_avg_sq_dtype=bf16"}},
    {"bf16_moments_and_remainders_saved_in_the_foreground",
     kPlainFp8 + kBf16Moments +
         std::vector<std::string>{"optimizer.store_param_remainders=true", "checkpoint.save_every=1",
                                  "checkpoint.async=false"}},
    {"fp8_output_layer", kPlainFp8 + std::vector<std::string>{"precision.fp8_output_layer=true"}},
    {"fp8_rowwise", kPlainFp8 + std::vector<std::string>{"precision.fp8_recipe=rowwise"}},
    {"fp8_blockwise", kPlainFp8 + std::vector<std::string>{"precision.fp8_recipe=blockwise",
                                                           "precision.fp8_scale_format=fp32"}},
    {"nvfp4", kPlainFp8 + std::vector<std::string>{"precision.fp8_recipe=nvfp4"}},
    {"fp8_mxfp8",
     kPlainFp8 + std::vector<std::string>{"precision.fp8_recipe=mxfp8", "model.ffn_hidden_size=64"}},
    {"fp8_tensorwise", kPlainFp8 + std::vector<std::string>{"precision.fp8_recipe=tensorwise"}},
    {"fp8_tensorwise_predicted",
     kPlainFp8 + std::vector<std::string>{"precision.fp8_recipe=tensorwise",
                                          "precision.fp8_scale_format=power_of_two"}},
    {"muon", {"optimizer.name=muon", "checkpoint.save_every=1"}},
    {"muon_fp32", {"optimizer.name=muon", "precision.dtype=fp32"}},
    {"muon_fp8_and_remainders",
     kPlainFp8 + std::vector<std::string>{"optimizer.name=muon", "optimizer.store_param_remainders=true",
                                          "checkpoint.save_every=1", "checkpoint.async=false"}},
    {"z_loss_fp8", kPlainFp8 + std::vector<std::string>{"training.z_loss_coefficient=1e-2"}},
    {"nanochat_muon", kNanochat + std::vector<std::string>{"optimizer.name=muon"}},
    {"nanochat_fp8", kNanochat + kPlainFp8},
    {"nanochat_fp8_tensorwise",
     kNanochat + kPlainFp8 + std::vector<std::string>{"precision.fp8_recipe=tensorwise"}},
    {"experts", kExperts},
    {"experts_with_bias", kExperts + std::vector<std::string>{"model.moe_router_enable_expert_bias=true",
                                                              "model.moe_router_score_function=sigmoid"}},
    {"fp8_experts",
     kExperts + kPlainFp8 +
         std::vector<std::string>{"model.moe_ffn_hidden_size=32", "optimizer.store_param_remainders=true"}},
    {"fp8_gpt_with_dropout",
     kPlainFp8 + std::vector<std::string>{"model.family=gpt", "model.num_query_groups=4",
                                          "model.hidden_dropout=0.1", "model.attention_dropout=0.1"}},
};
INSTANTIATE_TEST_SUITE_P(Precisions, Resume, ::testing::ValuesIn(kTrainingCases),
                         [](const auto& info) { return std::string(info.param.name); });

// A background save reads a copy: training that continues does not change what is saved.
TEST_F(Training, BackgroundSavesHaveTheWeightsOfTheirStep) {
  const std::vector<std::string> every = kPlainFp8 + std::vector<std::string>{"checkpoint.save_every=1"};
  expect_success(folder_.run("background", every));
  expect_success(folder_.run("foreground", every + std::vector<std::string>{"checkpoint.async=false"}));
  for (int64_t step = 1; step <= 6; ++step)
    EXPECT_EQ(folder_.checkpoint_bytes("background", step), folder_.checkpoint_bytes("foreground", step))
        << step;
}

// Split master weights represent the same FP32 values, except for an occasional last bit; a run may resume with the
// other storage.
TEST_F(Training, MasterWeightRemaindersDoNotChangeTheLoss) {
  const std::string split = "optimizer.store_param_remainders=true";
  expect_success(folder_.run("whole", kPlainFp8));
  expect_success(folder_.run("split", kPlainFp8 + std::vector<std::string>{split}));
  expect_success(folder_.run("mixed", kPlainFp8 + std::vector<std::string>{split, "training.train_steps=3"}));
  expect_success(folder_.run("mixed", kPlainFp8 + std::vector<std::string>{"checkpoint.resume=auto"}));
  const std::vector<double> expected = folder_.column("whole", "loss");
  ASSERT_EQ(expected.size(), 6u);
  for (const char* run : {"split", "mixed"}) {
    const std::vector<double> loss = folder_.column(run, "loss");
    ASSERT_EQ(loss.size(), 6u);
    EXPECT_EQ(loss[0], expected[0]);  // the same initial weights
    for (size_t step = 0; step < 6; ++step) EXPECT_NEAR(loss[step], expected[step], 1e-4 * expected[step]);
  }
}

// A run may resume with moments in another format, in both directions.
TEST_F(Training, MomentsMayChangeTheirDtype) {
  const std::vector<std::string> cut = {"training.train_steps=3"}, resume = {"checkpoint.resume=auto"};
  expect_success(folder_.run("fp32", {}));
  expect_success(folder_.run("bf16", kBf16Moments));
  expect_success(folder_.run("to_bf16", cut));
  expect_success(folder_.run("to_bf16", kBf16Moments + resume));
  expect_success(folder_.run("to_fp32", kBf16Moments + cut));
  expect_success(folder_.run("to_fp32", resume));
  expect_success(folder_.run("fp8", kFp8Moments));
  expect_success(folder_.run("fp8_to_fp32", kFp8Moments + cut));
  expect_success(folder_.run("fp8_to_fp32", resume));
  const std::vector<double> expected = folder_.column("fp32", "loss");
  ASSERT_EQ(expected.size(), 6u);
  for (const std::string run : {"bf16", "to_bf16", "to_fp32", "fp8", "fp8_to_fp32"}) {
    const double bound = run.starts_with("fp8") ? 1e-2 : 1e-3;
    const std::vector<double> loss = folder_.column(run, "loss");
    ASSERT_EQ(loss.size(), 6u);
    EXPECT_EQ(loss[0], expected[0]);
    EXPECT_EQ(loss[1], expected[1]);  // the first update does not depend on rounded moments
    for (size_t step = 0; step < 6; ++step) EXPECT_NEAR(loss[step], expected[step], bound * expected[step]);
    EXPECT_NE(loss, expected);
  }
  const auto size = [&](const char* run) {
    return read_file(folder_.checkpoint(run, 6) + "/optimizer.safetensors").size();
  };
  EXPECT_NEAR(static_cast<double>(size("bf16")) / static_cast<double>(size("fp32")), 0.5, 0.1);
  EXPECT_NEAR(static_cast<double>(size("fp8")) / static_cast<double>(size("fp32")), 0.75, 0.1);
  EXPECT_EQ(size("to_bf16"), size("bf16"));
  EXPECT_EQ(size("to_fp32"), size("fp32"));
}

// Gradients were calibrated for E5M2, whose largest number is 128 times that of E4M3: a run that resumes with E4M3 only
// must not saturate all of them in its first step.
TEST_F(Training, CalibratedBf16RunResumesInFp8) {
  for (const char* mode : {"hybrid", "e4m3"}) {
    expect_success(folder_.run(mode, {"training.train_steps=3", "precision.fp8_calibrate=true"}));
    expect_success(folder_.run(mode, {std::string("precision.fp8=") + mode, "checkpoint.resume=auto",
                                      "precision.fp8_recast=false"}));
    const std::vector<double> loss = folder_.column(mode, "loss");
    ASSERT_EQ(loss.size(), 6u);
    EXPECT_LT(loss[3], loss[0]);
    const nlohmann::json first_fp8_step = folder_.records(mode).at(3);
    EXPECT_EQ(first_fp8_step["fp8"].size(), 24u);
    for (const nlohmann::json& item : first_fp8_step["fp8"])
      EXPECT_LT(item["saturated"].get<double>(), 0.05) << item;
  }
}

// The schedule counts steps of any size: the logged learning rate is the one that is used.
TEST_F(Training, BatchSizeMayChangeOnResume) {
  const std::vector<std::string> linear = {"optimizer.decay=linear", "optimizer.min_lr=0",
                                           "optimizer.decay_steps=5"};
  expect_success(folder_.run("a", linear + std::vector<std::string>{"training.train_steps=3"}));
  const std::vector<std::string> more = {"training.global_batch_size=2", "checkpoint.resume=auto",
                                         "checkpoint.save_every=1", "training.train_steps=5"};
  expect_success(folder_.run("a", linear + more));
  EXPECT_EQ(folder_.column("a", "consumed_samples"), (std::vector<double>{4, 8, 12, 14, 16}));
  EXPECT_EQ(folder_.column("a", "lr"), (std::vector<double>{4e-3, 3e-3, 2e-3, 1e-3, 0}));
  const auto weights = [&](int64_t step) {
    return read_file(folder_.checkpoint("a", step) + "/model.safetensors");
  };
  EXPECT_NE(weights(4), weights(3));
  EXPECT_EQ(weights(5), weights(4));  // a learning rate of 0
}

TEST_F(Training, SeedsAndThreads) {
  expect_success(folder_.run("a", kPlainFp8));
  expect_success(folder_.run("b", kPlainFp8));
  expect_success(folder_.run("threads", kPlainFp8, "base", "TEST_THREADS=3;"));
  expect_success(folder_.run("other", kPlainFp8 + std::vector<std::string>{"training.seed=99"}));
  EXPECT_EQ(folder_.checkpoint_bytes("a", 6), folder_.checkpoint_bytes("b", 6));
  EXPECT_EQ(folder_.column("a", "loss"), folder_.column("b", "loss"));
  EXPECT_EQ(folder_.checkpoint_bytes("a", 6), folder_.checkpoint_bytes("threads", 6));
  EXPECT_NE(folder_.checkpoint_bytes("a", 6), folder_.checkpoint_bytes("other", 6));
  EXPECT_NE(folder_.column("a", "loss"), folder_.column("other", "loss"));
}

// In FP32 splitting the global batch changes only the summation order. AdamW turns the rounding of near-zero gradients
// into steps, but for few elements: the losses of six steps agree to 1e-5.
TEST_F(Training, GradientAccumulationGivesTheSameLosses) {
  for (const char* micro : {"1", "2", "4"}) {
    expect_success(folder_.run(
        micro,
        {"precision.dtype=fp32", std::string("training.micro_batch_size=") + micro, "optimizer.lr=1e-3"}));
  }
  const std::vector<double> expected = folder_.column("4", "loss"), norms = folder_.column("4", "grad_norm");
  ASSERT_EQ(expected.size(), 6u);
  for (const char* micro : {"1", "2"}) {
    const std::vector<double> loss = folder_.column(micro, "loss"), norm = folder_.column(micro, "grad_norm");
    ASSERT_EQ(loss.size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(loss[i], expected[i], 1e-5 * expected[i]) << micro;
      EXPECT_NEAR(norm[i], norms[i], 1e-4 * norms[i]) << micro;
    }
  }
}

}  // namespace
}  // namespace te
