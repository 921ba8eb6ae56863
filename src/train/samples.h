// Texts that the model makes while it trains: samples.jsonl, a line per prompt, and the console.
//
// This room knows no decoder. te-train, which sees both rooms, gives the trainer a SampleMaker (apps/train/samples.h);
// its memory is part of the run's plan, and the weights are the run's own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/memory_plan.h"
#include "parameters/parameter_store.h"
#include "train/log_file.h"

namespace te::train {

/// A prompt and what the model made of it. Valid UTF-8.
struct Sample {
  std::string prompt, text;
  std::string finish_reason;  ///< why the text ends
  int64_t tokens = 0;         ///< of the text
};

class SampleMaker {
 public:
  virtual ~SampleMaker() = default;
  virtual void plan(MemoryPlan& plan) = 0;
  /// After the plan's allocation, once.
  virtual void bind(const parameters::ParameterStore& weights) = 0;
  /// With the weights as they are, between two steps. The ranks of one replica of the model call it, all of them. A
  /// model whose logits are not finite gives texts that say so, as their endings.
  virtual std::vector<Sample> make() = 0;
};

inline constexpr const char* kSamplesName = "samples.jsonl";

class SampleLog {
 public:
  /// UserError when the file cannot be opened.
  explicit SampleLog(const std::filesystem::path& directory) : file_(directory / kSamplesName, "") {}
  void write(int64_t step, const std::vector<Sample>& samples);

 private:
  LogFile file_;
};

}  // namespace te::train
