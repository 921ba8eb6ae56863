// Runs the executable te-bench on the CPU.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/json.h"
#include "testing/temporary_folder.h"

namespace te::testing {

inline constexpr const char* kTinyConfig = R"(
model: {family: llama, num_layers: 2, hidden_size: 64, ffn_hidden_size: 96, num_attention_heads: 4,
        vocab_size: 128, seq_length: 32}
precision: {fp8: hybrid}
training: {micro_batch_size: 2, global_batch_size: 4, train_steps: 10, device: cpu}
data: {synthetic: true}
)";

class TeBench : public ::testing::Test {
 protected:
  TeBench() { std::ofstream(folder_ / "tiny.yaml") << kTinyConfig; }

  int run(const std::string& arguments, int ranks = 1) const {
    const std::string launcher = ranks == 1 ? "" : TE_MPIRUN " " + std::to_string(ranks) + " ";
    const std::string command = launcher + TE_BENCH_EXECUTABLE " " + arguments + " >" +
                                (folder_ / "out").string() + " 2>" + (folder_ / "err").string();
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  nlohmann::json report() const { return parse_json(text("report.json")); }
  std::string text(const char* name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  te::testing::TemporaryFolder folder_;
};

}  // namespace te::testing
