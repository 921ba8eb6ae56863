// How the next token is chosen, on the command line: shared by prompts and chats.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "generate/beam_search.h"
#include "generate/sampler.h"

namespace te::generate {

struct SamplingArguments {
  SamplingOptions options;

  void add_to(CLI::App* command);
  /// After parsing: the temperature that follows from the others. UserError when they contradict one another.
  void resolve();
  /// One that asks for draws, by name; empty when none was given.
  std::string drawing() const;

 private:
  CLI::Option *temperature_ = nullptr, *top_k_ = nullptr, *top_p_ = nullptr, *min_p_ = nullptr,
              *seed_ = nullptr;
};

struct BeamArguments {
  BeamOptions options;
  std::string early_stopping = "false";

  void add_to(CLI::App* command);
  bool chosen() const { return options.num_beams > 1; }
  /// UserError when options of the search are given without one.
  void resolve();

 private:
  CLI::Option *length_penalty_ = nullptr, *early_stopping_ = nullptr;
};

}  // namespace te::generate
