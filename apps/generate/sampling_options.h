// Command-line options that choose the next token, shared by prompts and chats.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "generate/beam_search.h"
#include "generate/sampler.h"

namespace te::generate {

struct SamplingArguments {
  SamplingOptions options;

  void add_to(CLI::App* command);
  /// Call it after parsing. Sets the temperature if other options imply it. UserError if options contradict each other.
  void resolve();
  /// The name of a given option that requires sampling; empty if there is none.
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
  /// UserError if options of beam search are given without --num-beams.
  void resolve();

 private:
  CLI::Option *length_penalty_ = nullptr, *early_stopping_ = nullptr;
};

}  // namespace te::generate
