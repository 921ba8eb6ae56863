// FP16 runs: the effect of the loss scale, steps whose gradients overflow FP16, and whole runs of te-train with logs.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/tiny_model.h"
#include "te_train_testing.h"
#include "testing/testing.h"
#include "train/step_runner.h"

namespace te {
namespace {

using config::ComputeDType;
using nlohmann::json;
using testing::operator+;
using testing::Overrides;
using testing::TrainFolder;

config::Config small_config(ComputeDType dtype) {
  config::Config config = testing::tiny_config(config::Family::llama);
  config.precision.dtype = dtype;
  config.training.global_batch_size = 6;
  config::validate(config);
  return config;
}

/// A runner that has taken steps on random tokens with this loss scale.
struct Steps {
  Steps(const config::Config& config, double loss_scale, int steps)
      : context(Context::cpu()), runner(config, context) {
    runner.allocate();
    runner.initialize();
    train::HostBatch batch = runner.make_host_batch();
    batch.counted = config.training.global_batch_size * config.model.seq_length;
    for (int step = 1; step <= steps; ++step) {
      for (int64_t i = 0; i < batch.counted; ++i) {
        const Philox4 random = philox(3, static_cast<uint64_t>(step), static_cast<uint64_t>(i));
        batch.tokens.as<int32_t>()[i] = static_cast<int32_t>(random.word[0] % 61);
        batch.targets.as<int32_t>()[i] = static_cast<int32_t>(random.word[1] % 61);
      }
      runner.launch(batch, step, 6 * (step - 1), false, std::numeric_limits<double>::infinity(), loss_scale);
      status = runner.optimizer().status();
      norms.push_back(status.grad_norm);
      losses.push_back(status.loss_sum);
      runner.optimizer().finish_step(status.skipped != 0);
    }
  }
  std::vector<float> weights() {
    const Tensor& mains = runner.model().parameters().mains;
    return {mains.as<float>(), mains.as<float>() + mains.numel()};
  }

  Context context;
  train::StepRunner runner;
  optim::StepStatus status;
  std::vector<float> norms, losses;
};

// A power of two does not change rounding, and is divided out exactly.
TEST(LossScale, ChangesNoBitOfAnFp32Run) {
  for (const double clip : {0.0, 1e-3, 1.0}) {
    config::Config config = small_config(ComputeDType::fp32);
    config.optimizer.clip_grad = clip;
    Steps plain(config, 1.0, 4), scaled(config, 4096.0, 4);
    EXPECT_EQ(scaled.norms, plain.norms);
    EXPECT_EQ(scaled.losses, plain.losses);
    EXPECT_EQ(scaled.weights(), plain.weights());
  }
}

// Other scales are divided out up to rounding.
TEST(LossScale, IsDividedOutOfNormAndUpdate) {
  const config::Config config = small_config(ComputeDType::fp32);
  Steps plain(config, 1.0, 3), scaled(config, 1000.0, 3);
  for (size_t i = 0; i < plain.norms.size(); ++i)
    EXPECT_NEAR(scaled.norms[i], plain.norms[i], 1e-5 * plain.norms[i]);
  EXPECT_LT(testing::relative_error(scaled.weights(), plain.weights()), 1e-4);
}

// Gradients of 1e-9 underflow in FP16, whose smallest number is 6e-8, unless they are scaled. A small loss scale stands
// for a large batch.
TEST(LossScale, KeepsSmallGradientsOfAnFp16Run) {
  const config::Config fp16 = small_config(ComputeDType::fp16);
  Steps exact(small_config(ComputeDType::fp32), 1.0, 1);
  Steps tiny(fp16, 0x1p-20, 1), scaled(fp16, 0x1p6, 1);
  EXPECT_NEAR(scaled.norms[0], exact.norms[0], 2e-3 * exact.norms[0]);
  EXPECT_GT(std::abs(tiny.norms[0] / exact.norms[0] - 1), 0.05);
}

TEST(LossScale, OverflowingGradientsSkipTheUpdate) {
  const config::Config config = small_config(ComputeDType::fp16);
  Steps none(config, 0x1p6, 0), overflow(config, 0x1p40, 1);
  EXPECT_EQ(overflow.status.skipped, 1);
  EXPECT_FALSE(std::isfinite(overflow.status.grad_norm));
  EXPECT_TRUE(std::isfinite(overflow.status.loss_sum));
  EXPECT_EQ(overflow.weights(), none.weights());
}

// FP16 has three more mantissa bits than BF16: gradients are about eight times closer to FP32.
TEST(Fp16, GradientsAreCloserToFp32ThanInBf16) {
  for (const config::Family family : {config::Family::gpt, config::Family::llama}) {
    const auto gradients = [&](ComputeDType dtype) {
      config::Config config = testing::tiny_config(family);
      config.precision.dtype = dtype;
      testing::TinyModel tiny(config);
      tiny.forward_backward();
      return tiny.read(tiny.model().parameters().grads);
    };
    const std::vector<float> exact = gradients(ComputeDType::fp32);
    const double fp16 = testing::relative_error(gradients(ComputeDType::fp16), exact);
    const double bf16 = testing::relative_error(gradients(ComputeDType::bf16), exact);
    EXPECT_LT(fp16, bf16 / 4);
    EXPECT_GT(fp16, bf16 / 16);  // it was FP16
  }
}

// Muon's update does not depend on the size of the gradients, which clipping reduces to 1e-8 here. They would underflow
// in FP16.
TEST(Fp16, MuonUpdatesByTheSmallestGradients) {
  const auto update = [](ComputeDType dtype) {
    config::Config config = small_config(dtype);
    config.optimizer.name = config::OptimizerName::muon;
    config.optimizer.clip_grad = 1e-7;
    Steps before(config, 1.0, 0), after(config, dtype == ComputeDType::fp16 ? 1024.0 : 1.0, 1);
    const std::vector<float> old = before.weights(), now = after.weights();
    std::vector<float> change;
    for (const parameters::Parameter& parameter : after.runner.model().parameters().parameters()) {
      if (!parameter.name.starts_with("layers.") || parameter.shape.rank() != 2) continue;
      for (int64_t i = parameter.offset; i < parameter.end(); ++i)
        change.push_back(now[static_cast<size_t>(i)] - old[static_cast<size_t>(i)]);
    }
    return change;
  };
  const std::vector<float> exact = update(ComputeDType::fp32);
  // Five iterations in BF16.
  EXPECT_LT(testing::relative_error(update(ComputeDType::fp16), exact), 0.1);
}

// --- whole runs ----------------------------------------------------------------------------------------------

const Overrides kFp16 = {"precision.dtype=fp16"};

// The initial scale is far too high, so the first steps lower it; more of them are skipped than max_nonfinite_steps
// allows for other reasons.
TEST(Fp16Training, FindsItsScaleAndLearns) {
  const TrainFolder folder;
  const testing::Result result =
      folder.run("a", kFp16 + Overrides{"precision.initial_loss_scale=1.099511627776e12",  // 2^40
                                        "training.max_nonfinite_steps=3", "training.train_steps=60",
                                        "optimizer.decay_steps=60"});
  ASSERT_EQ(result.code, 0) << result.out << result.error;
  const std::vector<json> steps = folder.records("a");
  ASSERT_EQ(steps.size(), 60u);
  double scale = 0x1p40;
  int skipped = 0;
  for (const json& step : steps) {
    EXPECT_EQ(step["loss_scale"].get<double>(), scale) << step["step"];
    const bool finite = !step["grad_norm"].is_null();
    EXPECT_EQ(step["skipped"].get<bool>(), !finite);
    EXPECT_TRUE(step["loss"].is_number()) << "the forward pass has no scale";
    skipped += finite ? 0 : 1;
    if (!finite) scale /= 2;
  }
  EXPECT_EQ(steps.back()["skipped_total"], skipped);
  EXPECT_GT(skipped, 6);
  EXPECT_LT(steps.back()["loss"].get<double>(), steps.front()["loss"].get<double>() - 1.0);
  TE_EXPECT_CONTAINS(result.out,
                     "gradients overflow FP16, update skipped; the loss scale changes from 2^40 to 2^39");
  TE_EXPECT_CONTAINS(result.out, "fp16, dynamic loss scale from 1099511627776");
  // A run in another dtype has no scale.
  ASSERT_EQ(folder.run("b").code, 0);
  EXPECT_FALSE(folder.records("b").front().contains("loss_scale"));
}

// The scale cannot decrease, so non-finite gradients count as in any other run.
TEST(Fp16Training, StopsIfTheScaleCannotDecrease) {
  const TrainFolder folder;
  const testing::Result result = folder.run(
      "a", kFp16 + Overrides{"precision.loss_scale=1.099511627776e12", "training.max_nonfinite_steps=3",
                             "training.train_steps=60", "checkpoint.save_every=1"});
  EXPECT_EQ(result.code, 3) << result.out;
  TE_EXPECT_CONTAINS(result.out, "not finite in 3 consecutive steps");
  EXPECT_EQ(folder.records("a").size(), 3u);
}

// Non-finite losses count at once, whatever the scale is.
TEST(Fp16Training, StopsIfTheLossIsNotFinite) {
  const TrainFolder folder;
  const testing::Result result = folder.run(
      "a", kFp16 + Overrides{"training.train_steps=50", "optimizer.decay=constant", "optimizer.lr=1e30",
                             "optimizer.clip_grad=0", "training.max_nonfinite_steps=4"});
  EXPECT_EQ(result.code, 3) << result.out;
  TE_EXPECT_CONTAINS(result.out, "not finite in 4 consecutive steps");
  EXPECT_LT(folder.records("a").size(), 10u);
}

// A checkpoint has the scale of the next step; a run in another dtype drops it, and a resumed FP16 run then starts
// without one.
TEST(Fp16Training, AnotherDtypeResumesFromTheSameCheckpoint) {
  const TrainFolder folder;
  ASSERT_EQ(folder.run("a", kFp16 + Overrides{"training.train_steps=3"}).code, 0);
  const auto manifest = [&](int64_t step) {
    return testing::read_file(folder.checkpoint("a", step) + "/manifest.json");
  };
  TE_EXPECT_CONTAINS(manifest(3), "\"loss_scale\": {\"scale\":65536.0,\"good_steps\":3}");
  ASSERT_EQ(folder.run("a", {"training.train_steps=4", "checkpoint.resume=auto"}).code, 0);
  EXPECT_EQ(manifest(4).find("\"loss_scale\": {"), std::string::npos);
  ASSERT_EQ(folder.run("a", kFp16 + Overrides{"training.train_steps=5", "checkpoint.resume=auto"}).code, 0);
  TE_EXPECT_CONTAINS(manifest(5), "\"loss_scale\": {\"scale\":65536.0,\"good_steps\":1}");
}

// Both ranks lower the scale together, and take the same steps as one rank up to summation order.
TEST(Fp16Training, RanksAgree) {
  TrainFolder folder;
  const Overrides overrides = kFp16 + Overrides{"precision.initial_loss_scale=1.099511627776e12",
                                                "training.train_steps=40", "optimizer.decay_steps=40"};
  ASSERT_EQ(folder.run("one", overrides).code, 0);
  folder.use_ranks(2);
  ASSERT_EQ(folder.run("two", overrides).code, 0);
  const std::vector<json> one = folder.records("one"), two = folder.records("two");
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(two[i]["loss_scale"], one[i]["loss_scale"]) << i;
    EXPECT_EQ(two[i]["skipped"], one[i]["skipped"]) << i;
    // Rounding differs occasionally.
    EXPECT_NEAR(two[i]["loss"].get<double>(), one[i]["loss"].get<double>(), 1e-2) << i;
  }
}

}  // namespace
}  // namespace te
