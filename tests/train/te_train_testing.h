// Runs the te-train executable in a folder with datasets, configs and runs, and reads the output of a run.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "core/json.h"
#include "data/data_testing.h"

namespace te::testing {

struct Result {
  int code = -1;  ///< -1: ended by a signal
  std::string out, error;
  int64_t peak_bytes = 0;  ///< resident memory
};

/// loss.csv: one map per line, from column to text.
using CsvRows = std::vector<std::map<std::string, std::string>>;

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

/// Arguments of --set.
using Overrides = std::vector<std::string>;
inline Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// FP8, with sizes that two tensor-parallel ranks can divide.
inline const Overrides kNanochat = {
    "model.activation=relu2",          "model.qk_norm=head_no_gain",
    "model.norm_gain=false",           "model.embedding_norm=true",
    "model.final_logit_softcapping=2", "model.zero_init=[linear_proj, linear_fc2, output_layer]"};
inline const Overrides kTinyFp8 = {"precision.fp8=hybrid", "model.ffn_hidden_size=64"};

class TrainFolder {
 public:
  TrainFolder() {
    write_dataset(folder_ / "train", text_documents(60, 1));
    write_dataset(folder_ / "valid", text_documents(6, 2));
    write_config("base", base_config());
  }

  /// A Llama of two layers with sizes for FP8, on the text of text_documents().
  std::string base_config() const {
    return "model: {family: llama, num_layers: 2, hidden_size: 32, ffn_hidden_size: 48,\n"
           "        num_attention_heads: 4, num_query_groups: 2, vocab_size: 257, seq_length: 16}\n"
           "precision: {amax_history_len: 4}\n"
           "training: {micro_batch_size: 2, global_batch_size: 4, train_steps: 6, device: cpu}\n"
           "optimizer: {lr: 5.0e-3, min_lr: 5.0e-4, decay_steps: 6}\n"
           "data: {train: " +
           (folder_ / "train") + ", valid: " + (folder_ / "valid") + "}\n";
  }
  void write_config(const std::string& name, const std::string& text) const {
    write_file(folder_ / (name + ".yaml"), text);
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }

  /// Starts te-train with a config of this folder; logs go to runs/RUN. `shell`: shell code before the command.
  pid_t start(const std::string& run, const std::vector<std::string>& overrides = {},
              const std::string& config = "base", const std::string& shell = "") const {
    std::string arguments = "--config " + (folder_ / (config + ".yaml"));
    for (const std::string& item : overrides) arguments += " --set '" + item + "'";
    return start_raw(arguments + " --set logging.directory=" + run_folder(run), shell);
  }
  /// Starts te-train under mpirun from now on; start() then returns the process of mpirun. `wrapper`: a command that
  /// starts the program of each rank.
  void use_ranks(int ranks, const std::string& wrapper = "") {
    launcher_ = TE_MPIRUN " " + std::to_string(ranks) + " " + wrapper + " ";
  }
  pid_t start_raw(const std::string& arguments, const std::string& shell = "") const {
    // One thread: such a small model gains nothing from more, and tests run in parallel.
    const std::string command = shell + " OMP_NUM_THREADS=${TEST_THREADS:-1} exec " + launcher_ +
                                TE_TRAIN_EXECUTABLE " " + arguments + " >" + (folder_ / "stdout") + " 2>" +
                                (folder_ / "stderr");
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    return child;
  }
  Result wait(pid_t child) const {
    int status = 0;
    struct rusage usage = {};
    ::wait4(child, &status, 0, &usage);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder_ / "stdout"),
            read_file(folder_ / "stderr"), int64_t{usage.ru_maxrss} * 1024};
  }
  Result run(const std::string& run, const std::vector<std::string>& overrides = {},
             const std::string& config = "base", const std::string& shell = "") const {
    return wait(start(run, overrides, config, shell));
  }
  Result run_raw(const std::string& arguments) const { return wait(start_raw(arguments)); }

  std::string run_folder(const std::string& run) const { return folder_ / ("runs/" + run); }
  std::string checkpoint(const std::string& run, int64_t step) const {
    const std::string digits = std::to_string(step);
    return run_folder(run) + "/checkpoints/step_" + std::string(8 - digits.size(), '0') + digits;
  }
  CsvRows csv(const std::string& run) const {
    CsvRows rows;
    const std::vector<std::string> lines = split(read_file(run_folder(run) + "/loss.csv"), '\n');
    if (lines.empty()) return rows;
    const std::vector<std::string> names = split(lines[0], ',');
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::vector<std::string> values = split(lines[i] + ",", ',');  // the last may be empty
      EXPECT_EQ(values.size(), names.size()) << lines[i];
      auto& row = rows.emplace_back();
      for (size_t k = 0; k < std::min(names.size(), values.size()); ++k) row[names[k]] = values[k];
    }
    return rows;
  }
  /// The records of a JSON Lines file of a run.
  std::vector<nlohmann::json> records(const std::string& run,
                                      const std::string& file = "metrics.jsonl") const {
    std::vector<nlohmann::json> all;
    for (const std::string& line : split(read_file(run_folder(run) + "/" + file), '\n'))
      all.push_back(parse_json(line));
    return all;
  }
  /// One column as numbers.
  std::vector<double> column(const std::string& run, const std::string& name) const {
    std::vector<double> values;
    for (const auto& row : csv(run)) values.push_back(std::strtod(row.at(name).c_str(), nullptr));
    return values;
  }
  /// The bytes of a checkpoint's tensor files of all ranks.
  std::string checkpoint_bytes(const std::string& run, int64_t step) const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint(run, step)))
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
    std::ranges::sort(files);
    std::string bytes;
    for (const std::string& file : files) bytes += read_file(file);
    EXPECT_FALSE(bytes.empty()) << checkpoint(run, step);
    return bytes;
  }

 private:
  /// Documents of random words as bytes, each ended by token 256: text that a model can learn.
  static Documents text_documents(int64_t count, uint32_t seed) {
    static const char* kWords[] = {"the ", "small ", "model ", "reads ",    "a ",   "line ",
                                   "of ",  "text ",  "and ",   "guesses, ", "then", "learns. "};
    Documents documents;
    uint32_t state = seed;
    for (int64_t i = 0; i < count; ++i) {
      std::string text;
      for (int word = 0; word < 20; ++word) {
        state = state * 1664525u + 1013904223u;
        text += kWords[(state >> 16) % std::size(kWords)];
      }
      std::vector<int32_t>& document = documents.emplace_back();
      for (char c : text) document.push_back(static_cast<uint8_t>(c));
      document.push_back(256);
    }
    return documents;
  }

  TextFolder folder_;
  std::string launcher_;
};

/// Writes a folder with a tokenizer of 257 tokens, of which the first are the letters a to z, and with the end token
/// `end` in generation_config.json.
inline void write_tokenizer(const std::string& folder, int end = 256) {
  std::string vocabulary = "{";
  for (int i = 0; i < 256; ++i)
    vocabulary +=
        fmt::format("\"{}\": {}, ", i < 26 ? std::string(1, char('a' + i)) : fmt::format("t{}", i), i);
  std::filesystem::create_directory(folder);
  write_file(folder + "/vocab.json", vocabulary + "\"<|endoftext|>\": 256}");
  write_file(folder + "/merges.txt", "#version: 0.2\n");
  write_file(folder + "/generation_config.json", fmt::format("{{\"eos_token_id\": {}}}", end));
}

/// Runs te-train and expects success.
inline void run(const TrainFolder& folder, const std::string& name, const Overrides& overrides) {
  const Result result = folder.run(name, overrides);
  ASSERT_EQ(result.code, 0) << result.error;
}

/// Expects exit code 2 and one line on stderr.
inline void expect_refused(const Result& result, const std::string& part) {
  EXPECT_EQ(result.code, 2) << result.out;
  EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
  TE_EXPECT_CONTAINS(result.error, "te-train: error: ");
  TE_EXPECT_CONTAINS(result.error, part);
}

}  // namespace te::testing
