// An experiment with two variants and two seeds on the CPU, and te-experiment as a process.
#pragma once

#include <algorithm>

#include "core/json.h"
#include "testing/eventually.h"
#include "train/te_train_testing.h"

namespace te::testing {

using nlohmann::json;

class TeExperiment : public ::testing::Test {
 protected:
  TeExperiment() { write_file(folder_ / "tiny.yaml", tiny("training.train_steps=5")); }

  /// Two variants, two seeds; `first` is an override of all runs.
  std::string tiny(const std::string& first, int eval_interval = 2) const {
    return "base: " + (folder_ / "base.yaml") + "\ndirectory: " + (folder_ / "out") + "\noverrides: [" +
           first + ", training.eval_interval=" + std::to_string(eval_interval) +
           "]\n"
           "variants:\n  bf16:\n  fp8: [precision.fp8=hybrid]\nseeds: [1, 2]\nrun_on: {cpu: 2}\n";
  }
  pid_t start(const std::string& arguments) const {
    const std::string command = "exec env OMP_NUM_THREADS=1 " TE_EXPERIMENT_EXECUTABLE " " + arguments +
                                " >" + (folder_ / "stdout") + " 2>" + (folder_ / "stderr");
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    return child;
  }
  Result run(const std::string& arguments) const { return folder_.wait(start(arguments)); }
  json file(const std::string& name) const { return try_parse_json(read_file(folder_ / ("out/" + name))); }
  std::string state(const std::string& run) const {
    const std::string path = folder_ / ("out/" + run + "/state.json");
    return std::filesystem::exists(path) ? file(run + "/state.json").value("state", "") : "";
  }
  std::string log(const std::string& run) const { return read_file(folder_ / ("out/" + run + "/loss.csv")); }
  static int64_t lines(const std::string& text) { return std::ranges::count(text, '\n'); }
  /// Waits until a run has logged so many steps.
  void wait_for_steps(const std::string& run, int64_t steps) const {
    const std::string path = folder_ / ("out/" + run + "/loss.csv");
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(path) && lines(read_file(path)) > steps; }))
        << run << " did not reach step " << steps;
  }
  /// A script that replaces te-train.
  std::string script(const std::string& text) const {
    const std::string path = folder_ / "fake.sh";
    write_file(path, "#!/bin/sh\n" + text);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  /// The columns that do not contain times.
  static std::vector<std::string> losses(const std::string& csv) {
    std::vector<std::string> found;
    for (const std::string& line : split(csv, '\n')) {
      const std::vector<std::string> fields = split(line, ',');
      found.push_back(fields.at(0) + " " + fields.at(3) + " " + fields.at(4));
    }
    return found;
  }

  TrainFolder folder_;
  const std::vector<std::string> names_ = {"bf16_seed1", "fp8_seed1", "bf16_seed2", "fp8_seed2"};
};

}  // namespace te::testing
