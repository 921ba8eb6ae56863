// Command-line options that choose the next token, shared by prompts and chats.
#pragma once

#include <CLI/CLI.hpp>

#include "generate/model_source.h"
#include "generate/sampler.h"

namespace te::generate {

struct SamplingArguments {
  SamplingOptions options;

  void add_to(CLI::App* command);
  /// Call it after parsing. Sets the temperature if other options imply it. UserError if options contradict each other.
  void resolve();
  /// Warns of generation settings in the model's files that have no effect here.
  void warn_of_unused(const ModelSource& source) const;

 private:
  CLI::Option *repetition_penalty_ = nullptr, *temperature_ = nullptr, *top_k_ = nullptr, *top_p_ = nullptr,
              *min_p_ = nullptr;
};

}  // namespace te::generate
