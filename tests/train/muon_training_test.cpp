// Runs with Muon: they learn, what their checkpoints contain, and which checkpoints they accept.
#include <cstdio>

#include "te_train_testing.h"

namespace te::testing {
namespace {

const std::string kMuon = "optimizer.name=muon";

double mean_of_last(const std::vector<double>& values, size_t count) {
  double sum = 0;
  for (size_t i = values.size() - count; i < values.size(); ++i) sum += values[i];
  return sum / static_cast<double>(count);
}

// The same run with both optimizers, each at its best learning rate of the same list.
TEST(MuonTraining, LearnsAtLeastAsFastAsAdamW) {
  const TrainFolder folder;
  const auto best = [&](const std::string& name) {
    double lowest = 1e9;
    for (const char* lr : {"0.005", "0.01", "0.02", "0.04"}) {
      const std::string run = name + lr;
      EXPECT_EQ(folder
                    .run(run, {"optimizer.name=" + name, std::string("optimizer.lr=") + lr,
                               "training.train_steps=60", "optimizer.decay_steps=60"})
                    .code,
                0);
      const double loss = mean_of_last(folder.column(run, "loss"), 5);
      std::printf("%s at %s: %.4f\n", name.c_str(), lr, loss);
      lowest = std::min(lowest, loss);
    }
    return lowest;
  };
  const double adamw = best("adamw"), muon = best("muon");
  EXPECT_LE(muon, adamw);
}

TEST(MuonTraining, HasOneMomentOfAMatrixInCheckpoints) {
  const TrainFolder folder;
  ASSERT_EQ(folder.run("adamw").code, 0);
  ASSERT_EQ(folder.run("muon", {kMuon}).code, 0);
  const auto manifest = [&](const char* run) {
    return read_file(folder.checkpoint(run, 6) + "/manifest.json");
  };
  const std::string muon = manifest("muon"), adamw = manifest("adamw");
  const auto has = [](const std::string& text, const std::string& name) {
    return text.find('"' + name + '"') != std::string::npos;
  };
  for (const char* linear :
       {"self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2"}) {
    const std::string name = std::string("layers.1.") + linear + ".weight";
    EXPECT_TRUE(has(adamw, "exp_avg_sq/" + name)) << name;
    EXPECT_TRUE(has(muon, "exp_avg/" + name)) << name;
    EXPECT_FALSE(has(muon, "exp_avg_sq/" + name)) << name;
  }
  for (const char* name : {"embedding.word_embeddings.weight", "output_layer.weight",
                           "final_layernorm.weight", "layers.0.input_layernorm.weight"}) {
    EXPECT_TRUE(has(muon, std::string("exp_avg_sq/") + name)) << name;
  }
}

TEST(MuonTraining, RefusesTheMomentsOfAnotherOptimizer) {
  const TrainFolder folder;
  ASSERT_EQ(folder.run("adamw", {"training.train_steps=3"}).code, 0);
  ASSERT_EQ(folder.run("muon", {kMuon, "training.train_steps=3"}).code, 0);
  const std::string resume = "checkpoint.resume=auto";
  expect_refused(folder.run("adamw", {kMuon, resume}),
                 "has the optimizer state of optimizer.name adamw, but this config has muon");
  expect_refused(folder.run("muon", {resume}),
                 "has the optimizer state of optimizer.name muon, but this config has adamw");
  // Without its moments any checkpoint is accepted.
  const Result taken = folder.run("adamw", {kMuon, resume, "checkpoint.load_optimizer=false"});
  EXPECT_EQ(taken.code, 0) << taken.error;
  EXPECT_EQ(folder.csv("adamw").size(), 6u);
  expect_refused(folder.run("moments", {kMuon, "optimizer.exp_avg_dtype=bf16"}),
                 "optimizer.exp_avg_dtype is for optimizer.name adamw");
}

}  // namespace
}  // namespace te::testing
