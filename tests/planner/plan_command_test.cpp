// te-train --plan end to end: its output and files, and errors.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "core/json.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"

namespace te {
namespace {

using testing::read_file;

class PlanCommand : public ::testing::Test {
 protected:
  int run(const std::string& arguments) {
    const std::string command = "OMP_NUM_THREADS=1 " TE_TRAIN_EXECUTABLE " --config " TE_SOURCE_DIR
                                "/configs/" +
                                arguments + " >" + (folder_ / "out") + " 2>" + (folder_ / "error");
    const int status = std::system(command.c_str());
    out_ = read_file(folder_ / "out");
    error_ = read_file(folder_ / "error");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void expect_refused(const std::string& arguments, const std::string& part) {
    EXPECT_EQ(run(arguments), 2) << arguments;
    TE_EXPECT_CONTAINS(error_, part);
    EXPECT_EQ(std::ranges::count(error_, '\n'), 1) << error_;
    EXPECT_EQ(out_, "");
  }

  testing::TextFolder folder_;
  std::string out_, error_;
};

TEST_F(PlanCommand, PrintsLayoutsToPaste) {
  ASSERT_EQ(run("llama7b_fp8.yaml --plan 4 --rows 2 --json " + (folder_ / "plan.json")), 0) << error_;
  EXPECT_EQ(error_, "");
  TE_EXPECT_CONTAINS(out_, "predicted for 4 x NVIDIA H200 141GB SXM");
  const auto json = parse_json(read_file(folder_ / "plan.json"));
  ASSERT_EQ(json.at("layouts").size(), 2u);
  const std::string settings = json.at("layouts")[1].at("settings");
  TE_EXPECT_CONTAINS(out_, " 2  " + settings + "\n");
  // Its memory equals that of a dry run.
  ASSERT_EQ(run("llama7b_fp8.yaml " + settings + " --ranks 4 --dry-run"), 0) << error_;
  const double gib = json.at("layouts")[1].at("memory_bytes").get<double>() / (1 << 30);
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", gib);
  TE_EXPECT_CONTAINS(out_, text);
}

// The base of an adapter is held in FP8 only on one GPU, and zero-bubble schedules are left out.
TEST_F(PlanCommand, PlansAdapters) {
  const std::string adapter = "--set adapter.type=lora --set checkpoint.init_from=models/base ";
  ASSERT_EQ(run("llama7b_fp8.yaml " + adapter + "--plan 1"), 0) << error_;
  TE_EXPECT_CONTAINS(out_, "predicted for 1 x NVIDIA H200 141GB SXM");
  ASSERT_EQ(run("llama7b_fp8.yaml " + adapter + "--plan 4"), 0) << error_;
  EXPECT_EQ(out_.find("zero_bubble"), std::string::npos) << out_;
  // Data-parallel ranks reduce and gather the adapter alone, 0.6% of the parameters.
  const auto seconds_of_data = [&](const std::string& options) {
    EXPECT_EQ(run("llama7b_fp8.yaml " + options +
                  "--set training.recompute=selective --plan 4 --rows 1 --json " + (folder_ / "plan.json")),
              0)
        << error_;
    const auto json = parse_json(read_file(folder_ / "plan.json"));
    EXPECT_EQ(json.at("own").at("data"), 4);
    return json.at("own").at("seconds").at("data").get<double>();
  };
  EXPECT_LT(seconds_of_data(adapter), 0.2 * seconds_of_data(""));
  // 8B on a GPU with 24 GB.
  ASSERT_EQ(run("llama3.1_8b_fp8.yaml " + adapter +
                "--set model.seq_length=2048 --set training.micro_batch_size=1 "
                "--set training.recompute=none --plan 1 --gpu rtx4090"),
            0)
      << error_;
  TE_EXPECT_CONTAINS(out_, "do not fit into 22.99 GiB");
  TE_EXPECT_CONTAINS(out_, "18.22 GiB");
}

// A base in FP8 is sharded in FP8: two GPUs have 32 GiB of 70B each, and gather half the bytes of a BF16 base.
TEST_F(PlanCommand, PlansShardedBases) {
  const auto own = [&](const std::string& config, const std::string& options) {
    EXPECT_EQ(run(config +
                  " --set adapter.type=lora --set checkpoint.init_from=models/base "
                  "--set parallel.shard=parameters --set training.recompute=full --set "
                  "training.micro_batch_size=1 --set model.seq_length=4096 --plan 2 --gpu h100 --rows 1 "
                  "--json " +
                  (folder_ / "plan.json") + options),
              0)
        << error_;
    return parse_json(read_file(folder_ / "plan.json")).at("own");
  };
  for (const char* recipe : {"tensorwise", "blockwise"}) {
    const std::string in_fp8 = std::string(" --set precision.fp8_recipe=") + recipe;
    const auto large =
        own("llama3.1_70b_fp8.yaml", in_fp8 +
                                         " --set parallel.tensor=1 --set parallel.sequence=false --set "
                                         "parallel.pipeline=1 --set parallel.ranks=2");
    EXPECT_EQ(large.at("fits"), true) << recipe;
    const double gib = large.at("memory_bytes").get<double>() / (1 << 30);
    EXPECT_GT(gib, 44.0) << recipe;
    EXPECT_LT(gib, 50.0) << recipe;
    const auto seconds = [](const auto& layout) {
      return layout.at("seconds").at("data").template get<double>();
    };
    const double ratio =
        seconds(own("llama3.1_8b_fp8.yaml", in_fp8)) / seconds(own("llama3.1_8b_bf16.yaml", ""));
    EXPECT_GT(ratio, 0.4) << recipe;
    EXPECT_LT(ratio, 0.65) << recipe;
  }
}

// Llama 3.1 8B on four GPUs: an H100 holds 524,288 tokens only with state on the host.
TEST_F(PlanCommand, PlansLongSequences) {
  const auto at = [](int tokens) {
    return "llama3.1_8b_fp8.yaml --set parallel.context=4 --set parallel.shard=parameters "
           "--set training.recompute=full --set training.global_batch_size=4 --set model.seq_length=" +
           std::to_string(tokens);
  };
  const std::string host = " --set optimizer.offload=state --set optimizer.main_grad_dtype=bf16";
  const auto expect_fits = [&](const std::string& options, const char* gpu) {
    ASSERT_EQ(run(options + " --plan 4 --rows 1 --gpu " + gpu + " --json " + (folder_ / "plan.json")), 0)
        << error_;
    EXPECT_TRUE(parse_json(read_file(folder_ / "plan.json")).at("own").at("fits")) << out_;
    EXPECT_EQ(run(options + " --dry-run"), 0) << error_;
  };
  expect_fits(at(262144), "h100");
  expect_fits(at(524288), "h200");
  expect_refused(at(524288) + " --plan 4 --gpu h100", "offload: state");
  expect_fits(at(524288) + host, "h100");
}

// Nearly 20,000 valid layouts, which takes minutes in unoptimized builds and with sanitizers.
TEST_F(PlanCommand, Plans70BOn64GpusInSeconds) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "under sanitizers";
#endif
  ASSERT_EQ(run("llama3.1_70b_fp8.yaml --plan 64 --gpu h100"), 0) << error_;
  TE_EXPECT_CONTAINS(out_, "64 x NVIDIA H100 80GB SXM on 8 hosts");
  TE_EXPECT_CONTAINS(out_, "the config's own layout does not fit: it needs 82.74 GiB");
  ASSERT_EQ(run("llama3.1_70b_fp8.yaml --plan 64 --set parallel.pipeline=4 --rows 1"), 0) << error_;
  TE_EXPECT_CONTAINS(out_, "the config's own layout would be number ");
}

// A dry run reports the split into stages: 80 layers, and an output layer that takes the time of 1.7 layers.
TEST_F(PlanCommand, DryRunReportsThePipelineSplit) {
  const std::string four = "llama3.1_70b_fp8.yaml --dry-run --set parallel.pipeline=4";
  ASSERT_EQ(run(four + " --set parallel.pipeline_split=balanced"), 0) << error_;
  TE_EXPECT_CONTAINS(out_, "pipeline: stages of 21, 20, 20, 19 layers (parallel.pipeline_split balanced)");
  TE_EXPECT_CONTAINS(out_, "about 1.7 layers; the slowest stage has 3% more work than the mean");
  ASSERT_EQ(run(four), 0) << error_;
  TE_EXPECT_CONTAINS(out_, "pipeline: stages of 20, 20, 20, 20 layers (parallel.pipeline_split even)");
  TE_EXPECT_CONTAINS(out_, "the slowest stage has 6% more work than the mean");
  ASSERT_EQ(run("llama7b_fp8.yaml --dry-run"), 0) << error_;
  EXPECT_EQ(out_.find("pipeline:"), std::string::npos);
}

TEST_F(PlanCommand, RefusesInOneLine) {
  expect_refused("llama7b_fp8.yaml --plan 0", "--plan");
  expect_refused("llama7b_fp8.yaml --plan four", "--plan");
  expect_refused("llama7b_fp8.yaml --plan 4 --gpu v100", "--gpu");
  expect_refused("llama7b_fp8.yaml --plan 4 --rows 0", "--rows");
  expect_refused("llama7b_fp8.yaml --plan 4 --gpus-per-host 0", "--gpus-per-host");
  expect_refused("llama7b_fp8.yaml --dry-run --rows 3", "--rows needs --plan");
  expect_refused("llama7b_fp8.yaml --plan 97", "no layout of 97 GPUs is valid");
  expect_refused("gpt2_124m_fp8.yaml --plan 8 --gpu a100", "the first one tried: precision.fp8: this GPU (");
  expect_refused("llama3.1_70b_bf16.yaml --plan 1", "no layout of 1 GPUs fits");
  expect_refused("llama7b_fp8.yaml --plan 4 --set precision.fp8=off --set precision.dtype=fp32",
                 "precision.dtype fp32: --plan predicts only BF16 and FP8");
  expect_refused("llama7b_fp8.yaml --plan 4 --json /nowhere/plan.json",
                 "/nowhere/plan.json: cannot be written");
  expect_refused("missing.yaml --plan 4", "missing.yaml");
}

}  // namespace
}  // namespace te
