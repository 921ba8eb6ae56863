// Texts that the model generates during training, for samples.jsonl (one line per prompt) and the console.
//
// The train library does not depend on the decoder: te-train gives the trainer a SampleMaker (apps/train/samples.h).
// Its memory is part of the run's plan, and it uses the run's weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/memory_plan.h"
#include "parallel/world.h"
#include "parameters/parameter_store.h"
#include "train/log_file.h"

namespace te::train {

/// A prompt and the model's completion. Valid UTF-8.
struct Sample {
  std::string prompt, text;
  std::string finish_reason;  ///< why the text ends
  int64_t tokens = 0;         ///< of the text
};

class SampleMaker {
 public:
  virtual ~SampleMaker() = default;
  virtual void plan(MemoryPlan& plan) = 0;
  /// Call once, after the plan's memory is allocated.
  virtual void bind(const parameters::ParameterStore& weights) = 0;
  /// Generates with the current weights, between two steps. Collective over the ranks of one model replica. A model
  /// with non-finite logits gives texts whose finish_reason says so.
  virtual std::vector<Sample> make() = 0;
};

/// maker.make() on the ranks of the first replica; nothing on the others, which wait for them without a time limit,
/// because each of their passes has its own. Collective over the world.
std::vector<Sample> make_on_first_replica(SampleMaker& maker, parallel::World& world, bool first);

inline constexpr const char* kSamplesName = "samples.jsonl";

class SampleLog {
 public:
  /// UserError when the file cannot be opened.
  explicit SampleLog(const std::filesystem::path& directory) : file_(directory / kSamplesName, "") {}
  void write(int64_t step, const std::vector<Sample>& samples);
  /// The run has rolled back and repeats steps from this one on.
  void start_at(int64_t step);

 private:
  LogFile file_;
};

}  // namespace te::train
